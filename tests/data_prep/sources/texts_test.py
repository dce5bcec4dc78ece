"""JSON lines and tables of texts, plain and compressed, good and bad."""

import gzip
import json
import lzma

from data_prep import errors
from data_prep import files
from data_prep import sources
from data_prep.sources import base
import pytest

_ROWS = [
  {'user': 'ann', 'text': 'Hello there. How are you?'},
  {'user': 7, 'text': 'See www.example.org'},
  {'user': 'ann', 'text': 'Bye!', 'other': 1},
  {'user': 'zoë', 'text': 'Très bien'},
]
_TABLE = (
  'id,user,text\n'
  '1,ann,Hello there. How are you?\n'
  '2,7,See www.example.org\n'
  '\n'
  '3,ann,"Bye!"\n'
  '4,zoë,Très bien\n'
).encode()
_CONTENTS = {
  'jsonl': ''.join(json.dumps(row) + '\n' for row in _ROWS).encode(),
  'csv': _TABLE,
}
_RECORDS = [
  ('ann', ['hello there .', 'how are you ?']),
  ('7', ['see <URL>']),
  ('ann', ['bye !']),
  ('zoë', ['trs bien']),
]
_KINDS = sorted(_CONTENTS)


def _open(folder, kind, content, suffix=''):
  path = folder / f'a.{kind}{suffix}'
  path.write_bytes(content)
  return sources.open_source(f'{kind}:{path}')


@pytest.mark.parametrize('kind', _KINDS)
@pytest.mark.parametrize(
  ('suffix', 'encode'),
  [
    ('', bytes),
    ('.gz', gzip.compress),
    ('.xz', lzma.compress),
    ('', lambda content: b'\xef\xbb\xbf' + content),
    ('', lambda content: content.replace(b'\n', b'\r\n')),
  ],
)
def test_exact_records(tmp_path, kind, suffix, encode, read_records):
  source = _open(tmp_path, kind, encode(_CONTENTS[kind]), suffix)
  assert source.name == f'{kind}:a.{kind}{suffix}'
  assert read_records(source) == _RECORDS
  assert source.bytes_read == source.num_bytes
  assert source.tally.rows == 4
  assert not source.tally.skipped


def test_a_text_with_quotes_and_line_breaks(tmp_path, read_records):
  row = b'user,text\n"b, c","He said ""no"",\nthen left."\n'
  expected = [('b, c', ['he said " no " ,', 'then left .'])]
  assert read_records(_open(tmp_path, 'csv', row)) == expected
  words = 'word ' * 100_000
  (record,) = _open(
    tmp_path, 'csv', f'user,text\nann,{words}\n'.encode()
  ).records()
  assert record.text == words


def test_a_pattern_reads_files_by_name(tmp_path, read_records):
  lines = _CONTENTS['jsonl'].splitlines(keepends=True)
  (tmp_path / 'b.jsonl').write_bytes(b''.join(lines[2:]))
  (tmp_path / 'a.jsonl.gz').write_bytes(gzip.compress(b''.join(lines[:2])))
  (tmp_path / 'c.txt').write_bytes(b'no')
  source = sources.JsonlSource(str(tmp_path / '*.jsonl*'))
  assert read_records(source) == _RECORDS
  assert source.notes == {'files read': ['a.jsonl.gz', 'b.jsonl']}
  with pytest.raises(FileNotFoundError, match=r'no file matches .*x\*'):
    sources.JsonlSource(str(tmp_path / 'x*'))


