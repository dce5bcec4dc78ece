"""Databases of the TFF schema, whole and broken."""

import pickle
import sqlite3

from data_prep import errors
from data_prep import example_proto
from data_prep import spool
from data_prep import sqlite_writer
from data_prep.sources import base
from data_prep.sources import sqlite
import pytest

_SPLITS = {
  'train': {
    '00000001': ['how do i sort a list ?', 'use sorted .'],
    '00000002': ["it's in the docs : <URL>"],
  },
  'heldout': {'00000010': ['thanks !']},
  'test': {'00000001': ['later text .']},
}


def _read_all(source):
  return {
    split: {
      user: source.sentences(user, split, 0, int(count))
      for user, count in zip(users.ids, users.num_sentences, strict=True)
    }
    for split in source.splits
    for users in [source.users(split)]
  }


@pytest.mark.parametrize('index', ['client_id', 'client_id, split_name'])
def test_exact_tokens(tmp_path, write_database, index):
  path = write_database(tmp_path / 'a.sqlite', _SPLITS, index=index)
  source = sqlite.open_sqlite(path)
  assert isinstance(source, sqlite.SqliteSource)
  assert source.name == 'sqlite:a.sqlite'
  assert _read_all(source) == _SPLITS
  assert source.sentences('00000001', 'train', 1, 2) == ['use sorted .']
  assert source.tally.rows == 6
  assert not source.tally.skipped
  # Another process opens the file for itself.
  assert _read_all(pickle.loads(pickle.dumps(source))) == _SPLITS


def test_our_writer_keeps_the_order(tmp_path):
  path = tmp_path / 'b.sqlite'
  mixed = [('b', 'train', 'b1'), ('a', 'train', 'a1'), ('b', 'train', 'b2')]
  sqlite_writer.write_sqlite(path, mixed)
  assert _read_all(sqlite.open_sqlite(path)) == {
    'train': {'a': ['a1'], 'b': ['b1', 'b2']}
  }
  assert [p.name for p in tmp_path.iterdir()] == ['b.sqlite']


def test_sorting_spills_beside_the_database(tmp_path):
  folder = tmp_path / "it's here"
  folder.mkdir()

  def temporary_folder():  # Of SQLite, whatever the connection.
    connection = sqlite3.connect(':memory:')
    rows = connection.execute('PRAGMA temp_store_directory').fetchall()
    connection.close()
    return rows

  def sentences():
    assert temporary_folder() == [(str(folder),)]
    yield 'a', 'train', 'one'

  sqlite_writer.write_sqlite(folder / 'x.sqlite', sentences())
  assert temporary_folder() == []
  assert len(list(folder.iterdir())) == 1


def test_a_database_without_an_index_is_scanned(tmp_path, write_database):
  # As tff.simulation.datasets.save_to_sql_client_data writes it.
  users = {'default_split': {'b': ['b one', 'b two'], 'a': ['a one']}}
  path = write_database(tmp_path / 'c.sqlite', users, index=None)
  source = sqlite.open_sqlite(path)
  assert isinstance(source, sqlite.SqliteScan)
  grouped = spool.regroup(
    source,
    tmp_path / 'work.sqlite',
    num_processes=1,
    on_progress=lambda *_: None,
  )
  assert grouped.name == 'sqlite:c.sqlite'
  assert grouped.spooled.rows == 3
  assert _read_all(grouped) == {
    'train': {'a': ['a one'], 'b': ['b one', 'b two']}
  }


def test_missing_file(tmp_path):
  with pytest.raises(FileNotFoundError, match='no file .*nothing.sqlite'):
    sqlite.open_sqlite(tmp_path / 'nothing.sqlite')
  assert not list(tmp_path.iterdir())  # SQLite would have made one.


def test_not_a_database(tmp_path):
  path = tmp_path / 'x.sqlite'
  path.write_bytes(b'<html>not found</html>' * 100)
  with pytest.raises(errors.SourceError, match='x.sqlite .*not a database'):
    sqlite.open_sqlite(path)


def test_truncated_database(tmp_path, write_database):
  users = {'train': {f'u{i}': ['word ' * 50] * 20 for i in range(50)}}
  path = write_database(tmp_path / 'x.sqlite', users)
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  with pytest.raises(errors.SourceError, match='x.sqlite .*copy complete'):
    _read_all(sqlite.open_sqlite(path))


def test_rows_are_missing(tmp_path, write_database):
  for index in ('client_id', None):
    path = write_database(tmp_path / f'{index}.sqlite', _SPLITS, index=index)
    with sqlite3.connect(path) as connection:
      connection.execute("DELETE FROM examples WHERE client_id = '00000002'")
    with pytest.raises(errors.SourceError, match='promises .* complete'):
      _read_any(path)


def _read_any(path):
  source = sqlite.open_sqlite(path)
  if isinstance(source, sqlite.SqliteScan):
    list(source.records())


