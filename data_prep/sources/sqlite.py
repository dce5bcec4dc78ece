"""Reads SQLite databases with the schema of TFF's StackOverflow data.

There are two tables: `examples` with `client_id`, `split_name` and
`serialized_example_proto`, one row per sentence, and `client_metadata` with
`client_id`, `split_name` and `num_examples`. Reading by user needs an index of
`examples` that begins with `client_id`, as in TFF's file. A database without
one is read as a stream (`SqliteScan`).
"""

import collections
from collections.abc import Iterator, Mapping
import contextlib
import os
import pathlib
import sqlite3
from typing import Optional

from data_prep import errors
from data_prep import example_proto
from data_prep.sources import base
import numpy as np
from pda_fed.common import validate

_COLUMNS = {
  'examples': {'client_id', 'split_name', 'serialized_example_proto'},
  'client_metadata': {'client_id', 'split_name', 'num_examples'},
}


class _Database:
  """A read-only connection, opened on demand, in any process."""

  def __init__(self, path: os.PathLike | str):
    self.path = pathlib.Path(path).absolute()
    if not self.path.is_file():
      raise FileNotFoundError(f'sqlite: there is no file {os.fspath(path)}.')
    self._connection: Optional[sqlite3.Connection] = None
    self._check_schema()

  def __getstate__(self):
    return {**self.__dict__, '_connection': None}

  @contextlib.contextmanager
  def errors(self):
    """Turns errors of SQLite into `SourceError`."""
    try:
      yield
    # Messages may quote a damaged schema, which need not be UTF-8.
    except (sqlite3.Error, UnicodeDecodeError) as e:
      raise errors.SourceError(
        f'{self.path.name} cannot be read as a SQLite database: {e}. Is the'
        ' download or copy complete?'
      ) from e

  def query(self, sql: str, *arguments) -> sqlite3.Cursor:
    if self._connection is None:
      # Not sqlite3.connect(path), which would create a missing file.
      uri = f'{self.path.as_uri()}?mode=ro'
      self._connection = sqlite3.connect(uri, uri=True)
      self._connection.text_factory = bytes
    return self._connection.execute(sql, arguments)

  def _check_schema(self) -> None:
    with self.errors():
      for table, wanted in _COLUMNS.items():
        rows = self.query(f'PRAGMA table_info({table})')
        missing = wanted - {self.text(row[1]) for row in rows}
        if missing:
          raise errors.SourceError(
            f'{self.path.name} must have the schema of TFF data: the table'
            f' {table} must have the columns {", ".join(sorted(wanted))}.'
            f' Missing: {", ".join(sorted(missing))}.'
          )
        self._check_collation(table)
      indices = self._indices()
      self.is_indexed = bool(indices)
      self._index_has_splits = any(b'split_name' in index for index in indices)
      self.split_names = self._split_names()

  def _check_collation(self, table: str) -> None:
    """Raises if SQLite treats distinct ids, such as Bob and bob, as equal."""
    row = self.query(
      "SELECT sql FROM sqlite_master WHERE type = 'table'"
      ' AND name = ? COLLATE NOCASE',
      table,
    ).fetchone()
    if row is None:
      return  # A view has no index.
    # SQLite only reports the collation of an index, so create one on an empty
    # table.
    with contextlib.closing(sqlite3.connect(':memory:')) as copy:
      copy.execute(self.text(row[0]))
      copy.execute(f'CREATE INDEX probe ON {table} (client_id, split_name)')
      columns = copy.execute(
        "SELECT name, coll FROM pragma_index_xinfo('probe') WHERE key"
      ).fetchall()
    for column, collation in columns:
      if collation.upper() != 'BINARY':
        raise errors.SourceError(
          f'{self.path.name}: {column} of the table {table} must have the'
          ' collation BINARY: others treat distinct ids as equal. Found'
          f' {collation}.'
        )

  def _indices(self) -> list[list[bytes]]:
    """Returns the columns of each index that can look up a user."""
    indices = []
    for row in self.query('PRAGMA index_list(examples)').fetchall():
      columns = self.query(
        'SELECT name, coll FROM pragma_index_xinfo(?) WHERE key',
        self.text(row[1]),
      ).fetchall()
      is_partial = bool(row[4])
      if columns[0] == (b'client_id', b'BINARY') and not is_partial:
        indices.append([name for name, _ in columns])
    return indices

  def _split_names(self) -> dict[str, str]:
    """Returns the name in the database of each split."""
    rows = self.query('SELECT DISTINCT split_name FROM client_metadata')
    names = {self.text(row[0]) for row in rows}
    if not names:
      raise errors.SourceError(f'{self.path.name} has no users.')
    if base.TRAIN in names and names <= set(base.SPLITS):
      return {name: name for name in base.SPLITS if name in names}
    if len(names) == 1:  # TFF's own writer calls it "default_split".
      return {base.TRAIN: names.pop()}
    raise errors.SourceError(
      f'{self.path.name}: splits must be {", ".join(base.SPLITS)}, or a single'
      f' one. Found {", ".join(sorted(names))}.'
    )

  def text(self, value: bytes) -> str:
    try:
      return value.decode()
    except (UnicodeDecodeError, AttributeError) as e:
      raise errors.SourceError(
        f'{self.path.name}: ids, splits and table names must be UTF-8 text.'
        f' Found {value!r}.'
      ) from e

  def users(self, split: str) -> base.UserCounts:
    validate.one_of(tuple(self.split_names), split=split)
    with self.errors():
      rows = self.query(
        'SELECT client_id, num_examples FROM client_metadata'
        ' WHERE split_name = ? ORDER BY client_id',
        self.split_names[split],
      ).fetchall()
    ids = tuple(self.text(row[0]) for row in rows)
    longest = max(map(len, ids), default=0)
    if longest > base.MAX_ID_LENGTH:
      raise errors.SourceError(
        f'{self.path.name}: client_id must have at most {base.MAX_ID_LENGTH}'
        f' characters. Found {longest}.'
      )
    for one, next_one in zip(ids, ids[1:], strict=False):
      if one == next_one:
        raise errors.SourceError(
          f'{self.path.name}: client_metadata lists {one!r} more than once in'
          f' the split {split}.'
        )
      if one > next_one:
        raise errors.SourceError(
          f'{self.path.name}: an index of client_metadata is damaged: it has'
          f' {one!r} before {next_one!r}.'
        )
    counts = [row[1] for row in rows]
    for user, count in zip(ids, counts, strict=True):
      if not isinstance(count, int) or count < 0:
        raise errors.SourceError(
          f'{self.path.name}: num_examples of {user!r} must be a non-negative'
          f' integer. Found {count!r}.'
        )
    return base.UserCounts(ids=ids, num_sentences=np.array(counts, np.int64))

  def promised(self) -> dict[tuple[str, str], int]:
    """Returns the counts of client_metadata by (user, database split)."""
    return {
      (user, name): count
      for split, name in self.split_names.items()
      for users in [self.users(split)]
      for user, count in zip(
        users.ids, users.num_sentences.tolist(), strict=True
      )
      if count
    }

  def check_counts(self) -> None:
    """Compares client_metadata with the counts of the index of examples.

    Raises:
      SourceError: If the number of sentences of a user differs.
    """
    promised = self.promised()
    # Only reads the index, which is a small part of the file.
    columns = 'client_id, split_name'
    if not self._index_has_splits:
      columns = "client_id, 'all splits'"
      totals: collections.Counter = collections.Counter()
      for (user, _), count in promised.items():
        totals[user, 'all splits'] += count
      promised = totals
    with self.errors():
      rows = self.query(
        f'SELECT {columns}, COUNT(*) FROM examples GROUP BY 1, 2'
      )
      found = {
        (self.text(client), self.text(split)): count
        for client, split, count in rows
      }
    self.compare(promised, found)

  def compare(
    self,
    promised: Mapping[tuple[str, str], int],
    found: Mapping[tuple[str, str], int],
  ) -> None:
    """Raises if the number of sentences of a user differs.

    Args:
      promised: Positive counts of client_metadata by (user, split).
      found: Positive counts of examples by (user, split).

    Raises:
      SourceError: If a count differs. The message names the first user.
    """
    if promised == found:
      return
    differing = [
      key
      for key in {**promised, **found}
      if promised.get(key, 0) != found.get(key, 0)
    ]
    user, split = min(differing)
    raise errors.SourceError(
      f'{self.path.name}: client_metadata promises'
      f' {promised.get((user, split), 0)} sentences of {user!r} in the split'
      f' {split}, examples has {found.get((user, split), 0)};'
      f' {len(differing)} such numbers differ. Is the database complete?'
    )


