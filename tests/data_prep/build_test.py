"""The whole pipeline: from a source to a store."""

import errno
import hashlib
import json
import shutil

from data_prep import build
from data_prep import encoding
from data_prep import errors
from data_prep import example_proto
from data_prep import partition
from data_prep import sources
from data_prep import store
from data_prep import store_writer
from data_prep import vocabulary
import numpy as np
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
  folder, seed=0, num_processes=1, source=None, **settings
):
  source = source or sources.SyntheticSource(
    sources.SyntheticConfig(num_users=200)
  )
  return build.prepare(
    source,
    folder,
    build.PrepareConfig(
      partition=partition.PartitionConfig(
        seed=seed, max_sentences=64, num_public_users=10, **settings
      ),
      vocabulary=vocabulary.VocabularyConfig(
        origin=vocabulary.Origin.TRAIN, size=2000
      ),
      num_processes=num_processes,
    ),
  )


def test_the_same_seed_gives_the_same_bytes(tmp_path):
  first = _prepare_synthetic(tmp_path / 'a')
  again = _prepare_synthetic(tmp_path / 'b')
  other = _prepare_synthetic(tmp_path / 'c', seed=1)
  assert _files(first.path) == _files(again.path)
  assert list(first.users('public')) != list(other.users('public'))
  assert (
    first.manifest['public_users_sha256']
    == (again.manifest['public_users_sha256'])
  )
  assert (
    first.manifest['public_users_sha256']
    != (other.manifest['public_users_sha256'])
  )
  for group in ('validation', 'test'):
    assert list(first.users(group)) == list(other.users(group))


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_the_processes(tmp_path, monkeypatch):
  one = _prepare_synthetic(tmp_path / 'one')
  monkeypatch.setattr(build, '_MIN_SENTENCES_FOR_PROCESSES', 0)
  two = _prepare_synthetic(tmp_path / 'two', num_processes=2)
  assert _files(one.path) == _files(two.path)
  monkeypatch.setattr(build, '_BATCH_SENTENCES', 100)
  small = _prepare_synthetic(tmp_path / 'small')
  assert _files(one.path) == _files(small.path)


def test_a_database_gives_the_same_store(tmp_path, write_database):
  source = sources.SyntheticSource(sources.SyntheticConfig(num_users=40))
  users = source.users('train')
  sentences = {
    user: source.sentences(user, 'train', 0, int(count))
    for user, count in zip(users.ids, users.num_sentences, strict=True)
  }
  path = write_database(tmp_path / 'x.sqlite', {'train': sentences})
  read = _prepare_synthetic(
    tmp_path / 'read', source=sources.open_source(f'sqlite:{path}')
  )
  direct = _prepare_synthetic(tmp_path / 'direct', source=source)
  files, others = _files(direct.path), _files(read.path)
  assert json.loads(others.pop(store.MANIFEST))['source'] == 'sqlite:x.sqlite'
  files.pop(store.MANIFEST)
  assert files == others
  direct.manifest.pop('source')
  read.manifest.pop('source')
  assert direct.manifest == read.manifest


def test_groups_are_disjoint(small_store):
  people = {
    group: {name.removesuffix('#overflow') for name in small_store.users(group)}
    for group in small_store.groups
  }
  assert people['public'] <= people['private']  # The stated rule.
  assert not people['validation'] & (people['private'] | people['public'])
  assert not people['test'] & (people['private'] | people['public'])
  assert not people['validation'] & people['test']
  # A public user has the sentences right after those of its private half.
  source = sources.SyntheticSource(sources.SyntheticConfig(num_users=60))
  for name in small_store.users('public'):
    person = name.removesuffix('#overflow')
    private = source.sentences(person, 'train', 0, 64)
    public = source.sentences(person, 'train', 64, 128)
    encoder = encoding.Encoder(small_store.vocabulary)
    for user, text in ((person, private), (name, public)):
      assert np.array_equal(small_store.sentences(user), encoder.encode(text))


