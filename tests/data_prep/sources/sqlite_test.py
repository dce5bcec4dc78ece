"""Databases of the TFF schema, whole and broken."""

import pickle
import sqlite3

from data_prep import errors
from data_prep import example_proto
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
  source = sqlite.SqliteSource(path)
  assert source.name == 'sqlite:a.sqlite'
  assert _read_all(source) == _SPLITS
  assert source.sentences('00000001', 'train', 1, 2) == ['use sorted .']
  assert source.tally.rows == 6
  assert not source.tally.skipped
  # Another process opens the file for itself.
  assert _read_all(pickle.loads(pickle.dumps(source))) == _SPLITS


def test_our_writer_keeps_the_order(tmp_path):
  path = tmp_path / 'b.sqlite'
  sqlite.write_sqlite(path, [('b', 'b1'), ('a', 'a1'), ('b', 'b2')])
  assert _read_all(sqlite.SqliteSource(path)) == {
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
    yield 'a', 'one'

  sqlite.write_sqlite(folder / 'x.sqlite', sentences())
  assert temporary_folder() == []


def test_a_single_split_of_any_name(tmp_path, write_database):
  # As tff.simulation.datasets.save_to_sql_client_data names it.
  users = {'b': ['b one', 'b two'], 'a': ['a one']}
  path = write_database(tmp_path / 'c.sqlite', {'default_split': users})
  assert _read_all(sqlite.SqliteSource(path)) == {'train': users}


@pytest.mark.parametrize(
  'index', [None, 'client_id COLLATE NOCASE', 'split_name']
)
def test_an_index_that_does_not_find_a_user(tmp_path, write_database, index):
  path = write_database(tmp_path / 'x.sqlite', _SPLITS, index=index)
  with pytest.raises(errors.SourceError, match='x.sqlite.* must have an index'):
    sqlite.SqliteSource(path)
  with sqlite3.connect(path) as connection:  # As the message says.
    connection.execute(
      'CREATE INDEX by_user ON examples (client_id COLLATE BINARY)'
    )
  assert _read_all(sqlite.SqliteSource(path)) == _SPLITS


def test_ids_that_differ_in_case_alone(tmp_path):
  path = tmp_path / 'x.sqlite'
  connection = sqlite3.connect(path)
  connection.executescript("""
    CREATE TABLE examples (client_id TEXT COLLATE NOCASE,
      split_name TEXT COLLATE NOCASE, serialized_example_proto BLOB);
    CREATE INDEX by_user ON examples (client_id COLLATE BINARY);
    CREATE TABLE client_metadata (client_id TEXT COLLATE NOCASE,
      split_name TEXT COLLATE NOCASE, num_examples INTEGER);
    """)
  users = {'Bob': ['one .'], 'bob': ['two .', 'three .']}
  for user, sentences in users.items():
    connection.execute(
      "INSERT INTO client_metadata VALUES (?, 'train', ?)",
      (user, len(sentences)),
    )
    for sentence in sentences:
      connection.execute(
        "INSERT INTO examples VALUES (?, 'train', ?)",
        (user, example_proto.encode_tokens(sentence.encode())),
      )
  connection.commit()
  connection.close()
  assert _read_all(sqlite.SqliteSource(path)) == {'train': users}


def test_files_that_are_no_database(tmp_path, write_database):
  with pytest.raises(FileNotFoundError, match='no file .*nothing.sqlite'):
    sqlite.SqliteSource(tmp_path / 'nothing.sqlite')
  assert not list(tmp_path.iterdir())  # SQLite would have made one.
  path = tmp_path / 'x.sqlite'
  path.write_bytes(b'<html>not found</html>' * 100)
  with pytest.raises(errors.SourceError, match='x.sqlite .*not a database'):
    sqlite.SqliteSource(path)
  users = {'train': {f'u{i}': ['word ' * 50] * 20 for i in range(50)}}
  path = write_database(tmp_path / 'y.sqlite', users)
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  with pytest.raises(errors.SourceError, match='y.sqlite .*copy complete'):
    _read_all(sqlite.SqliteSource(path))


@pytest.mark.parametrize('index', ['client_id', 'client_id, split_name'])
@pytest.mark.parametrize(
  ('sql', 'words'),
  [
    (
      "DELETE FROM examples WHERE client_id = '00000002'",
      "promises 1 sentences of '00000002', examples has 0",
    ),
    (
      "UPDATE client_metadata SET num_examples = 1 WHERE split_name = 'train'",
      "promises 2 sentences of '00000001', examples has 3",
    ),
    (
      "DELETE FROM client_metadata WHERE client_id = '00000002'",
      "promises 0 sentences of '00000002', examples has 1",
    ),
    (
      "INSERT INTO examples VALUES ('dev', 'zz', x'00')",
      "promises 0 sentences of 'zz', examples has 1; 1 such",
    ),
    (
      "UPDATE examples SET split_name = 'test' WHERE client_id = '00000001'",
      "promises 2 sentences of '00000001' in the split train, examples has 0",
    ),
    (
      'UPDATE client_metadata SET num_examples ='
      " CASE client_id WHEN '00000002' THEN 2 ELSE 0 END"
      " WHERE client_id IN ('00000002', '00000010')",
      "promises 2 sentences of '00000002', examples has 1; 2 such",
    ),
    ('DROP TABLE client_metadata', 'client_metadata must have the columns'),
    (
      'DROP INDEX by_client; ALTER TABLE examples RENAME client_id TO user',
      'Missing: client_id',
    ),
    ("UPDATE client_metadata SET split_name = 'dev' || client_id", 'splits'),
    ('DELETE FROM client_metadata', 'splits .* Found none'),
    (
      "INSERT INTO client_metadata VALUES ('00000001', 'train', 2)",
      "list '00000001' once",
    ),
    ('UPDATE client_metadata SET num_examples = -1', 'Found -1'),
    ("UPDATE client_metadata SET client_id = x'ff'", 'client_ids .* Found b'),
    (
      "UPDATE client_metadata SET client_id = CAST(x'ff' AS TEXT)",
      'decode to UTF-8',
    ),
    (
      "UPDATE client_metadata SET client_id = printf('%01025d', rowid)",
      'client_ids of at most 1024 characters',
    ),
  ],
)
def test_tables_that_are_wrong(tmp_path, write_database, index, sql, words):
  path = write_database(tmp_path / 'x.sqlite', _SPLITS, index=index)
  with sqlite3.connect(path) as connection:
    connection.executescript(sql)
  with pytest.raises(errors.SourceError, match=f'x.sqlite.*{words}'):
    _read_all(sqlite.SqliteSource(path))


def test_faulty_examples_are_counted(tmp_path, write_database):
  broken = {
    'malformed': b'\x0a\xff',
    'no tokens': b'',
    'not utf-8': example_proto.encode_tokens(b'caf\xe9'),
    'empty': example_proto.encode_tokens(b' '),
    'text': 'no bytes',
  }
  path = write_database(
    tmp_path / 'x.sqlite',
    {'train': {'a': ['fine .', *broken]}},
    encode=lambda s: broken.get(s.decode(), example_proto.encode_tokens(s)),
  )
  source = sqlite.SqliteSource(path)
  assert source.sentences('a', 'train', 0, 6) == ['fine .', *[''] * 5]
  assert source.tally.rows == 6
  assert source.tally.skipped == {
    base.MALFORMED: 3,
    base.NOT_UTF8: 1,
    base.NO_SENTENCE: 1,
  }


def test_a_full_disk(tmp_path, monkeypatch):
  class Full:
    def execute(self, sql):
      raise sqlite3.OperationalError('database or disk is full')

    def close(self):
      pass

  monkeypatch.setattr(sqlite.sqlite3, 'connect', lambda *a, **k: Full())
  with pytest.raises(errors.SourceError, match='x.sqlite .*disk is full'):
    sqlite.write_sqlite(tmp_path / 'x.sqlite', [])