def _read_tokens(example: bytes, tally: base.Tally) -> str:
  """Counts an example and returns its tokens; '' if it has none."""
  tally.rows += 1
  try:
    tokens = example_proto.parse_tokens(example).decode()
  except UnicodeDecodeError:  # Before ValueError, its base class.
    tally.skipped[base.NOT_UTF8] += 1
    return ''
  except (ValueError, AttributeError, TypeError):
    tally.skipped[base.MALFORMED] += 1
    return ''
  if not tokens or tokens.isspace():
    tally.skipped[base.NO_SENTENCE] += 1
    return ''
  return tokens


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
      SourceError: If the file is not a database or has another schema, or its
        tables contradict each other.
    """
    super().__init__()
    self._database = _Database(path)
    self._name = f'sqlite:{self._database.path.name}'
    if self._database.is_indexed:
      # Users and sentences that are in one table only would be lost silently.
      self._database.check_counts()

  @property
  def name(self) -> str:
    return self._name

  @property
  def splits(self) -> tuple[str, ...]:
    return tuple(self._database.split_names)

  def users(self, split: str) -> base.UserCounts:
    return self._database.users(split)

  def sentences(
    self, user: str, split: str, start: int, stop: int
  ) -> list[str]:
    with self._database.errors():
      rows = self._database.query(
        'SELECT serialized_example_proto FROM examples'
        ' WHERE client_id = ? AND split_name = ?'
        ' ORDER BY rowid LIMIT ? OFFSET ?',
        user,
        self._database.split_names[split],
        stop - start,
        start,
      ).fetchall()
    if len(rows) != stop - start:
      raise errors.SourceError(
        f'{self._database.path.name}: client_metadata promises {stop} sentences'
        f' of {user!r} in the split {split}, examples has {start + len(rows)}.'
        ' Is the database complete?'
      )
    return self._parse([row[0] for row in rows])

  def _parse(self, examples: list[bytes]) -> list[str]:
    try:
      parse = example_proto.parse_tokens
      texts = [parse(example).decode() for example in examples]
    except (ValueError, AttributeError, TypeError):
      texts = ['']  # An example is faulty: parse one by one.
    if all(texts) and not any(map(str.isspace, texts)):
      self.tally.rows += len(texts)
      return texts
    return [_read_tokens(example, self.tally) for example in examples]


class SqliteScan(base.RecordSource):
  """A database without an index by user, read from start to end."""

  def __init__(self, path: os.PathLike | str):
    """Opens the database; see `SqliteSource` for arguments and errors."""
    super().__init__()
    self._database = _Database(path)
    self._rows_read = 0

  @property
  def name(self) -> str:
    return f'sqlite:{self._database.path.name}'

  @property
  def num_bytes(self) -> int:
    return self._database.path.stat().st_size

  @property
  def bytes_read(self) -> int:
    return int(self.num_bytes * min(1, self._rows_read / max(1, self._total)))

  def records(self) -> Iterator[tuple[str, str, str]]:
    splits = {
      name.encode(): split for split, name in self._database.split_names.items()
    }
    promised = self._database.promised()
    found: collections.Counter = collections.Counter()
    self._total = sum(promised.values())
    with self._database.errors():
      for client, split, example in self._database.query(
        'SELECT client_id, split_name, serialized_example_proto FROM examples'
        ' ORDER BY rowid'
      ):
        self._rows_read += 1
        if split not in splits:
          raise errors.SourceError(
            f'{self._database.path.name}: client_metadata does not list the'
            f' split {split!r} of examples.'
          )
        user = self._database.text(client)
        found[user, split.decode()] += 1
        tokens = _read_tokens(example, self.tally)
        if tokens:
          yield user, splits[split], tokens
    self._database.compare(promised, found)

  def split_sentences(self, content: str) -> list[str]:
    return [content]


def open_sqlite(path: os.PathLike | str) -> base.Source | base.RecordSource:
  """Opens a database by user, or as a stream if it has no index.

  Example:

  ```
  source = open_sqlite('stackoverflow.sqlite')
  ```

  Args:
    path: File of the database.

  Returns:
    A `SqliteSource` if it has an index by user, otherwise a `SqliteScan`.

  Raises:
    FileNotFoundError: If there is no such file.
    SourceError: If the file is not a database, or has another schema.
  """
  if _Database(path).is_indexed:
    return SqliteSource(path)
  return SqliteScan(path)
