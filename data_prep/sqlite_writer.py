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
  path: os.PathLike | str, sentences: Iterable[tuple[str, str]]
) -> None:
  """Writes sentences, in any order, to a new database indexed by user.

  Args:
    path: File of the database. It is not usable if the writing failed.
    sentences: Tuples (user, tokens separated by spaces).

  Raises:
    SourceError: If SQLite cannot write, for instance on a full disk.
  """
  path = pathlib.Path(path)
  rows = (
    (base.TRAIN, user, example_proto.encode_tokens(tokens.encode()))
    for user, tokens in sentences
  )
  try:
    connection = sqlite3.connect(path, isolation_level=None)
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
  except sqlite3.Error as e:
    raise errors.SourceError(
      f'{path.name} could not be written: {e}. Is the disk full?'
    ) from e
