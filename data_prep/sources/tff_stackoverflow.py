"""TFF's StackOverflow data, downloaded by TFF and read directly."""

import os
import pathlib
from typing import Optional

from data_prep import errors
from data_prep.sources import sqlite

_DATABASE = 'stackoverflow.sqlite'


class TffStackOverflowSource(sqlite.SqliteSource):
  """The database of `tff.simulation.datasets.stackoverflow.load_data`.

  TFF downloads it once. The sentences are then read from the file, many times
  faster than through `tf.data`. The words are TFF's own counts.

  Example:

  ```
  source = TffStackOverflowSource()  # TFF downloads its database.
  ```
  """

  def __init__(self, cache_dir: Optional[os.PathLike | str] = None):
    """Downloads the database if it is missing.

    Args:
      cache_dir: Folder of the download. Default: TFF's own.

    Raises:
      SourceError: If TFF is not installed, or the download fails.
    """
    self._cache_dir = None if cache_dir is None else os.fspath(cache_dir)
    path = pathlib.Path(self._cache_dir or '~/.tff').expanduser() / _DATABASE
    try:
      _tff_stackoverflow().load_data(cache_dir=self._cache_dir)
    except ImportError as e:
      raise errors.SourceError(
        'The source tff needs TensorFlow Federated, which is not installed.'
      ) from e
    except Exception as e:
      # TFF does not notice a download that stopped early: from then on, it
      # takes the partial file for the database.
      raise errors.SourceError(
        f'TFF could not load its StackOverflow data: {e}. If a download was'
        f' interrupted, remove {path} and try again, or read your own database'
        ' with sqlite:PATH.'
      ) from e
    super().__init__(path)
    self.name = 'tff:stackoverflow'

  def ranked_words(self, size: int) -> Optional[list[str]]:
    counts = _tff_stackoverflow().load_word_counts(
      cache_dir=self._cache_dir, vocab_size=size
    )
    return list(counts)


def _tff_stackoverflow():
  import pda_fed.tff  # noqa: F401, I001  Makes TFF importable.
  import tensorflow_federated as tff

  return tff.simulation.datasets.stackoverflow
