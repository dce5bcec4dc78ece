"""Damaged data: sources of text, token stores, images, lists."""

import gzip
import json
import lzma
import struct

from data_prep import assignment
from data_prep import build
from data_prep import errors
from data_prep import lists
from data_prep import sample_level
from data_prep import sources
from data_prep import spool
from data_prep import store
from data_prep import vocabulary
from data_prep.sources import base
from data_prep.sources import sqlite
import numpy as np
import pytest

from tests.fuzz import harness

_RNG = np.random.default_rng(0)
_ROWS = [
  (f'user{i % 7}', f'Sentence {i} of a user. And another one, {i * i}!')
  for i in range(40)
]


def _check_users(source):
  """What `base.Source` promises."""
  read = {}
  for split in source.splits:
    assert split in base.SPLITS
    users = source.users(split)
    assert list(users.ids) == sorted(set(users.ids))
    assert users.num_sentences.min(initial=0) >= 0
    for user, count in zip(users.ids, users.num_sentences, strict=True):
      sentences = source.sentences(user, split, 0, int(count))
      assert len(sentences) == count
      ''.join(sentences).encode()
      read[split, user] = sentences
  source.tally.check(source.name)
  return read


def _read_text(source, folder):
  if not isinstance(source, base.RecordSource):
    return _check_users(source)
  path = folder / 'regrouped.tmp'
  try:
    return _check_users(
      spool.regroup(source, path, num_processes=1, on_progress=lambda *_: None)
    )
  finally:
    path.unlink(missing_ok=True)


def _write_posts(folder):
  posts = [
    f'<row Id="{i + 1}" PostTypeId="{1 + i % 2}" OwnerUserId="{i % 7}"'
    f' Body="&lt;p&gt;{text}&lt;/p&gt;&lt;code&gt;x&lt;/code&gt;" />'
    for i, (_, text) in enumerate(_ROWS)
  ]
  comments = [
    f'<row Id="{i + 1}" UserId="{i % 7}" Text="{text}" />'
    for i, (_, text) in enumerate(_ROWS)
  ]
  for name, rows in (('posts', posts), ('comments', comments)):
    lines = [f'<{name}>', *rows, f'</{name}>', '']
    (folder / f'{name.title()}.xml').write_text('\n'.join(lines))


def _lines(name, lines, source, compress=bytes):
  """A target of a file with a sentence on each line."""
  content = '\n'.join(lines).encode()
  return harness.Target(
    write=lambda f: (f / name).write_bytes(compress(content)),
    load=lambda f: _read_text(source(str(f / name)), f),
    # Compression has a checksum.
    check=harness.anything if compress is bytes else harness.equal,
    share=0.5,
    must_find=0.2,
  )


_JSONL = [json.dumps({'user': u, 'text': t}) for u, t in _ROWS]
_CSV = ['user,text', *(f'{user},"{text}"' for user, text in _ROWS)]


def _list(lines, read):
  """A target of a list of words or users, which has no checksum."""

  def check(expected, found):
    del expected
    assert all(w and not w.isspace() for w in found)
    assert len(set(found)) == len(found)

  return harness.Target(
    write=lambda f: (f / 'list.txt').write_text('\n'.join(lines)),
    load=lambda f: read(f / 'list.txt'),
    check=check,
    must_find=0.1,
  )


def _write_store(folder):
  build.prepare(
    sources.SyntheticSource(sources.SyntheticConfig(num_users=30)),
    folder,
    build.PrepareConfig(
      partition=assignment.PartitionConfig(
        seed=0, max_sentences=30, num_public_users=2
      ),
      vocabulary=vocabulary.VocabularyConfig(size=100),
    ),
  )


def _read_store(folder):
  """Everything that training reads, whether or not it is verified."""
  data = store.open_store(folder)
  return {
    'manifest': data.manifest,
    'vocabulary': data.vocabulary,
    'tokens': np.array(data.tokens),
    'names': {group: list(data.users(group)) for group in data.groups},
    'sentences': [data.num_examples(group) for group in data.groups],
  }


def _read_verified(folder):
  store.open_store(folder).verify()
  return _read_store(folder)


def _store_is_sound(expected, found):
  """A store that was opened without `verify` may have other tokens alone."""
  harness.equal(expected['manifest'], found['manifest'])
  assert found['tokens'].shape == expected['tokens'].shape
  assert found['tokens'].dtype == np.uint16
  assert len(found['vocabulary']) == len(expected['vocabulary'])
  for one, other in zip(expected['sentences'], found['sentences'], strict=True):
    assert len(one) == len(other) and other.min(initial=0) >= 0


def _arrays(data):
  parts = (data.train, data.test, data.validation, data.public)
  return [(p.inputs, p.targets) for p in parts if p is not None]


def _same_arrays(expected, found):
  # Without public images, a run says so.
  found = _arrays(found)
  harness.equal(_arrays(expected)[: len(found)], found)


