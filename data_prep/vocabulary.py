"""Vocabularies: the origin of the words, and what it reveals.

A vocabulary that was counted on private users' text is a release of its own:
the epsilon of training does not cover it. Each origin states whether it is
covered, and the manifest of a token store repeats the statement.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import os
import pathlib
import sqlite3
from typing import Optional

from data_prep import errors
from pda_fed.common import validate

# Maximum number of distinct words in memory: a few hundred megabytes.
_MAX_WORDS_IN_MEMORY = 2_000_000

AUTO = 'auto'  # The source's word counts if it has any, else public users.
SOURCE = 'source'
GENERATOR = 'generator'  # SOURCE, if the source is a generator.
PUBLIC = 'public'
TRAIN = 'train'
FILE = 'file'

# Whether epsilon covers the vocabulary (None: unknown), and why.
COVERAGE: dict[str, tuple[Optional[bool], str]] = {
  SOURCE: (
    False,
    "Not covered by epsilon: the words are the source's own list, and the"
    ' source does not say that it was made with privacy.',
  ),
  GENERATOR: (
    True,
    "Covered: the words are the generator's own list, which no user's text"
    ' had a part in.',
  ),
  PUBLIC: (
    True,
    'Covered: the words were counted on public users alone, so the list reveals'
    " nothing of private users' text.",
  ),
  TRAIN: (
    False,
    "Not covered by epsilon: the words were counted on private users' text"
    " without noise, and a rare word may be one person's.",
  ),
  FILE: (
    None,
    'Covered only if the file was made without the text of private users:'
    ' nothing here can tell.',
  ),
}


# The paper's size.
_USUAL_SIZE = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyConfig:
  """Which vocabulary to use.

  Example:

    >>> VocabularyConfig(size=990).size
    990

  Attributes:
    origin: Origin of the words: 'auto', 'source', 'public', 'train' or
      'file:PATH'.
    size: Number of words, without special tokens. None means 10,000, or all
      words if there are fewer.
  """

  origin: str = AUTO
  size: Optional[int] = None

  def __post_init__(self):
    if self.size is not None:
      validate.integers(1, vocabulary_size=self.size)
      # Ids have 16 bits, and four of them are special.
      validate.in_range(1, 2**16 - 4, vocabulary_size=self.size)
    origins = (AUTO, SOURCE, PUBLIC, TRAIN)
    if self.origin not in origins and not self.path:
      raise ValueError(
        f'vocabulary must have the origin {", ".join(origins)} or'
        f' {FILE}:PATH. Found {self.origin!r}.'
      )

  @property
  def path(self) -> str:
    """The file of the words; '' for another origin."""
    kind, _, path = str(self.origin).partition(':')
    return path if kind == FILE else ''

  @property
  def most_words(self) -> int:
    """Maximum number of words, without special tokens."""
    return _USUAL_SIZE if self.size is None else self.size

  def take(self, words: Sequence[str], where: str) -> list[str]:
    """Returns as many of the first words as the settings ask for.

    Args:
      words: Words, most frequent first.
      where: Origin of the words, for error messages.

    Raises:
      ValueError: If there are too few words.
    """
    if not words and self.size is None:
      raise ValueError(
        f"vocabulary must have words. Found none in {where}. Choose 'source',"
        " 'public', 'train' or a file."
      )
    if self.size is not None and len(words) < self.size:
      raise ValueError(
        f'vocabulary_size must be at most {len(words)}, the number of distinct'
        f' words of {where}. Found {self.size}.'
      )
    return list(words[: self.most_words])


class WordCounter:
  """Counts words exactly, in bounded memory: counts go to a database."""

  def __init__(
    self, folder: os.PathLike | str, max_in_memory: int = _MAX_WORDS_IN_MEMORY
  ):
    """Makes an empty counter; its file in the folder is removed by `top`."""
    self._path = pathlib.Path(folder) / 'words.sqlite'
    self._max_in_memory = max_in_memory
    self._counts: collections.Counter[str] = collections.Counter()
    self._database = sqlite3.connect(self._path)
    self._database.execute('PRAGMA journal_mode = OFF')
    self._database.execute(
      'CREATE TABLE words (word TEXT PRIMARY KEY, count INTEGER) WITHOUT ROWID'
    )

  def add(self, counts: Mapping[str, int]) -> None:
    self._counts.update(counts)
    if len(self._counts) > self._max_in_memory:
      self._store()

  def _store(self) -> None:
    try:
      self._database.executemany(
        'INSERT INTO words VALUES (?, ?) ON CONFLICT'
        ' DO UPDATE SET count = count + excluded.count',
        sorted(self._counts.items()),
      )
    except sqlite3.Error as e:
      raise errors.SourceError(
        f'The counts of words could not be written: {e}. Is the disk full?'
      ) from e
    self._counts.clear()

  def top(self, size: int) -> list[str]:
    """Returns the most frequent words, ties in alphabetical order."""
    self._store()
    rows = self._database.execute(
      'SELECT word FROM words ORDER BY count DESC, word LIMIT ?', (size,)
    ).fetchall()
    self._database.close()
    self._path.unlink()
    return [word for (word,) in rows]
