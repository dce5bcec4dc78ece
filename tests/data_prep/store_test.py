"""The reader of token stores."""

import json
import shutil
import subprocess
import sys

from data_prep import errors
from data_prep import store
import numpy as np
from pda_fed.common import seal
import pytest


def _without_checksum(manifest):
  return {n: value for n, value in manifest.items() if n != 'sha256'}


@pytest.fixture
def copy(small_store, tmp_path):
  return shutil.copytree(small_store.path, tmp_path / 'copy')


def test_files_and_layout(small_store):
  names = sorted(path.name for path in small_store.path.iterdir())
  assert names == sorted([*store.DATA_FILES, store.MANIFEST])
  tokens = np.load(small_store.path / store.TOKENS)
  assert tokens.dtype == np.uint16
  assert tokens.shape == (small_store.manifest['sentences'], 21)
  spec = small_store.spec
  assert (spec.oov, spec.bos, spec.eos) == (1001, 1002, 1003)
  assert np.all(tokens[:, 0] == spec.bos)
  assert tokens.max() == spec.eos
  assert np.all(tokens[:, 1] != spec.pad)


def test_users_and_sentences(small_store):
  for group in small_store.groups:
    users = small_store.users(group)
    assert list(users) == sorted(users)
    counts = small_store.num_sentences(group)
    assert len(users) == len(counts) > 0
    for i, name in enumerate(users):
      rows = small_store.sentences(name)
      assert rows.shape == (counts[i], 21)
      assert np.shares_memory(rows, small_store.tokens)
      assert np.array_equal(rows, small_store.sentences((group, i)))
  users = small_store.users('private')
  assert list(users[2:4]) == list(users)[2:4]
  assert users[-1] == list(users)[-1]
  assert repr(users) == f'<names of {len(users)} users>'


def test_sentences_are_read_only(small_store):
  with pytest.raises(ValueError, match='read-only'):
    small_store.sentences(('private', 0))[0, 0] = 1


def test_decode(small_store):
  words = small_store.decode(small_store.sentences(('private', 0))[0])
  assert set(words) <= {*small_store.vocabulary, '<oov>'}
  assert len(small_store.vocabulary) == 1000


@pytest.mark.parametrize('name', ['nobody', '', 'user_', '~'])
def test_unknown_user(small_store, name):
  with pytest.raises(KeyError, match='no user'):
    small_store.sentences(name)


def test_unknown_group(small_store):
  with pytest.raises(ValueError, match="group must be .* Found 'train'"):
    small_store.users('train')
  with pytest.raises(IndexError):
    small_store.sentences(('private', 10**6))


def test_no_store(tmp_path):
  for path in (tmp_path, tmp_path / 'nothing'):
    with pytest.raises(errors.StoreError, match='neither a token store'):
      store.open_store(path)


@pytest.mark.parametrize(
  ('content', 'words'),
  [
    ('{', 'damaged'),
    ('[]', 'not the manifest of a store'),
    ('{"format": "zip"}', 'not the manifest of a token store'),
    (json.dumps({'format': store.FORMAT, 'version': 9}), 'version 9'),
  ],
)
def test_bad_manifest(tmp_path, content, words):
  (tmp_path / store.MANIFEST).write_text(content)
  with pytest.raises(errors.StoreError, match=words):
    store.open_store(tmp_path)


@pytest.mark.parametrize('name', store.DATA_FILES)
def test_missing_or_truncated_file(copy, name):
  content = (copy / name).read_bytes()
  (copy / name).write_bytes(content[:-1])
  found = f'{name} .*Found {len(content) - 1}'
  with pytest.raises(errors.StoreError, match=found):
    store.open_store(copy)
  (copy / name).unlink()
  with pytest.raises(errors.StoreError, match=f'{name} .*Found none'):
    store.open_store(copy)


def _set(*keys):
  *path, last, value = keys

  def change(manifest):
    for key in path:
      manifest = manifest[key]
    if value is None:
      del manifest[last]
    else:
      manifest[last] = value

  return change


@pytest.mark.parametrize(
  'change',
  [
    _set('version', None),
    _set('version', '1'),
    _set('users', None),
    _set('users', 7),
    _set('vocabulary', None),
    _set('vocabulary', 'size', 'x'),
    _set('vocabulary', 'size', 0),
    _set('files', None),
    _set('files', {}),
    _set('files', []),
    _set('files', store.USER_IDS, None),
    _set('files', store.USER_IDS, 'bytes', None),
    _set('files', store.USER_IDS, 'sha256', None),
    _set('groups', None),
    _set('groups', 'test', None),
    _set('groups', 'public', 'first_user', 0),
    _set('groups', 'public', 'users', -1),
    _set('groups', 'public', 'sentences_per_user', {'1': 'x'}),
  ],
)
def test_a_manifest_that_lacks_something(copy, change):
  path = copy / store.MANIFEST
  manifest = _without_checksum(json.loads(path.read_text()))
  change(manifest)
  path.write_text(json.dumps(seal.seal(manifest)))
  with pytest.raises(errors.StoreError):
    store.open_store(copy)