def _images_are_sound(expected, found):
  for (inputs, targets), (other, others) in zip(
    _arrays(expected), _arrays(found), strict=True
  ):
    assert (other.dtype, other.shape) == (np.uint8, inputs.shape)
    assert (others.dtype, others.shape) == (np.int32, targets.shape)
    assert 0 <= others.min() and others.max() < expected.num_classes


def _idx(array):
  header = struct.pack(f'>4B{array.ndim}I', 0, 0, 8, array.ndim, *array.shape)
  return header + array.tobytes()


def _emnist(folder, split, kind):
  return folder / f'emnist-bymerge-{split}-{kind}-ubyte.gz'


def _write_emnist(folder, compress=gzip.compress):
  for split in ('train', 'test'):
    images = _RNG.integers(0, 256, (4, 28, 28), np.uint8)
    path = _emnist(folder, split, 'images-idx3')
    path.write_bytes(compress(_idx(images)))
    path = _emnist(folder, split, 'labels-idx1')
    path.write_bytes(compress(_idx(np.arange(4, dtype=np.uint8))))


def _load_compressed_emnist(folder):
  """Compresses damaged files, so that their checksums are right."""
  contents = {p: p.read_bytes() for p in folder.glob('*.gz')}
  try:
    for path, content in contents.items():
      path.write_bytes(gzip.compress(content, 1))
    return sample_level.load_emnist(folder)
  finally:
    for path, content in contents.items():
      path.write_bytes(content)


def _write_images(folder):
  arrays = {}
  for part in ('train', 'test', 'public'):
    arrays[f'{part}_images'] = _RNG.integers(0, 256, (4, 6, 5), np.uint8)
    arrays[f'{part}_labels'] = np.arange(4)
  np.savez_compressed(folder / 'images.npz', **arrays, num_classes=4)


_TARGETS = {
  'sqlite': harness.Target(
    write=lambda f: sqlite.write_sqlite(f / 'users.sqlite', sorted(_ROWS)),
    load=lambda f: _read_text(sources.SqliteSource(f / 'users.sqlite'), f),
    check=harness.anything,
    must_find=0.05,  # Most bytes are text, or room for more.
  ),
  'stackexchange': harness.Target(
    write=_write_posts,
    load=lambda f: _read_text(sources.StackExchangeSource(f), f),
    check=harness.anything,
    share=0.6,
  ),
  'jsonl': _lines('rows.jsonl', _JSONL, sources.JsonlSource),
  'jsonl.xz': _lines(
    'rows.jsonl.xz', _JSONL, sources.JsonlSource, lzma.compress
  ),
  'csv': _lines('rows.csv', _CSV, sources.TextTableSource),
  'user ids': _list([f'site/{i}' for i in range(50)], lists.read_user_ids),
  'words': _list([f'word{i} {1000 - i}' for i in range(60)], lists.read_words),
  'verified store': harness.Target(
    write=_write_store, load=_read_verified, must_find=0.8
  ),
  'opened store': harness.Target(
    write=_write_store, load=_read_store, check=_store_is_sound
  ),
  'EMNIST, behind its checksum': harness.Target(
    write=lambda f: _write_emnist(f, bytes),
    load=_load_compressed_emnist,
    share=0.3,
    check=_images_are_sound,
    must_find=0.2,
  ),
  'npz': harness.Target(
    write=_write_images,
    load=sample_level.load_images,
    check=_same_arrays,
  ),
}


@pytest.mark.parametrize('name', _TARGETS)
def test_damaged_data(fuzz, name):
  fuzz(_TARGETS[name])


@pytest.mark.parametrize(
  'kind, content',
  [
    # A small file that unpacks to much.
    ('labels-idx1', _idx(np.zeros(4, np.uint8)) + bytes(2**28)),
    # Dimensions whose product overflows: 2**64 is 0.
    ('images-idx3', struct.pack('>4B3I', 0, 0, 8, 3, 2**31, 2**31, 4)),
  ],
)
def test_sizes_that_are_not_true(tmp_path, kind, content):
  _write_emnist(tmp_path)
  _emnist(tmp_path, 'train', kind).write_bytes(gzip.compress(content))
  with harness.memory_below(64 * 2**20):
    with pytest.raises(errors.SourceError, match=kind[:6]):
      sample_level.load_emnist(tmp_path)


def test_a_large_row_id_takes_no_memory(tmp_path):
  rows = [
    f'<row Id="{i}" UserId="1" Text="A sentence of {i}." />'
    for i in (2**32 - 1, 2**32 - 1, 7, 2**31)
  ]
  text = '\n'.join(['<comments>', *rows, '</comments>'])
  (tmp_path / 'Comments.xml').write_text(text)
  with harness.memory_below(50 * 2**20):
    source = sources.StackExchangeSource(tmp_path)
    assert len(list(source.records())) == 3
  assert source.tally.skipped[base.DUPLICATE] == 1
