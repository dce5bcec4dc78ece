"""Regroups a stream of texts by user, on disk."""

from collections.abc import Callable, Iterable, Iterator
import os

from data_prep import errors
from data_prep import parallel
from data_prep import tokenizer
from data_prep.sources import base
from data_prep.sources import sqlite

_CHUNK_RECORDS = 512
# Several chunks are in memory at a time, and a record may be megabytes long.
_CHUNK_CHARACTERS = 2**22


def _chunks(records: Iterable[base.Record]) -> Iterator[list[base.Record]]:
  """Yields chunks of bounded size; a large record is a chunk of its own."""
  chunk: list[base.Record] = []
  size = 0
  for record in records:
    more = len(record.text)
    if chunk and (
      len(chunk) == _CHUNK_RECORDS or size + more > _CHUNK_CHARACTERS
    ):
      yield chunk
      chunk, size = [], 0
    chunk.append(record)
    size += more
  if chunk:
    yield chunk


def _split_sentences(
  chunk: list[base.Record],
) -> list[tuple[str, list[str]]]:
  """Returns the sentences of texts: most of the work, in any process."""
  split = (tokenizer.split_sentences, tokenizer.split_html)
  return [(user, split[is_html](text)) for user, text, is_html in chunk]


def regroup(
  source: base.RecordSource,
  path: os.PathLike | str,
  *,
  num_processes: int,
  on_progress: Callable[[str, int, int, str], None],
) -> sqlite.SqliteSource:
  """Reads a stream once and writes it to a database, grouped by user.

  Args:
    source: The stream.
    path: File of the temporary database.
    num_processes: Number of processes that split text into sentences.
    on_progress: Called with the name of the step, the bytes read, the total
      bytes and the unit.

  Returns:
    A source of the same name and sentences. Each user has them in the order of
    the stream.

  Raises:
    SourceError: If the stream cannot be read, too many rows are malformed, or
      no sentence is usable.
  """

  def chunks() -> Iterator[list[base.Record]]:
    for chunk in _chunks(source.records()):
      yield chunk
      on_progress('reading', source.bytes_read, source.num_bytes, 'B')

  num_sentences = 0

  def sentences() -> Iterator[tuple[str, str]]:
    nonlocal num_sentences
    for chunk in parallel.ordered_map(
      _split_sentences, chunks(), num_processes
    ):
      for user, texts in chunk:
        if not texts:
          source.tally.skipped[base.NO_SENTENCE] += 1
        num_sentences += len(texts)
        for tokens in texts:
          yield user, tokens

  sqlite.write_sqlite(path, sentences())
  source.tally.check(source.name)
  if not num_sentences:
    raise errors.SourceError(
      f'{source.name} has no usable sentence in {source.tally.rows} rows.'
    )
  grouped = sqlite.SqliteSource(path)
  grouped.name = source.name
  return grouped