def test_kept_overflow_users_are_marked(tmp_path):
  drop = _prepare_synthetic(tmp_path / 'drop')
  keep = _prepare_synthetic(tmp_path / 'keep', keep_overflow_users=True)
  assert drop.manifest['max_private_users_per_person'] == 1
  assert drop.manifest['private_overflow_users'] == 0
  assert keep.manifest['max_private_users_per_person'] == 2
  kept = [n for n in keep.users('private') if n.endswith('#overflow')]
  assert keep.manifest['private_overflow_users'] == len(kept) > 0
  assert not set(kept) & set(keep.users('public'))
  for name in kept:  # They are found among names that are not numbers.
    assert len(keep.sentences(name)) <= 64


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
    size=2, origin='file', path=tmp_path / 'words.txt', num_public_users=0
  )
  data = build.prepare(source, tmp_path / 'out', config)
  assert data.sentences('u')[0, :5].tolist() == [4, 2, 1, 3, 5]
  assert data.manifest['vocabulary']['covered_by_epsilon'] is None


@pytest.mark.parametrize(
  ('origin', 'where'), [('train', '1 private users'), ('public', '0 public')]
)
def test_more_words_than_there_are(
  tmp_path, list_source, make_config, origin, where
):
  source = list_source({'train': {'u': ['a b c']}, 'heldout': {}, 'test': {}})
  config = make_config(size=4, origin=origin, num_public_users=0)
  with pytest.raises(ValueError, match=f'vocabulary_size .*{where}.*Found 4'):
    build.prepare(source, tmp_path / 'out', config)
  assert not list(tmp_path.iterdir())


def test_a_source_without_words_of_its_own(tmp_path, list_source, make_config):
  source = list_source({'train': {'u': ['a']}, 'heldout': {}, 'test': {}})
  config = make_config(size=1, origin='source', num_public_users=0)
  with pytest.raises(ValueError, match="vocabulary must be .* Found 'source'"):
    build.prepare(source, tmp_path / 'out', config)


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


def test_too_many_malformed_rows(tmp_path, make_config):
  good = '{"user": "a", "text": "fine words"}\n'
  (tmp_path / 'x.jsonl').write_text(good * 98 + '{\n' * 2)
  config = make_config(size=2, num_public_users=0)
  with pytest.raises(errors.SourceError, match='2 of 100 rows are faulty'):
    build.prepare(
      sources.open_source(f'jsonl:{tmp_path}/x.jsonl'),
      tmp_path / 'out',
      config,
    )
  assert [path.name for path in tmp_path.iterdir()] == ['x.jsonl']


def test_too_many_malformed_examples(tmp_path, write_database, make_config):
  path = write_database(
    tmp_path / 'x.sqlite',
    {'train': {'a': ['fine'] * 50}, 'heldout': {'b': ['bad']}},
    encode=lambda s: b'?' if s == b'bad' else example_proto.encode_tokens(s),
  )
  with pytest.raises(errors.SourceError, match='1 of 51 rows are faulty'):
    build.prepare(
      sources.open_source(f'sqlite:{path}'),
      tmp_path / 'out',
      make_config(size=1, num_public_users=0),
    )


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


def test_more_public_users_than_overflow_users(tmp_path):
  source = sources.SyntheticSource(sources.SyntheticConfig(num_users=5))
  with pytest.raises(ValueError, match='num_public_users must be at most'):
    _prepare_synthetic(tmp_path / 'out', source=source)
  assert not list(tmp_path.iterdir())


def test_a_disk_too_small(tmp_path, monkeypatch):
  usage = shutil.disk_usage(tmp_path)
  monkeypatch.setattr(
    shutil, 'disk_usage', lambda path: usage._replace(free=1000)
  )
  words = f'needs .* MB, but the disk of {tmp_path} only has 0.0 MB left'
  with pytest.raises(errors.StoreError, match=words):
    _prepare_synthetic(tmp_path / 'out')
  assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up(tmp_path, monkeypatch):
  def add(self, group, names, counts, rows):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(store_writer.StoreWriter, 'add', add)
  with pytest.raises(OSError, match='No space left'):
    _prepare_synthetic(tmp_path / 'out')
  assert not list(tmp_path.iterdir())


def test_bad_config(make_config):
  with pytest.raises(ValueError, match='num_processes .* Found -1'):
    make_config(num_processes=-1)
