"""Writes SQLite databases with the schema of TFF's StackOverflow data."""

from collections.abc import Iterable
import os
import pathlib
import sqlite3

from data_prep import errors
from data_prep import example_proto
from data_prep.sources import base

_SCHEMA = """
  CREATE TABLE examples (
    split_name TEXT NOT NULL,
    client_id TEXT NOT NULL,
    serialized_example_proto BLOB NOT NULL);
  CREATE TABLE client_metadata (
    client_id TEXT NOT NULL,
    split_name TEXT NOT NULL,
    num_examples INTEGER NOT NULL);
"""
# The index comes first, so that counting and reading by user need no sort.
_FINISH = """
  CREATE INDEX examples_by_client ON examples (client_id, split_name);
  INSERT INTO client_metadata
    SELECT client_id, split_name, COUNT(*) FROM examples
    GROUP BY client_id, split_name;
"""


def _set_temporary_folder(connection: sqlite3.Connection, folder: str) -> None:
  # SQLite reads SQLITE_TMPDIR only once, before it can be set here.
  quoted = folder.replace("'", "''")
  connection.execute(f"PRAGMA temp_store_directory = '{quoted}'")


def write_sqlite(
  path: os.PathLike | str,
  sentences: Iterable[tuple[str, str, str]],
  *,
  all_features: bool = True,
) -> None:
  """Writes sentences, in any order, to a database indexed by user.

  The file only appears under its name once it is complete.

  Args:
    path: File of the database. An existing one is replaced.
    sentences: Tuples (user, split, tokens separated by spaces).
    all_features: See `example_proto.encode_tokens`.

  Raises:
    SourceError: If SQLite cannot write, for instance on a full disk.
  """
  path = pathlib.Path(path)
  partial = path.with_name(f'.{path.name}.partial')
  partial.unlink(missing_ok=True)
  rows = (
    (
      split,
      user,
      example_proto.encode_tokens(tokens.encode(), all_features=all_features),
    )
    for user, split, tokens in sentences
  )
  try:
    connection = sqlite3.connect(partial, isolation_level=None)
    try:
      # An interrupted file is never used.
      connection.execute('PRAGMA journal_mode = OFF')
      connection.execute('PRAGMA synchronous = OFF')
      # Sorting for the index uses temporary files. Put them beside the
      # database, where there is space, not into /var/tmp.
      connection.execute('PRAGMA temp_store = FILE')
      _set_temporary_folder(connection, str(path.parent.absolute()))
      connection.executescript(_SCHEMA)
      connection.execute('BEGIN')
      connection.executemany('INSERT INTO examples VALUES (?, ?, ?)', rows)
      connection.execute('COMMIT')
      connection.executescript(_FINISH)
    finally:
      try:
        _set_temporary_folder(connection, '')
      finally:
        connection.close()
    os.replace(partial, path)
  except sqlite3.Error as e:
    raise errors.SourceError(
      f'{path.name} could not be written: {e}. Is the disk full?'
    ) from e
  finally:
    partial.unlink(missing_ok=True)


def export_sqlite(source: base.Source, path: os.PathLike | str) -> None:
  """Writes a source to a database with TFF's schema.

  Args:
    source: The source. Its users and splits are kept.
    path: File of the database. An existing one is replaced.

  Raises:
    SourceError: If SQLite cannot write, for instance on a full disk.
  """

  def sentences():
    for split in source.splits:
      users = source.users(split)
      for user, count in zip(
        users.ids, users.num_sentences.tolist(), strict=True
      ):
        for tokens in source.sentences(user, split, 0, count):
          if tokens:
            yield user, split, tokens

  write_sqlite(path, sentences())
