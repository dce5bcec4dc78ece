"""TFF's data, with a small database in place of the download."""

import collections
import shutil

from data_prep import errors
from data_prep import sources
import pda_fed.tff  # noqa: F401 - It makes TFF importable.
import pytest
import tensorflow_federated as tff

_TFF = tff.simulation.datasets.stackoverflow
_USERS = {
  'train': {
    '1': ['use the source .', 'it works'],
    '2': ['thanks !'],
    '3': ['see <URL> .'],
  },
  'heldout': {'10': ['why ?']},
  'test': {'4': ['later .']},
}


@pytest.fixture
def download(tmp_path, monkeypatch, write_database):
  """Puts a database where TFF's download would be."""
  ready = write_database(tmp_path / 'ready.sqlite', _USERS)
  cache = tmp_path / 'cache'

  def get_compressed_file(origin, cache_dir=None):
    assert origin.endswith('/stackoverflow.sqlite.lzma')
    cache.mkdir(exist_ok=True)
    return shutil.copy(ready, f'{cache_dir}/stackoverflow.sqlite')

  monkeypatch.setattr(
    _TFF.load_data.__globals__['download'],
    'get_compressed_file',
    get_compressed_file,
  )
  return cache


def test_exact_tokens_and_splits(download):
  source = sources.open_source('tff', tff_cache_dir=download)
  assert source.name == 'tff:stackoverflow'
  assert source.splits == ('train', 'heldout', 'test')
  for split, users in _USERS.items():
    assert source.users(split).ids == tuple(sorted(users))
    for user, sentences in users.items():
      found = source.sentences(user, split, 0, len(sentences))
      assert found == sentences


def test_words_are_tffs(download, monkeypatch):
  def load_word_counts(cache_dir=None, vocab_size=None):
    counts = [('the', 9), ('a', 5), ('of', 2)]
    return collections.OrderedDict(counts[:vocab_size])

  monkeypatch.setattr(_TFF, 'load_word_counts', load_word_counts)
  source = sources.open_source('tff', tff_cache_dir=download)
  assert source.ranked_words(2) == ['the', 'a']
  assert source.words_reveal_users


def test_a_failed_download(tmp_path, monkeypatch):
  def fail(origin, cache_dir=None):
    raise OSError('no network')

  monkeypatch.setattr(
    _TFF.load_data.__globals__['download'], 'get_compressed_file', fail
  )
  with pytest.raises(errors.SourceError, match='no network.*sqlite:PATH'):
    sources.open_source('tff', tff_cache_dir=tmp_path)