@pytest.mark.parametrize(
  ('kind', 'row', 'reason', 'fault'),
  [
    ('jsonl', b'{"user": "a", "text": ', base.MALFORMED, 'it is not JSON'),
    ('jsonl', b'[' * 100_000, base.MALFORMED, 'it is not JSON'),
    ('jsonl', b'3', base.MALFORMED, 'it is not an object with the keys'),
    (
      'jsonl',
      b'{"author": 1, "body": 2}',
      base.MALFORMED,
      'it has no key "user", its keys are "author", "body"',
    ),
    ('jsonl', b'{}', base.MALFORMED, 'no key "user", its keys are none'),
    ('jsonl', b'{"user": "a"}', base.MALFORMED, 'it has no key "text"'),
    (
      'jsonl',
      b'{"user": true, "text": ""}',
      base.MALFORMED,
      '"user" is neither a string nor an integer',
    ),
    (
      'jsonl',
      b'{"user": "a", "text": null}',
      base.MALFORMED,
      '"text" is not a string',
    ),
    (
      'jsonl',
      b'{"user": "%s", "text": "x"}' % (b'a' * 1025),
      base.MALFORMED,
      '"user" has more than 1024 characters',
    ),
    (
      'jsonl',
      b'{"user": "a", "text": "caf\xe9"}',
      base.NOT_UTF8,
      'it is not UTF-8',
    ),
    (
      'jsonl',
      b'{"user": "\\ud800", "text": "x"}',
      base.NOT_UTF8,
      '"user" is not UTF-8',
    ),
    ('jsonl', b'{"user": "", "text": "x"}', base.NO_USER, ''),
    ('csv', b'1,ann', base.MALFORMED, 'it has 2 cells instead of 3'),
    ('csv', b'1,ann,a,b', base.MALFORMED, 'it has 4 cells instead of 3'),
    (
      'csv',
      b'1,' + b'a' * 1025 + b',x',
      base.MALFORMED,
      'than 1024 characters',
    ),
    ('csv', b'1,ann,\xff', base.NOT_UTF8, 'it is not UTF-8'),
    ('csv', b'1,\xff,x', base.NOT_UTF8, '"user" is not UTF-8'),
    ('csv', b'4,,Nobody said this.', base.NO_USER, ''),
  ],
)
def test_bad_rows_are_counted_and_the_first_is_named(
  tmp_path, kind, row, reason, fault, read_records
):
  content = _CONTENTS[kind]
  last = content.splitlines(keepends=True)[-1]
  source = _open(tmp_path, kind, content + row + b'\n' + last)
  assert read_records(source) == [*_RECORDS, _RECORDS[-1]]
  assert source.tally.rows == 6
  assert source.tally.skipped == {reason: 1}
  line = len(content.splitlines()) + 1
  if not fault:
    source.tally.check(source.name)
    return
  assert source.tally.first_fault.startswith(f'a.{kind}, line {line}: ')
  assert fault in source.tally.first_fault
  with pytest.raises(errors.SourceError, match='rows are faulty') as caught:
    source.tally.check(source.name)
  assert f'The first is {source.tally.first_fault}. Is this' in str(
    caught.value
  )


@pytest.mark.parametrize(
  'names', [('a.jl', 'a.jl.gz'), ('a.gz', 'a.xz'), ('a.jl', 'a.link')]
)
def test_a_text_under_two_names(tmp_path, names):
  first, second = (tmp_path / name for name in names)
  first.write_bytes(_CONTENTS['jsonl'])
  if second.suffix == '.link':
    second.symlink_to(first)
  else:
    second.write_bytes(_CONTENTS['jsonl'])
  words = f'{names[0]} and {names[1]} are the same text'
  with pytest.raises(errors.SourceError, match=words):
    sources.JsonlSource(str(tmp_path / 'a*'))


@pytest.mark.parametrize('kind', _KINDS)
@pytest.mark.parametrize(
  ('suffix', 'compress'), [('.gz', gzip.compress), ('.xz', lzma.compress)]
)
@pytest.mark.parametrize(
  'damage', [lambda b: b[:-9], lambda b: b'xx' + b, lambda b: b'']
)
def test_damaged_files(tmp_path, kind, suffix, compress, damage):
  words = f'a.{kind}{suffix} .* complete'
  with pytest.raises(errors.SourceError, match=words):
    content = damage(compress(_CONTENTS[kind]))
    list(_open(tmp_path, kind, content, suffix).records())


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
  with pytest.raises(errors.SourceError, match=f'a.csv.*{words}'):
    list(_open(tmp_path, 'csv', content).records())


def test_a_quote_that_is_never_closed_does_not_fill_memory(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(files, 'MAX_LINE', 1000)
  source = _open(tmp_path, 'csv', b'user,text\nann,"' + b'word\n' * 1000)
  with pytest.raises(errors.SourceError, match='field larger than'):
    list(source.records())


@pytest.mark.parametrize(
  ('header', 'expected'),
  [('user,text', True), ('user,text,label', True), ('user,label,x', False)],
)
def test_the_header_decides_what_a_table_holds(tmp_path, header, expected):
  (tmp_path / 'a.csv').write_text(header)
  assert sources.is_text(f'csv:{tmp_path}/a.csv') == expected
  assert sources.is_text('jsonl:missing.jsonl')
  assert not sources.is_text('npz:missing.npz')
