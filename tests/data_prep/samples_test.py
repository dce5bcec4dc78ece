"""The sample of Stack Exchange users that ships with the repository."""

import hashlib
import lzma
import pathlib
import re

from data_prep import assignment
from data_prep import build
from data_prep import lists
from data_prep import sources
from data_prep import store as store_lib
from data_prep import summary
from data_prep import vocabulary
import pytest

_FOLDER = pathlib.Path(sources.__file__).parents[1] / 'samples/stackexchange'
_README = (_FOLDER / 'README.md').read_text(encoding='utf-8')
_MOST_BYTES = 3_000_000


@pytest.fixture(scope='module')
def store(tmp_path_factory):
  """The store that README's command writes."""
  public = lists.read_user_ids(_FOLDER / 'public_users.txt')
  return build.prepare(
    sources.open_source(f'jsonl:{_FOLDER}/users.jsonl.xz'),
    tmp_path_factory.mktemp('sample') / 'store',
    build.PrepareConfig(
      partition=assignment.PartitionConfig(
        seed=0, max_sentences=64, num_public_users=0
      ),
      vocabulary=vocabulary.VocabularyConfig(size=2000),
      public_user_ids=public,
      num_processes=1,
    ),
  )


def test_it_is_small():
  files = [path for path in _FOLDER.iterdir() if path.is_file()]
  assert sum(path.stat().st_size for path in files) <= _MOST_BYTES


def test_readme_has_sizes_and_sums():
  packed = (_FOLDER / 'users.jsonl.xz').read_bytes()
  for content in (packed, lzma.decompress(packed)):
    assert f'`{hashlib.sha256(content).hexdigest()}`' in _README
  for name in ('users.jsonl.xz', 'public_users.txt'):
    size = (_FOLDER / name).stat().st_size
    assert re.search(rf'\| `{name}` \| [^|]+ \| {size:,} \|', _README)


def test_readme_has_the_counts(store):
  table, _ = summary.format_summary(store.manifest).split('\n\n', 1)
  assert table in _README
  assert not any(store.manifest['skipped'].values())
  assert not any(store.manifest['left_out'].values())
  assert store.manifest['vocabulary']['covered_by_epsilon'] is True


def test_the_store_is_pinned(store):
  # Another store would silently change the recorded results.
  assert store_lib.file_sha256(store.path / store_lib.MANIFEST) == (
    '5c37947db3e0c086ae3e09e1698a0186be7954c3b761727f9fe9bc56bc4e52c3'
  )


def test_readme_has_the_sites(store):
  users = [user for group in assignment.GROUPS for user in store.users(group)]
  assert f'{len(users):,} users of 28 Stack Exchange sites' in _README
  assert len(set(users)) == len(users)  # Nobody is in two groups.
  sites = [user.partition('/')[0] for user in users]
  assert len(set(sites)) == 28
  text = ' '.join(_README.split())
  for site in set(sites):
    assert f'{site} {sites.count(site):,}' in text


def test_the_licence_is_named():
  text = (_FOLDER / 'LICENSE.md').read_text(encoding='utf-8')
  assert 'https://creativecommons.org/licenses/by-sa/4.0/' in text
  assert 'Changes were made' in text
