"""Interfaces of sources of text by user, and counts of rows.

There are two kinds. A `Source` knows its users and their numbers of sentences
before any text is read, and reads any user's sentences; token stores are made
from it. A `RecordSource` is a stream in which a user's texts may be anywhere;
`data_prep.spool` regroups it into a `Source`.
"""

import abc
import collections
from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any, Optional

from data_prep import errors
from data_prep.sources import files
import numpy as np

TRAIN = 'train'
HELDOUT = 'heldout'
TEST = 'test'
SPLITS = (TRAIN, HELDOUT, TEST)

# Reasons why a row is not used. The first two are faults of the data; too many
# of them are an error.
MALFORMED = 'malformed rows'
NOT_UTF8 = 'rows that are not UTF-8'
DUPLICATE = 'rows with an id seen before'
NO_USER = 'rows without a user'
OTHER_KIND = 'rows that are neither question, answer nor comment'
NO_SENTENCE = 'rows without a usable sentence'

_MAX_FAULTY_SHARE = 0.01
# Maximum number of characters of an id, as all ids are held in memory.
MAX_ID_LENGTH = 1024


@dataclasses.dataclass
class Tally:
  """Counts of rows read, and of rows not used by reason.

  Example: see `SyntheticSource`.

  Attributes:
    rows: Number of rows, used or not.
    skipped: For each reason, the number of rows not used.
    first_fault: Location and fault of the first faulty row, if the source
      reports it.
  """

  rows: int = 0
  skipped: collections.Counter = dataclasses.field(
    default_factory=collections.Counter
  )
  first_fault: str = ''

  def add(self, other: 'Tally') -> None:
    self.rows += other.rows
    self.skipped.update(other.skipped)
    self.first_fault = self.first_fault or other.first_fault

  def add_fault(self, reason: str, fault: str) -> None:
    """Counts a skipped row, and keeps the first such fault.

    Args:
      reason: `MALFORMED` or `NOT_UTF8`.
      fault: Location and fault of the row.
    """
    self.skipped[reason] += 1
    self.first_fault = self.first_fault or fault

  def take(self) -> 'Tally':
    """Returns the counts since the last call, and resets them."""
    taken = Tally(self.rows, self.skipped, self.first_fault)
    self.rows, self.skipped = 0, collections.Counter()
    self.first_fault = ''
    return taken

  @property
  def num_faulty(self) -> int:
    """Number of rows that are malformed or not UTF-8."""
    return self.skipped[MALFORMED] + self.skipped[NOT_UTF8]

  def check(self, name: str) -> None:
    """Raises if too many rows are faulty.

    Args:
      name: Name of the source, for the message.

    Raises:
      SourceError: If more than 1 % of the rows are malformed or not UTF-8.
    """
    faulty = self.num_faulty
    if faulty > _MAX_FAULTY_SHARE * self.rows:
      first = f' The first is {self.first_fault}.' if self.first_fault else ''
      raise errors.SourceError(
        f'{name}: {faulty} of {self.rows} rows are faulty'
        f' ({self.skipped[MALFORMED]} malformed, {self.skipped[NOT_UTF8]} not'
        f' UTF-8). At most {_MAX_FAULTY_SHARE:.0%} may be faulty.{first} Is'
        ' this the right file, and is it complete?'
      )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class UserCounts:
  """Users of a split.

  Example: see `SyntheticSource`.

  Attributes:
    ids: The users' ids, ascending, each once.
    num_sentences: Number of sentences of each user.
  """

  ids: tuple[str, ...]
  num_sentences: np.ndarray


class UserSource(abc.ABC):
  """Users with known numbers of rows, by which they are assigned.

  Example: see `SyntheticSource`.
  """

  @property
  @abc.abstractmethod
  def name(self) -> str:
    """Name in messages and the manifest, without folders of this machine."""

  @property
  @abc.abstractmethod
  def splits(self) -> tuple[str, ...]:
    """The splits of the source, out of `SPLITS`; always with `TRAIN`."""

  @abc.abstractmethod
  def users(self, split: str) -> UserCounts:
    """Returns the users of a split, without reading their text."""


class Source(UserSource):
  """Text of users with known numbers of sentences.

  Sources are sent to other processes, so they must be picklable.

  Example: see `SyntheticSource`.

  Attributes:
    tally: Counts of rows read and skipped so far.
  """

  def __init__(self):
    self.tally = Tally()

  @abc.abstractmethod
  def sentences(
    self, user: str, split: str, start: int, stop: int
  ) -> list[str]:
    """Reads sentences of a user.

    Args:
      user: The user's id.
      split: The split.
      start: First sentence, counted within the user's sentences of the split.
      stop: One past the last sentence.

    Returns:
      For each sentence, its tokens separated by spaces; '' for an unusable
      sentence, which `tally` counts.
    """

  def ranked_words(self, size: int) -> Optional[list[str]]:
    """Returns the source's own most frequent words; None if it has none.

    Args:
      size: Maximum number of words.
    """
    del size
    return None

  @property
  def words_reveal_users(self) -> bool:
    """Whether `ranked_words` was made from users' text."""
    return True


class RecordSource(abc.ABC):
  """A stream of texts, in which a user's texts may be anywhere.

  Example: see `JsonlSource`.

  Attributes:
    tally: Counts of rows read and skipped so far.
  """

  def __init__(self):
    self.tally = Tally()

  @property
  @abc.abstractmethod
  def name(self) -> str:
    """Name in messages and the manifest, without folders of this machine."""

  @property
  def notes(self) -> Mapping[str, list[str]]:
    """Notes on how the source was read, for the manifest."""
    return {}

  @property
  @abc.abstractmethod
  def num_bytes(self) -> int:
    """Size of the files, to measure progress."""

  @property
  def bytes_read(self) -> int:
    """Number of bytes read so far."""
    return 0

  @abc.abstractmethod
  def records(self) -> Iterator[tuple[str, str, Any]]:
    """Yields (user, split, content) in the order of the files."""

  @abc.abstractmethod
  def split_sentences(self, content: Any) -> list[str]:
    """Returns the sentences of a content, with tokens separated by spaces.

    This is most of the work, and may run in another process.

    Args:
      content: A content that `records` yielded.
    """


class LineSource(RecordSource):
  """A stream that reads the lines of files with `_reader`.

  Example: see `JsonlSource`.
  """

  _reader: files.LineReader

  @property
  def num_bytes(self) -> int:
    return self._reader.num_bytes

  @property
  def bytes_read(self) -> int:
    return self._reader.bytes_read


def is_encodable(text: str) -> bool:
  """Returns whether a text has no lone surrogates, which UTF-8 cannot hold.

  Args:
    text: The text.
  """
  try:
    text.encode()
  except UnicodeEncodeError:
    return False
  return True
