"""Tables of texts, good and bad."""

import gzip
import lzma

from data_prep import errors
from data_prep import files
from data_prep import sources
from data_prep.sources import base
from data_prep.sources import text_table
import pytest

_TABLE = (
  b'id,user,text\n'
  b'1,ann,Hello there. How are you?\n'
  b'2,"b, c","He said ""no"",\nthen left."\n'
  b'\n'
  b'3,ann,Bye!\n'
  b'4,,Nobody said this.\n'
)
_RECORDS = [
  ('ann', ['hello there .', 'how are you ?']),
  ('b, c', ['he said " no " ,', 'then left .']),
  ('ann', ['bye !']),
]


def _write(folder, content, name='a.csv'):
  path = folder / name
  path.write_bytes(content)
  return path


@pytest.mark.parametrize(
  ('name', 'encode'),
  [
    ('a.csv', bytes),
    ('a.csv.gz', gzip.compress),
    ('a.csv.xz', lzma.compress),
    ('bom.csv', lambda content: b'\xef\xbb\xbf' + content),
    ('windows.csv', lambda content: content.replace(b'\n', b'\r\n')),
  ],
)
def test_exact_records(tmp_path, name, encode, read_records):
  path = _write(tmp_path, encode(_TABLE), name)
  source = sources.open_source(f'csv:{path}')
  assert isinstance(source, sources.TextTableSource)
  assert source.name == f'csv:{name}'
  assert read_records(source) == _RECORDS
  assert source.bytes_read == source.num_bytes
  assert source.tally.rows == 4
  assert source.tally.skipped == {base.NO_USER: 1}


def test_a_long_text_is_read_whole(tmp_path):
  words = 'word ' * 100_000
  path = _write(tmp_path, f'user,text\nann,{words}\n'.encode())
  (record,) = text_table.TextTableSource(path).records()
  assert record.text == words


@pytest.mark.parametrize(
  ('row', 'reason', 'fault'),
  [
    (b'1,ann', base.MALFORMED, 'it has 2 cells instead of 3'),
    (b'1,ann,a,b', base.MALFORMED, 'it has 4 cells instead of 3'),
    (b'1,' + b'a' * 1025 + b',x', base.MALFORMED, 'more than 1024 characters'),
    (b'1,ann,\xff', base.NOT_UTF8, 'it is not UTF-8'),
    (b'1,\xff,x', base.NOT_UTF8, '"user" is not UTF-8'),
  ],
)
def test_a_faulty_row_is_counted_and_named(
  tmp_path, row, reason, fault, read_records
):
  path = _write(tmp_path, _TABLE + row + b'\n5,ann,Last.\n')
  source = text_table.TextTableSource(path)
  assert read_records(source) == [*_RECORDS, ('ann', ['last .'])]
  assert source.tally.skipped[reason] == 1
  # A quoted text has a line break: rows and lines differ.
  assert source.tally.first_fault.startswith('a.csv, line 8: ')
  assert fault in source.tally.first_fault


@pytest.mark.parametrize(
  ('content', 'words'),
  [
    (b'', 'Found an empty file. Rename the columns'),
    (b'id,member,message\n', 'user and text, .* Found id, member, message'),
    (b'member,text\n', 'one column user. Found member, text'),
    (b'user,text,text\n', 'one column text'),
    (b'"user,text\n', 'must be a CSV file'),
    (b'user,text\nann,"x" y\n', 'line 2, must be a row of a CSV file'),
    (b'user,text\nann,"' + b'x\n' * 9, 'must be a row of a CSV file'),
  ],
)
def test_bad_tables(tmp_path, content, words):
  path = _write(tmp_path, content)
  with pytest.raises(errors.SourceError, match=f'a.csv.*{words}'):
    list(sources.open_source(f'csv:{path}').records())


def test_a_quote_that_is_never_closed_does_not_fill_memory(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(files, 'MAX_LINE', 1000)
  path = _write(tmp_path, b'user,text\nann,"' + b'word\n' * 1000)
  with pytest.raises(errors.SourceError, match='field larger than'):
    list(text_table.TextTableSource(path).records())


@pytest.mark.parametrize(
  ('header', 'expected'),
  [('user,text', True), ('user,text,label', True), ('user,label,x', False)],
)
def test_the_header_decides_what_a_table_holds(tmp_path, header, expected):
  path = _write(tmp_path, header.encode())
  assert sources.is_text(f'csv:{path}') == expected


def test_other_sources_do_not_need_a_file():
  assert sources.is_text('synthetic')
  assert sources.is_text('jsonl:missing.jsonl')
  assert not sources.is_text('npz:missing.npz')
