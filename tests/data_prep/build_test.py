"""The whole pipeline: from a source to a store."""

import hashlib
import json
import shutil

from data_prep import assignment
from data_prep import build
from data_prep import errors
from data_prep import example_proto
from data_prep import sources
from data_prep import vocabulary
import pytest

# Whoever the hash holds out of these is pinned by their ids.
_SIZES = {'u1': 1, 'u255': 255, 'u256': 256, 'u257': 257, 'u513': 513}


def _files(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def _decoded(data, user):
  return [' '.join(data.decode(row)) for row in data.sentences(user)]


def test_by_hand(tmp_path, list_source, numbered, make_config):
  text = numbered(_SIZES)
  held = {'v': ['why not ?'], 'e': ['']}
  source = list_source({'train': text, 'heldout': held, 'test': {'t': ['ok']}})
  data = build.prepare(
    source, tmp_path / 'out', make_config(size=262, num_public_users=2)
  )
  assert list(data.users('private')) == sorted(_SIZES)
  assert list(data.users('public')) == ['u257#overflow', 'u513#overflow']
  assert list(data.users('validation')) == ['v']
  assert list(data.users('test')) == ['t']
  for user, sentences in text.items():
    kept = _decoded(data, user)
    assert len(kept) == min(256, len(sentences))
    assert kept == sentences[:256]
  assert _decoded(data, 'u257#overflow') == ['wordu257 <oov> .']
  assert len(data.sentences('u513#overflow')) == 256
  assert _decoded(data, 't') == ['<oov>']
  manifest = data.manifest
  assert manifest['left_out']['validation users without a usable sentence'] == 1
  assert manifest['left_out']['sentences beyond the cut'] == 1
  assert manifest['groups']['private']['users'] == 5
  assert manifest['groups']['private']['sentences'] == 1 + 255 + 3 * 256
  assert manifest['groups']['public']['sentences_per_user']['1'] == 256
  assert manifest['source'] == 'list'
  assert manifest['settings']['seed'] == 0
  data.verify()


def _prepare_synthetic(
  folder, *, seed=0, num_users=60, num_processes=1, source=None, **settings
):
  source = source or sources.SyntheticSource(
    sources.SyntheticConfig(num_users=num_users)
  )
  settings = {'max_sentences': 64, 'num_public_users': 5, **settings}
  return build.prepare(
    source,
    folder,
    build.PrepareConfig(
      partition=assignment.PartitionConfig(seed=seed, **settings),
      vocabulary=vocabulary.VocabularyConfig(origin='train', size=1000),
      num_processes=num_processes,
    ),
  )


@pytest.fixture(scope='module')
def synthetic(tmp_path_factory):
  return _prepare_synthetic(tmp_path_factory.mktemp('synthetic') / 'store')


def test_the_seed_decides_who_is_public_alone(tmp_path, synthetic):
  again = _prepare_synthetic(tmp_path / 'again')
  assert _files(again.path) == _files(synthetic.path)
  other = _prepare_synthetic(tmp_path / 'other', seed=1)
  key = 'public_users_sha256'
  assert list(other.users('public')) != list(synthetic.users('public'))
  assert other.manifest[key] != synthetic.manifest[key]
  for group in ('validation', 'test'):
    assert list(other.users(group)) == list(synthetic.users(group))


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_the_processes(
  tmp_path, synthetic, monkeypatch
):
  monkeypatch.setattr(build, '_MIN_SENTENCES_FOR_PROCESSES', 0)
  monkeypatch.setattr(build, '_BATCH_SENTENCES', 100)
  two = _prepare_synthetic(tmp_path / 'two', num_processes=2)
  assert _files(two.path) == _files(synthetic.path)


@pytest.mark.parametrize(
  ('origin', 'words', 'covered'),
  [
    ('public', ['wordu2', 'w3'], True),
    ('train', ['.', 'w0'], False),
  ],
)
def test_vocabulary_of_users(
  tmp_path, list_source, make_config, origin, words, covered
):
  text = {
    'u1': ['. w0', '. w0'],
    'u2': ['. w0', '. w1', 'wordu2 w3', 'wordu2'],
  }
  source = list_source({'train': text, 'heldout': {}, 'test': {}})
  config = make_config(size=2, origin=origin, max_sentences=2)
  data = build.prepare(source, tmp_path / 'out', config)
  assert list(data.vocabulary) == words
  assert data.manifest['vocabulary']['origin'] == origin
  assert data.manifest['vocabulary']['covered_by_epsilon'] is covered
  assert (tmp_path / 'out/vocabulary.txt').read_text() == '\n'.join(
    words
  ) + '\n'


def test_vocabulary_of_a_file(tmp_path, list_source, make_config):
  (tmp_path / 'words.txt').write_text('b\na\nc\n')
  source = list_source({'train': {'u': ['a b d']}, 'heldout': {}, 'test': {}})
  config = make_config(
    size=2, origin=f'file:{tmp_path}/words.txt', num_public_users=0
  )
  data = build.prepare(source, tmp_path / 'out', config)
  assert data.sentences('u')[0, :5].tolist() == [4, 2, 1, 3, 5]
  assert data.manifest['vocabulary']['covered_by_epsilon'] is None


@pytest.mark.parametrize(
  ('origin', 'words'),
  [
    ('train', 'vocabulary_size .* of 1 private users. Found 4'),
    ('public', 'vocabulary_size .* of 0 public users. Found 4'),
    ('source', "vocabulary must be .* Found 'source'"),
  ],
)
def test_vocabularies_that_cannot_be(
  tmp_path, list_source, make_config, origin, words
):
  source = list_source({'train': {'u': ['a b c']}, 'heldout': {}, 'test': {}})
  config = make_config(size=4, origin=origin, num_public_users=0)
  with pytest.raises(ValueError, match=words):
    build.prepare(source, tmp_path / 'out', config)
  assert not list(tmp_path.iterdir())


def test_texts_of_a_stream_are_regrouped(tmp_path, make_config):
  rows = [
    {'user': user, 'text': f'Word {user}{i} here. And more.'}
    for i in range(30)
    for user in ('b', 'a')
  ]
  rows.append({'user': 'c', 'text': '\u2603'})
  lines = ''.join(json.dumps(row) + '\n' for row in rows)
  (tmp_path / 'x.jsonl').write_text(lines)
  progress = []
  data = build.prepare(
    sources.open_source(f'jsonl:{tmp_path}/x.jsonl'),
    tmp_path / 'out',
    make_config(size=35, max_sentences=50),
    on_progress=lambda *step: progress.append(step),
  )
  assert list(data.users('private')) == ['a', 'b']
  assert _decoded(data, 'a')[:3] == [
    'word a0 here .',
    'and more .',
    'word a1 here .',
  ]
  assert [len(data.sentences(u)) for u in ('a', 'b')] == [50, 50]
  assert data.manifest['skipped'] == {'rows without a usable sentence': 1}
  assert progress[0][0] == 'reading'
  what, done, total, unit = progress[-1]
  assert (what, unit) == ('encoding', 'sentence')
  assert done == total == data.manifest['sentences']


@pytest.mark.parametrize('kind', ['jsonl', 'sqlite'])
def test_too_many_malformed_rows(tmp_path, write_database, make_config, kind):
  path = tmp_path / f'x.{kind}'
  if kind == 'jsonl':
    path.write_text('{"user": "a", "text": "fine"}\n' * 50 + '{\n')
  else:
    sentences = {'train': {'a': ['fine'] * 50}, 'heldout': {'b': ['bad']}}
    write_database(
      path,
      sentences,
      encode=lambda s: b'?' if s == b'bad' else example_proto.encode_tokens(s),
    )
  source = sources.open_source(f'{kind}:{path}')
  config = make_config(size=1, num_public_users=0)
  with pytest.raises(errors.SourceError, match='1 of 51 rows are faulty'):
    build.prepare(source, tmp_path / 'out', config)
  assert list(tmp_path.iterdir()) == [path]


def test_unusable_sentences_of_a_database(
  tmp_path, write_database, make_config
):
  text = {'a': ['fine', '', 'good'], 'b': [' ']}
  path = write_database(tmp_path / 'x.sqlite', {'train': text, 'test': {}})
  data = build.prepare(
    sources.open_source(f'sqlite:{path}'),
    tmp_path / 'out',
    make_config(size=2, num_public_users=0),
  )
  assert list(data.users('private')) == ['a']
  assert _decoded(data, 'a') == ['fine', 'good']
  assert data.manifest['skipped'] == {'rows without a usable sentence': 2}
  left_out = data.manifest['left_out']
  assert left_out['private users without a usable sentence'] == 1


def test_public_users_who_have_nothing_to_say(
  tmp_path, list_source, numbered, make_config
):
  text = numbered({'a': 6, 'b': 6, 'c': 6})
  text['b'][3:] = ['', '', '']
  split = {'heldout': {}, 'test': {}, 'train': text}
  config = make_config(size=3, num_public_users=3, max_sentences=3)
  with pytest.warns(UserWarning, match='Only 2 of 3 public users are left'):
    data = build.prepare(list_source(split), tmp_path / 'out', config)
  stored = list(data.users('public'))
  assert stored == ['a#overflow', 'c#overflow']
  digest = hashlib.sha256(b'a#overflow\nc#overflow\n').hexdigest()
  assert data.manifest['public_users_sha256'] == digest


def test_a_disk_too_small(tmp_path, monkeypatch):
  usage = shutil.disk_usage(tmp_path)
  monkeypatch.setattr(
    shutil, 'disk_usage', lambda path: usage._replace(free=1000)
  )
  words = f'needs .* MB, but the disk of {tmp_path} only has 0.0 MB left'
  with pytest.raises(errors.StoreError, match=words):
    _prepare_synthetic(tmp_path / 'out')
  assert not list(tmp_path.iterdir())
