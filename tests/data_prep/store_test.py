"""The reader of stores, whole and damaged."""

import shutil
import subprocess
import sys

import data_prep
from data_prep import build
from data_prep import errors
from data_prep import sources
from data_prep import store
from data_prep import user_store
import numpy as np
import pytest

_FILES = [('tokens', name) for name in store.TokenStore.DATA_FILES]
_FILES += [('examples', name) for name in store.ExampleStore.DATA_FILES]


@pytest.fixture(scope='module')
def example_store(tmp_path_factory):
  """A store of 30 users with rows of 3 numbers."""
  folder = tmp_path_factory.mktemp('examples')
  rng = np.random.default_rng(0)
  np.savez(
    folder / 'x.npz',
    x=rng.normal(5, 3, (90, 3)),
    y=np.arange(90) % 3,
    user=np.arange(90) % 30,
  )
  return build.prepare(
    sources.open_npz(folder / 'x.npz'),
    folder / 'out',
    build.PrepareConfig(
      partition=data_prep.PartitionConfig(seed=0, num_public_users=5),
      holdout=data_prep.HoldoutConfig(
        validation_fraction=0.2, test_fraction=0.2
      ),
    ),
  )


@pytest.fixture
def copies(small_store, example_store, tmp_path):
  """Folders of copies, by kind."""
  return {
    'tokens': shutil.copytree(small_store.path, tmp_path / 'tokens'),
    'examples': shutil.copytree(example_store.path, tmp_path / 'examples'),
  }


def test_files_and_layout(small_store):
  names = sorted(path.name for path in small_store.path.iterdir())
  assert names == sorted([*store.TokenStore.DATA_FILES, store.MANIFEST])
  tokens = np.load(small_store.path / store.TOKENS)
  assert tokens.dtype == np.uint16
  assert tokens.shape == (small_store.manifest['sentences'], 21)
  assert np.array_equal(tokens, small_store.tokens)
  spec = small_store.spec
  assert (spec.oov, spec.bos, spec.eos) == (1001, 1002, 1003)
  assert np.all(tokens[:, 0] == spec.bos)
  assert tokens.max() == spec.eos
  assert np.all(tokens[:, 1] != spec.pad)
  offsets = np.load(small_store.path / user_store.USER_OFFSETS)
  assert (offsets[0], offsets[-1]) == (0, len(tokens))
  assert np.all(np.diff(offsets) > 0)


def test_users_and_sentences(small_store):
  for group in small_store.groups:
    users = small_store.users(group)
    assert list(users) == sorted(users)
    counts = small_store.num_examples(group)
    assert len(users) == len(counts) > 0
    for i, name in enumerate(users):
      rows = small_store.sentences(name)
      assert rows.shape == (counts[i], 21)
      assert np.shares_memory(rows, small_store.tokens)
      assert np.array_equal(rows, small_store.sentences((group, i)))
  users = small_store.users('private')
  assert list(users[2:4]) == list(users)[2:4]
  assert users[-1] == list(users)[-1]
  with pytest.raises(ValueError, match='read-only'):
    rows[0, 0] = 1


def test_decode(small_store):
  words = small_store.decode(small_store.sentences(('private', 0))[0])
  assert set(words) <= {*small_store.vocabulary, '<oov>'}
  assert len(small_store.vocabulary) == 1000
  spec = small_store.spec
  row = np.array([spec.bos, 1, spec.oov, 1000, spec.eos, spec.pad])
  first, *_, last = small_store.vocabulary
  assert small_store.decode(row) == [first, '<oov>', last]


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


def test_the_kinds_of_stores_are_told_apart(small_store, example_store):
  for of, kind, other in (
    (small_store, store.TokenStore, store.ExampleStore),
    (example_store, store.ExampleStore, store.TokenStore),
  ):
    assert type(store.open_store(of.path)) is kind
    words = f'not the manifest of a {other.FORMAT}'
    with pytest.raises(errors.StoreError, match=words):
      other(of.path)


@pytest.mark.parametrize(
  ('content', 'words'),
  [
    (b'{', 'damaged'),
    (b'\xff\xfe', 'damaged'),
    (b'[' * 100_000, 'damaged'),
    (b'[]', 'not the manifest of a store'),
    (b'{"format": "zip"}', 'not the manifest of a pda_fed token store'),
    (b'{"format": "pda_fed token store", "version": 9}', 'version 9'),
    (b'{"format": "pda_fed token store", "version": 2}', 'sha256 must be'),
  ],
)
def test_bad_manifest(tmp_path, content, words):
  (tmp_path / store.MANIFEST).write_bytes(content)
  with pytest.raises(errors.StoreError, match=words):
    store.open_store(tmp_path)


def test_a_manifest_that_was_changed(copies):
  path = copies['tokens'] / store.MANIFEST
  text = path.read_text()
  assert '"max_private_users_per_person": 1' in text
  path.write_text(text.replace('per_person": 1', 'per_person": 0'))
  with pytest.raises(errors.StoreError, match='manifest.json .*sha256'):
    store.open_store(path.parent)
  path.unlink()
  path.mkdir()
  with pytest.raises(errors.StoreError, match='damaged'):
    store.open_store(path.parent)


@pytest.mark.parametrize(('kind', 'name'), _FILES)
def test_damaged_files(copies, kind, name):
  folder = copies[kind]
  data = store.open_store(folder)
  data.verify()
  content = bytearray((folder / name).read_bytes())
  content[-2] ^= 1
  (folder / name).write_bytes(content)
  with pytest.raises(errors.StoreError, match=f'{name} .* changed'):
    data.verify()
  if name in data.ROW_FILES:
    store.open_store(folder)  # Rows are too many to be read here.
  else:  # Otherwise users' rows might be mixed up.
    with pytest.raises(errors.StoreError, match=f'{name} .* changed'):
      store.open_store(folder)
  (folder / name).write_bytes(content[:-1])
  found = f'{name} .*Found {len(content) - 1}'
  with pytest.raises(errors.StoreError, match=found):
    store.open_store(folder)
  (folder / name).unlink()
  with pytest.raises(errors.StoreError, match=f'{name} .*Found none'):
    store.open_store(folder)
  with pytest.raises(errors.StoreError, match=f'{name} .*cannot'):
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
