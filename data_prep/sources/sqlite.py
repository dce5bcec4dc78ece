"""SQLite databases with the schema of TFF's StackOverflow data.

There are two tables: `examples` with `client_id`, `split_name` and
`serialized_example_proto`, one row per sentence, and `client_metadata` with
`client_id`, `split_name` and `num_examples`. Reading by user needs an index of
`examples` that begins with `client_id`, as in TFF's file.
"""

import collections
from collections.abc import Iterable
import contextlib
import os
import pathlib
import sqlite3
from typing import NoReturn, Optional

from data_prep import errors
from data_prep import example_proto
from data_prep.sources import base
import numpy as np
from pda_fed.common import validate

_COLUMNS = {
  'examples': {'client_id', 'split_name', 'serialized_example_proto'},
  'client_metadata': {'client_id', 'split_name', 'num_examples'},
}
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


class SqliteSource(base.Source):
  """A database with an index by user.

  Example:

  ```
  source = SqliteSource('stackoverflow.sqlite')
  ```
  """

  def __init__(self, path: os.PathLike | str):
    """Opens the database.

    Args:
      path: File of the database.

    Raises:
      FileNotFoundError: If there is no such file.
      SourceError: If the file is not a database, has another schema or no index
        by user, or its tables contradict each other.
    """
    self._path = pathlib.Path(path).absolute()
    super().__init__(f'sqlite:{self._path.name}')
    if not self._path.is_file():
      raise FileNotFoundError(f'sqlite: there is no file {os.fspath(path)}.')
    self._connection: Optional[sqlite3.Connection] = None
    with self._errors():
      for table, wanted in _COLUMNS.items():
        self._check_columns(table, wanted)
      if not self._is_indexed():
        self._fail(
          'must have an index by user. Make one: sqlite3 FILE "CREATE INDEX'
          ' by_client ON examples (client_id COLLATE BINARY)".'
        )
      self._split_names = self._read_split_names()
      self.splits = tuple(self._split_names)
      # Users and sentences that are in one table only would be lost silently.
      self._check_counts()

  def __getstate__(self):
    return {**self.__dict__, '_connection': None}

  @contextlib.contextmanager
  def _errors(self):
    """Turns errors of SQLite into `SourceError`."""
    try:
      yield
    # Messages may quote a damaged schema, which need not be UTF-8.
    except (sqlite3.Error, UnicodeDecodeError) as e:
      raise errors.SourceError(
        f'{self._path.name} cannot be read as a SQLite database: {e}. Is the'
        ' download or copy complete?'
      ) from e

  def _fail(self, what: str) -> NoReturn:
    raise errors.SourceError(f'{self._path.name}: the database {what}')

  def _query(self, sql: str, *arguments) -> sqlite3.Cursor:
    # Opened on demand, in any process.
    if self._connection is None:
      # Not sqlite3.connect(path), which would create a missing file.
      uri = f'{self._path.as_uri()}?mode=ro'
      self._connection = sqlite3.connect(uri, uri=True)
    return self._connection.execute(sql, arguments)

  def _check_columns(self, table: str, wanted: set[str]) -> None:
    missing = wanted - {
      r[1] for r in self._query(f'PRAGMA table_info({table})')
    }
    if missing:
      self._fail(
        f'must have the schema of TFF data: the table {table} must have the'
        f' columns {", ".join(sorted(wanted))}. Missing:'
        f' {", ".join(sorted(missing))}.'
      )

  def _is_indexed(self) -> bool:
    """Returns whether an index finds the rows of a user."""
    for row in self._query('PRAGMA index_list(examples)').fetchall():
      first = self._query(
        'SELECT name, coll FROM pragma_index_xinfo(?) WHERE key', row[1]
      ).fetchone()
      is_partial = bool(row[4])
      if first == ('client_id', 'BINARY') and not is_partial:
        return True
    return False

  def _read_split_names(self) -> dict[str, str]:
    """Returns the name in the database of each split."""
    rows = self._query('SELECT DISTINCT split_name FROM client_metadata')
    names = {str(row[0]) for row in rows}
    if base.TRAIN in names and names <= set(base.SPLITS):
      return {name: name for name in base.SPLITS if name in names}
    if len(names) == 1:  # TFF's own writer calls it "default_split".
      return {base.TRAIN: names.pop()}
    self._fail(
      f'must have the splits {", ".join(base.SPLITS)}, or a single one. Found'
      f' {", ".join(sorted(names)) or "none"}.'
    )

  def _check_counts(self) -> None:
    """Compares the number of sentences of each user in both tables."""
    promised: collections.Counter = collections.Counter()
    for split in self.splits:
      users = self.users(split)
      counts = users.num_sentences.tolist()
      promised.update(dict(zip(users.ids, counts, strict=True)))
    # Only reads the index, which is a small part of the file. Reading compares
    # the splits. Other collations take Bob and bob for one user.
    rows = self._query(
      'SELECT client_id, COUNT(*) FROM examples'
      ' GROUP BY client_id COLLATE BINARY'
    )
    found = collections.Counter(dict(rows.fetchall()))
    differing = [u for u in found | promised if found[u] != promised[u]]
    if differing:
      user = min(differing, key=str)
      self._fail(
        f'is incomplete or damaged: client_metadata promises {promised[user]}'
        f' sentences of {user!r}, examples has {found[user]};'
        f' {len(differing)} such numbers differ.'
      )

  def users(self, split: str) -> base.UserCounts:
    validate.one_of(self.splits, split=split)
    with self._errors():
      rows = self._query(
        'SELECT client_id, num_examples FROM client_metadata'
        ' WHERE split_name COLLATE BINARY = ?',
        self._split_names[split],
      ).fetchall()
    counts: dict[str, int] = {}
    for user, count in rows:
      if not isinstance(user, str) or len(user) > base.MAX_ID_LENGTH:
        self._fail(
          f'must have client_ids of at most {base.MAX_ID_LENGTH} characters.'
          f' Found {user!r:.80}.'
        )
      if not isinstance(count, int) or count < 0 or user in counts:
        self._fail(
          f'must list {user!r} once in client_metadata of the split {split},'
          f' with a number of examples. Found {count!r}.'
        )
      counts[user] = count
    ids = tuple(sorted(counts))
    return base.UserCounts(
      ids=ids, num_sentences=np.array([counts[u] for u in ids], np.int64)
    )

  def sentences(
    self, user: str, split: str, start: int, stop: int
  ) -> list[str]:
    with self._errors():
      rows = self._query(
        'SELECT serialized_example_proto FROM examples'
        ' WHERE client_id COLLATE BINARY = ? AND split_name COLLATE BINARY = ?'
        ' ORDER BY rowid LIMIT ? OFFSET ?',
        user,
        self._split_names[split],
        stop - start,
        start,
      ).fetchall()
    if len(rows) != stop - start:
      self._fail(
        f'is incomplete: client_metadata promises {stop} sentences of {user!r}'
        f' in the split {split}, examples has {start + len(rows)}.'
      )
    return [self._parse(row[0]) for row in rows]

  def _parse(self, example: bytes) -> str:
    """Counts an example and returns its tokens; '' if it has none."""
    self.tally.rows += 1
    try:
      tokens = example_proto.parse_tokens(example).decode()
    except UnicodeDecodeError:  # Before ValueError, its base class.
      self.tally.skipped[base.NOT_UTF8] += 1
      return ''
    except (ValueError, TypeError):
      self.tally.skipped[base.MALFORMED] += 1
      return ''
    if not tokens or tokens.isspace():
      self.tally.skipped[base.NO_SENTENCE] += 1
      return ''
    return tokens


def _set_temporary_folder(connection: sqlite3.Connection, folder: str) -> None:
  # SQLite reads SQLITE_TMPDIR only once, before it can be set here.
  quoted = folder.replace("'", "''")
  connection.execute(f"PRAGMA temp_store_directory = '{quoted}'")


def write_sqlite(
  path: os.PathLike | str, sentences: Iterable[tuple[str, str]]
) -> None:
  """Writes sentences, in any order, to a new database indexed by user.

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