@pytest.mark.parametrize('content', [None, b'\xff\xfe', b'[' * 100_000])
def test_a_manifest_that_is_none(copy, content):
  path = copy / store.MANIFEST
  path.unlink()
  if content is None:
    path.mkdir()
  else:
    path.write_bytes(content)
  with pytest.raises(errors.StoreError, match='damaged'):
    store.open_store(copy)


def test_a_manifest_that_was_changed(copy):
  path = copy / store.MANIFEST
  text = path.read_text()
  assert '"max_private_users_per_person": 1' in text
  path.write_text(text.replace('per_person": 1', 'per_person": 0'))
  with pytest.raises(errors.StoreError, match='manifest.json .*sha256'):
    store.open_store(copy)


def _replace(path, content):
  """Replaces a file as if it had been written so."""
  path.write_bytes(content)
  manifest = json.loads((path.parent / store.MANIFEST).read_text())
  manifest['files'][path.name]['bytes'] = len(content)
  manifest = seal.seal(_without_checksum(manifest))
  (path.parent / store.MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
  ('name', 'place', 'new', 'words'),
  [
    (store.TOKENS, 0, b'xxxx', 'cannot be read'),
    (store.TOKENS, 12, b'xxxx', 'cannot be read'),
    (store.USER_OFFSETS, 128, b'\x01', 'must run from 0'),
    (store.USER_OFFSETS, -8, b'\xff' * 8, 'must run from 0'),
    (store.USER_OFFSETS, 136, b'\xff' * 8, 'must not decrease'),
    (store.USER_OFFSETS, 136, b'\xff' * 4, 'must not decrease'),
    (store.USER_ID_OFFSETS, 136, b'\xff' * 4, 'must not decrease'),
  ],
)
def test_damaged_arrays(copy, name, place, new, words):
  content = bytearray((copy / name).read_bytes())
  place %= len(content)
  content[place : place + len(new)] = new
  (copy / name).write_bytes(content)
  with pytest.raises(errors.StoreError, match=f'{name} .*{words}'):
    store.open_store(copy)


@pytest.mark.parametrize(
  ('name', 'change'),
  [
    (store.TOKENS, lambda a: a.astype(np.int32)),
    (store.TOKENS, lambda a: a[:, :20]),
    (store.TOKENS, lambda a: a.ravel()),
    (store.TOKENS, np.asfortranarray),
    (store.TOKENS, lambda a: a[:-1]),
    (store.USER_OFFSETS, lambda a: a.astype(float)),
    (store.USER_OFFSETS, lambda a: a[:-1]),
    (store.USER_ID_OFFSETS, lambda a: a[None]),
  ],
)
def test_arrays_of_another_shape(copy, name, change):
  array = change(np.load(copy / name))
  np.save(copy / name, array)
  _replace(copy / name, (copy / name).read_bytes())
  with pytest.raises(errors.StoreError, match='must (be|run)'):
    store.open_store(copy)


def test_damaged_text(copy):
  content = (copy / store.USER_IDS).read_bytes()
  (copy / store.USER_IDS).write_bytes(b'\xff' + content[1:])
  with pytest.raises(errors.StoreError, match='user 0 must be UTF-8'):
    _ = store.open_store(copy).users('private')[0]
  _replace(copy / store.VOCABULARY, b'\xff')
  with pytest.raises(errors.StoreError, match='vocabulary.txt .*cannot'):
    _ = store.open_store(copy).vocabulary
  _replace(copy / store.VOCABULARY, b'one\ntwo\n')
  with pytest.raises(errors.StoreError, match='1000 words. Found 2'):
    _ = store.open_store(copy).vocabulary
  _replace(copy / store.VOCABULARY, b'a\n' * 1000)
  with pytest.raises(errors.StoreError, match='ids in .* Found 60000'):
    store.open_store(copy).decode(np.array([1, 60000]))


def test_verify_without_a_file(copy):
  data = store.open_store(copy)
  (copy / store.VOCABULARY).unlink()
  with pytest.raises(errors.StoreError, match='vocabulary.txt .*cannot'):
    data.verify()


@pytest.mark.parametrize('name', store.DATA_FILES)
def test_verify_finds_a_changed_byte(copy, name):
  data = store.open_store(copy)
  data.verify()
  content = bytearray((copy / name).read_bytes())
  content[-2] ^= 1
  (copy / name).write_bytes(content)
  with pytest.raises(errors.StoreError, match=f'{name} .* changed'):
    data.verify()


def test_needs_neither_tensorflow_nor_jax(small_store):
  program = f"""
import sys
for name in ('tensorflow', 'tensorflow_federated', 'dp_accounting', 'jax'):
  sys.modules[name] = None
import data_prep
data = data_prep.open_store({str(small_store.path)!r})
data_prep.load_cohort(data, 'private', [0, 1])
from data_prep import summary
from scripts import prepare_users
print(len(data.users('public')))
"""
  done = subprocess.run(
    [sys.executable, '-c', program],
    cwd=store.__file__.rsplit('/', 2)[0],
    capture_output=True,
    text=True,
    check=False,
  )
  assert (done.stdout, done.stderr) == ('3\n', '')
