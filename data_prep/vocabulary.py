"""Vocabularies: the origin of the words, and what it reveals.

A vocabulary that was counted on private users' text is a release of its own:
the epsilon of training does not cover it. Each origin states whether it is
covered, and the manifest of a token store repeats the statement.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import enum
import heapq
import itertools
import os
import pathlib
import tempfile
from typing import Optional

from data_prep import errors
from pda_fed.common import validate

# Maximum number of distinct words in memory: a few hundred megabytes.
_MAX_WORDS_IN_MEMORY = 2_000_000


class Origin(enum.Enum):
  """Origin of a vocabulary."""

  AUTO = 'auto'  # The source's word counts if it has any, else public users.
  SOURCE = 'source'
  GENERATOR = 'generator'  # SOURCE, if the source is a generator.
  PUBLIC = 'public'
  TRAIN = 'train'
  FILE = 'file'


# Whether epsilon covers the vocabulary (None: unknown), and why.
COVERAGE: dict[Origin, tuple[Optional[bool], str]] = {
  Origin.SOURCE: (
    False,
    "Not covered by epsilon: the words are the source's own list, and the"
    ' source does not say that it was made with privacy.',
  ),
  Origin.GENERATOR: (
    True,
    "Covered: the words are the generator's own list, which no user's text"
    ' had a part in.',
  ),
  Origin.PUBLIC: (
    True,
    'Covered: the words were counted on public users alone, so the list reveals'
    " nothing of private users' text.",
  ),
  Origin.TRAIN: (
    False,
    "Not covered by epsilon: the words were counted on private users' text"
    " without noise, and a rare word may be one person's.",
  ),
  Origin.FILE: (
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
    origin: Origin of the words.
    size: Number of words, without special tokens. None means 10,000, or all
      words if there are fewer.
    path: The file, for `Origin.FILE`.
  """

  origin: Origin = Origin.AUTO
  size: Optional[int] = None
  path: Optional[os.PathLike | str] = None

  def __post_init__(self):
    validate.instances(Origin, origin=self.origin)
    if self.size is not None:
      validate.integers(1, vocabulary_size=self.size)
      # Ids have 16 bits, and four of them are special.
      validate.in_range(1, 2**16 - 4, vocabulary_size=self.size)
    if self.origin is Origin.GENERATOR:
      raise ValueError(
        "vocabulary must be 'source' for a generator's own words. Found"
        f' {self.origin.value!r}.'
      )
    if (self.origin is Origin.FILE) != (self.path is not None):
      raise ValueError(
        "vocabulary: a file must be given for the origin 'file', and only for"
        f' it. Found {self.origin.value!r} and {self.path!r}.'
      )

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


def _rank(item: tuple[str, int]) -> tuple[int, str]:
  # Ties are broken alphabetically, independent of the order of counting.
  return -item[1], item[0]


class WordCounter:
  """Counts words exactly, in bounded memory.

  If there are too many words for memory, counts are written to sorted files,
  which are merged at the end.
  """

  def __init__(
    self, folder: os.PathLike | str, max_in_memory: int = _MAX_WORDS_IN_MEMORY
  ):
    """Makes an empty counter.

    Args:
      folder: Folder for temporary files. `top` removes them.
      max_in_memory: Maximum number of distinct words in memory.
    """
    self._folder = pathlib.Path(folder)
    self._max_in_memory = max_in_memory
    self._counts = collections.Counter()
    self._files: list[pathlib.Path] = []

  def add(self, counts: Mapping[str, int]) -> None:
    self._counts.update(counts)
    if len(self._counts) > self._max_in_memory:
      self._spill()

  def _spill(self) -> None:
    handle, name = tempfile.mkstemp('.words', dir=self._folder)
    self._files.append(pathlib.Path(name))
    with open(handle, 'w', encoding='utf-8') as f:
      for word in sorted(self._counts):
        f.write(f'{word}\t{self._counts[word]}\n')
    self._counts.clear()

  def _merged(self) -> Iterable[tuple[str, int]]:
    def read(path):
      with open(path, encoding='utf-8') as f:
        for line in f:
          word, count = line.split('\t')
          yield word, int(count)

    runs = [*map(read, self._files), sorted(self._counts.items())]
    for word, items in itertools.groupby(
      heapq.merge(*runs), key=lambda item: item[0]
    ):
      yield word, sum(count for _, count in items)

  def top(self, size: int) -> list[str]:
    """Returns the most frequent words."""
    words = heapq.nsmallest(size, self._merged(), key=_rank)
    for path in self._files:
      path.unlink()
    self._files.clear()
    return [word for word, _ in words]


def read_words(path: os.PathLike | str) -> list[str]:
  """Reads a vocabulary: per line a word, or a word and its count.

  Args:
    path: A UTF-8 file with the most frequent word first.

  Returns:
    The words in the order of the file.

  Raises:
    OSError: If the file cannot be read.
    SourceError: If a line is malformed, a word occurs twice, or the file is not
      UTF-8.
  """
  name = pathlib.Path(path).name
  words: dict[str, int] = {}
  try:
    with open(path, encoding='utf-8-sig') as f:
      for number, line in enumerate(f, start=1):
        parts = line.split()
        if len(parts) not in (1, 2) or (
          len(parts) == 2 and not parts[1].isdigit()
        ):
          raise errors.SourceError(
            f'{name}, line {number}: must be a word, or a word and its count.'
            f' Found {line.strip()!r}.'
          )
        if parts[0] in words:
          raise errors.SourceError(
            f'{name}, line {number}: {parts[0]!r} is already on line'
            f' {words[parts[0]]}.'
          )
        words[parts[0]] = number
  except UnicodeDecodeError as e:
    raise errors.SourceError(f'{name} is not UTF-8: {e}.') from e
  return list(words)
