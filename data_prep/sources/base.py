"""Interfaces of sources of text by user, and counts of rows.

There are two kinds. A `Source` knows its users and their numbers of sentences
before any text is read, and reads any user's sentences; token stores are made
from it. A `RecordSource` is a stream in which a user's texts may be anywhere;
`data_prep.spool` regroups it into a `Source`.
"""

import abc
import collections
from collections.abc import Iterable, Iterator
import dataclasses
import os
from typing import NamedTuple, Optional

from data_prep import errors
from data_prep import files
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

  Attributes:
    name: Name in messages and the manifest, without folders of this machine.
    splits: The splits of the source, out of `SPLITS`; always with `TRAIN`.
  """

  name: str
  splits: tuple[str, ...] = (TRAIN,)

  @abc.abstractmethod
  def users(self, split: str) -> UserCounts:
    """Returns the users of a split, without reading their text."""


class Source(UserSource):
  """Text of users with known numbers of sentences.

  Sources are sent to other processes, so they must be picklable.

  Example: see `SyntheticSource`.

  Attributes:
    tally: Counts of rows read and skipped so far.
    words_reveal_users: Whether `ranked_words` was made from users' text.
  """

  words_reveal_users = True

  def __init__(self, name: str):
    self.name = name
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


class Record(NamedTuple):
  """A text of a user, with any number of sentences.

  Example: see `JsonlSource`.

  Attributes:
    user: The user's id.
    text: Plain text, in which HTML symbols may be escaped, or HTML.
    is_html: Whether the text is HTML.
  """

  user: str
  text: str
  is_html: bool = False


class RecordSource(abc.ABC):
  """A stream of texts, in which a user's texts may be anywhere.

  Example: see `JsonlSource`.

  Attributes:
    name: Name in messages and the manifest, without folders of this machine.
    notes: Notes on how the source was read, for the manifest.
    tally: Counts of rows read and skipped so far.
    num_bytes: Size of all files, as stored.
    bytes_read: Number of bytes read so far, to measure progress.
  """

  def __init__(self, name: str, paths: Iterable[os.PathLike | str]):
    self.name = name
    self.notes: dict[str, list[str]] = {}
    self.tally = Tally()
    self.num_bytes = sum(os.stat(path).st_size for path in paths)
    self.bytes_read = 0

  @abc.abstractmethod
  def records(self) -> Iterator[Record]:
    """Yields texts in the order of the files, and counts rows."""

  def _lines(self, path: os.PathLike | str) -> Iterator[bytes]:
    """Yields the lines of one of the files; a very long one in pieces."""
    before = self.bytes_read
    with files.opened(path) as f:
      while line := f.readline(files.MAX_LINE):
        # The place in the file as stored, not in what is decompressed.
        self.bytes_read = before + os.lseek(f.fileno(), 0, os.SEEK_CUR)
        yield line
    self.bytes_read = before + os.stat(path).st_size

  def _is_somebody(self, user: str, where: str) -> bool:
    """Returns whether a row has a valid user; counts it if not."""
    if len(user) > MAX_ID_LENGTH:
      fault = f'"user" has more than {MAX_ID_LENGTH} characters'
      self.tally.add_fault(MALFORMED, f'{where}: {fault}')
    elif not is_encodable(user):
      self.tally.add_fault(NOT_UTF8, f'{where}: "user" is not UTF-8')
    elif not user:
      self.tally.skipped[NO_USER] += 1
    else:
      return True
    return False


def is_encodable(text: str) -> bool:
  """Returns whether a text has no lone surrogates, which UTF-8 cannot hold."""
  try:
    text.encode()
  except UnicodeEncodeError:
    return False
  return True
