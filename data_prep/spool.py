"""Regroups a stream of texts by user, on disk."""

from collections.abc import Callable, Iterable, Iterator
import dataclasses
import os
from typing import Any

from data_prep import errors
from data_prep import parallel
from data_prep import sqlite_writer
from data_prep.sources import base
from data_prep.sources import sqlite

_CHUNK_RECORDS = 512
# Several chunks are in memory at a time, and a record may be megabytes long.
_CHUNK_CHARACTERS = 2**22

# (user, split, content)
_Record = tuple[str, str, Any]


class SpooledSource(sqlite.SqliteSource):
  """A stream that was regrouped by user.

  Attributes:
    spooled: Counts of rows read and skipped while regrouping.
  """

  def __init__(self, path: os.PathLike | str, name: str, spooled: base.Tally):
    super().__init__(path)
    self._name = name
    self.spooled = spooled


@dataclasses.dataclass(frozen=True)
class _SplitSentences:
  """Splits the texts of a chunk of records; runs in any process."""

  source: base.RecordSource

  def __call__(self, chunk: list[_Record]):
    split = self.source.split_sentences
    return [(user, name, split(content)) for user, name, content in chunk]


def _num_characters(content: Any) -> int:
  if isinstance(content, str):
    return len(content)
  return sum(len(part) for part in content if isinstance(part, str))


def _chunks(records: Iterable[_Record]) -> Iterator[list[_Record]]:
  """Yields chunks of bounded size; a large record is a chunk of its own."""
  chunk: list[_Record] = []
  size = 0
  for record in records:
    more = _num_characters(record[2])
    if chunk and (
      len(chunk) == _CHUNK_RECORDS or size + more > _CHUNK_CHARACTERS
    ):
      yield chunk
      chunk, size = [], 0
    chunk.append(record)
    size += more
  if chunk:
    yield chunk


def regroup(
  source: base.RecordSource,
  path: os.PathLike | str,
  *,
  num_processes: int,
  on_progress: Callable[[str, int, int, str], None],
) -> SpooledSource:
  """Reads a stream once and writes it to a database, grouped by user.

  Args:
    source: The stream.
    path: File of the temporary database.
    num_processes: Number of processes that split text into sentences.
    on_progress: Called with the name of the step, the bytes read, the total
      bytes and the unit.

  Returns:
    A source of the same sentences. Each user has them in the order of the
    stream.

  Raises:
    SourceError: If the stream cannot be read, too many rows are malformed, or
      no sentence is usable.
  """

  def chunks() -> Iterator[list[_Record]]:
    for chunk in _chunks(source.records()):
      yield chunk
      on_progress('reading', source.bytes_read, source.num_bytes, 'B')

  num_sentences = 0

  def sentences() -> Iterator[tuple[str, str, str]]:
    nonlocal num_sentences
    for chunk in parallel.ordered_map(
      _SplitSentences(source), chunks(), num_processes
    ):
      for user, split, texts in chunk:
        if not texts:
          source.tally.skipped[base.NO_SENTENCE] += 1
        num_sentences += len(texts)
        for tokens in texts:
          yield user, split, tokens

  sqlite_writer.write_sqlite(path, sentences(), all_features=False)
  source.tally.check(source.name)
  if not num_sentences:
    raise errors.SourceError(
      f'{source.name} has no usable sentence in {source.tally.rows} rows.'
    )
  return SpooledSource(path, source.name, source.tally)