@pytest.mark.parametrize('index', ['client_id', 'client_id, split_name', None])
@pytest.mark.parametrize(
  ('sql', 'words'),
  [
    (
      "UPDATE client_metadata SET num_examples = 1 WHERE split_name = 'train'",
      "promises .* of '00000001' in .*, examples has",
    ),
    (
      "DELETE FROM client_metadata WHERE client_id = '00000002'",
      "promises 0 sentences of '00000002' in .*, examples has 1",
    ),
    (
      'UPDATE client_metadata SET num_examples = 2000',
      "of '00000001' in .* 4 such|of '00000001' in .* 3 such",
    ),
    (
      "INSERT INTO examples VALUES ('dev', 'zz', x'00')",
      "promises 0 sentences of 'zz'|does not list the split b'dev'",
    ),
    (
      'UPDATE client_metadata SET num_examples ='
      " CASE client_id WHEN '00000002' THEN 2 ELSE 0 END"
      " WHERE client_id IN ('00000002', '00000010')",
      "promises 2 sentences of '00000002' in .*, examples has 1; 2 such",
    ),
  ],
)
def test_tables_that_contradict_each_other(
  tmp_path, write_database, index, sql, words
):
  path = write_database(tmp_path / 'x.sqlite', _SPLITS, index=index)
  connection = sqlite3.connect(path)
  connection.execute(sql)
  connection.commit()
  connection.close()
  with pytest.raises(errors.SourceError, match=words):
    _read_any(path)


@pytest.mark.parametrize('table', ['examples', 'client_metadata'])
def test_ids_that_sqlite_takes_for_equal(tmp_path, table):
  path = tmp_path / 'x.sqlite'
  connection = sqlite3.connect(path)
  for name, columns in (
    ('examples', 'split_name TEXT, serialized_example_proto BLOB'),
    ('client_metadata', 'split_name TEXT, num_examples INTEGER'),
  ):
    collation = 'COLLATE NOCASE' if name == table else ''
    connection.execute(
      f'CREATE TABLE {name} (client_id TEXT {collation}, {columns})'
    )
  connection.close()
  words = f'client_id of the table {table} .* BINARY.* Found NOCASE'
  with pytest.raises(errors.SourceError, match=words):
    sqlite.open_sqlite(path)


@pytest.mark.parametrize('index', ['client_id COLLATE NOCASE', 'split_name'])
def test_an_index_that_does_not_find_a_user_is_none(
  tmp_path, write_database, index
):
  path = write_database(tmp_path / 'x.sqlite', _SPLITS, index=index)
  assert isinstance(sqlite.open_sqlite(path), sqlite.SqliteScan)


@pytest.mark.parametrize(
  ('sql', 'words'),
  [
    ('DROP TABLE client_metadata', 'client_metadata must have the columns'),
    ('ALTER TABLE examples RENAME client_id TO user', 'Missing: client_id'),
    ("UPDATE client_metadata SET split_name = 'dev' || client_id", 'splits'),
    ('DELETE FROM client_metadata', 'has no users'),
  ],
)
def test_wrong_schema(tmp_path, write_database, sql, words):
  path = write_database(tmp_path / 'x.sqlite', _SPLITS)
  connection = sqlite3.connect(path)
  connection.execute('DROP INDEX by_client')
  connection.execute(sql)
  connection.commit()
  connection.close()
  with pytest.raises(errors.SourceError, match=words):
    sqlite.open_sqlite(path)


@pytest.mark.parametrize(
  ('sql', 'words'),
  [
    (
      "INSERT INTO client_metadata VALUES ('00000001', 'train', 2)",
      "lists '00000001' more than once",
    ),
    ('UPDATE client_metadata SET num_examples = -1', 'non-negative .* -1'),
    ("UPDATE client_metadata SET client_id = x'ff'", 'must be UTF-8'),
    (
      "UPDATE client_metadata SET client_id = printf('%01025d', rowid)",
      'client_id must have at most 1024 characters. Found 1025',
    ),
  ],
)
def test_bad_metadata(tmp_path, write_database, sql, words):
  path = write_database(tmp_path / 'x.sqlite', _SPLITS)
  with sqlite3.connect(path) as connection:
    connection.execute(sql)
  with pytest.raises(errors.SourceError, match=words):
    sqlite.open_sqlite(path).users('train')


def test_faulty_examples_are_counted(tmp_path, write_database):
  broken = {
    b'malformed': b'\x0a\xff',
    b'no tokens': b'',
    b'not utf-8': example_proto.encode_tokens(b'caf\xe9'),
    b'empty': example_proto.encode_tokens(b' '),
  }
  sentences = ['fine .', *(key.decode() for key in broken)]
  path = write_database(
    tmp_path / 'x.sqlite',
    {'train': {'a': sentences}},
    encode=lambda s: (
      broken.get(s)
      or (b'' if s == b'no tokens' else example_proto.encode_tokens(s))
    ),
  )
  source = sqlite.open_sqlite(path)
  assert source.sentences('a', 'train', 0, 5) == ['fine .', '', '', '', '']
  assert source.tally.rows == 5
  assert source.tally.skipped == {
    base.MALFORMED: 2,
    base.NOT_UTF8: 1,
    base.NO_SENTENCE: 1,
  }


def test_a_full_disk(tmp_path, monkeypatch):
  class Full:
    def execute(self, sql):
      raise sqlite3.OperationalError('database or disk is full')

    def close(self):
      pass

  monkeypatch.setattr(sqlite_writer.sqlite3, 'connect', lambda *a, **k: Full())
  with pytest.raises(errors.SourceError, match='x.sqlite .*disk is full'):
    sqlite_writer.write_sqlite(tmp_path / 'x.sqlite', [])
  assert not list(tmp_path.iterdir())
