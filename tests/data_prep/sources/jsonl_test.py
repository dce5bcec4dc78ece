"""JSON lines, plain and compressed, good and bad."""

import gzip
import json
import lzma

from data_prep import errors
from data_prep.sources import base
from data_prep.sources import jsonl
import pytest

_ROWS = [
  {'user': 'ann', 'text': 'Hello there. How are you?'},
  {'user': 7, 'text': 'See www.example.org'},
  {'user': 'ann', 'text': 'Bye!', 'other': 1},
  {'user': 'zoë', 'text': 'Très bien'},
]
_LINES = ''.join(json.dumps(row) + '\n' for row in _ROWS).encode()
_RECORDS = [
  ('ann', ['hello there .', 'how are you ?']),
  ('7', ['see <URL>']),
  ('ann', ['bye !']),
  ('zoë', ['trs bien']),
]


@pytest.mark.parametrize(
  ('name', 'compress'),
  [('a.jsonl', bytes), ('a.jsonl.gz', gzip.compress), ('a.xz', lzma.compress)],
)
def test_exact_tokens(tmp_path, name, compress, read_records):
  (tmp_path / name).write_bytes(compress(_LINES))
  source = jsonl.JsonlSource(str(tmp_path / name))
  assert source.name == f'jsonl:{name}'
  assert read_records(source) == _RECORDS
  assert source.bytes_read == source.num_bytes
  assert source.tally.rows == 4


def test_a_pattern_reads_files_by_name(tmp_path, read_records):
  lines = _LINES.splitlines(keepends=True)
  (tmp_path / 'b.jsonl').write_bytes(b''.join(lines[2:]))
  (tmp_path / 'a.jsonl.gz').write_bytes(gzip.compress(b''.join(lines[:2])))
  (tmp_path / 'c.txt').write_bytes(b'no')
  source = jsonl.JsonlSource(str(tmp_path / '*.jsonl*'))
  assert read_records(source) == _RECORDS


@pytest.mark.parametrize(
  ('line', 'reason'),
  [
    (b'{"user": "a", "text": ', base.MALFORMED),
    (b'[' * 100_000, base.MALFORMED),
    (b'["a", "b"]', base.MALFORMED),
    (b'{"user": "a"}', base.MALFORMED),
    (b'{"user": true, "text": "x"}', base.MALFORMED),
    (b'{"user": "a", "text": 3}', base.MALFORMED),
    (b'{"user": "%s", "text": "x"}' % (b'a' * 1025), base.MALFORMED),
    (b'{"user": "a", "text": "caf\xe9"}', base.NOT_UTF8),
    (b'{"user": "\\ud800", "text": "x"}', base.NOT_UTF8),
    (b'{"user": "", "text": "x"}', base.NO_USER),
  ],
)
def test_bad_lines_are_counted(tmp_path, line, reason, read_records):
  (tmp_path / 'a.jsonl').write_bytes(line + b'\n\n' + _LINES)
  source = jsonl.JsonlSource(str(tmp_path / 'a.jsonl'))
  assert read_records(source) == _RECORDS
  assert source.tally.rows == 5
  assert source.tally.skipped == {reason: 1}
  is_fault = reason in (base.MALFORMED, base.NOT_UTF8)
  assert source.tally.first_fault.startswith('a.jsonl, line 1: ') is is_fault


@pytest.mark.parametrize(
  ('line', 'fault'),
  [
    (
      '{"author": 1, "body": 2}',
      'it has no key "user", its keys are "author", "body"',
    ),
    ('{"user": "a"}', 'it has no key "text", its keys are "user"'),
    ('{}', 'it has no key "user", its keys are none'),
    ('3', 'it is not an object with the keys "user" and "text"'),
    ('{"user": null, "text": ""}', '"user" is neither a string nor an integer'),
    ('{"user": 3, "text": null}', '"text" is not a string'),
    ('{', 'it is not JSON'),
  ],
)
def test_the_first_faulty_line_is_named(tmp_path, line, fault, read_records):
  (tmp_path / 'a.jl').write_bytes(_LINES)
  (tmp_path / 'b.jl').write_text(f'\n{line}\n' + '{"text": "x"}\n')
  source = jsonl.JsonlSource(str(tmp_path / '*.jl'))
  assert read_records(source) == _RECORDS
  with pytest.raises(errors.SourceError) as caught:
    source.tally.check(source.name)
  message = str(caught.value)
  assert message.startswith('jsonl:*.jl: 2 of 6 rows are faulty')
  assert f'The first is b.jl, line 2: {fault}. Is this' in message


@pytest.mark.parametrize('names', [('a.jl', 'a.jl.gz'), ('a.gz', 'a.xz')])
def test_a_file_and_its_compressed_twin(tmp_path, names):
  for name in names:
    (tmp_path / name).write_bytes(_LINES)
  words = f'{names[0]} and {names[1]} are the same text'
  with pytest.raises(errors.SourceError, match=words):
    jsonl.JsonlSource(str(tmp_path / 'a*'))


def test_a_file_under_two_names(tmp_path):
  (tmp_path / 'a.jl').write_bytes(_LINES)
  (tmp_path / 'b.jl').symlink_to(tmp_path / 'a.jl')
  with pytest.raises(errors.SourceError, match='a.jl and b.jl are the same'):
    jsonl.JsonlSource(str(tmp_path / '*.jl'))


def test_files_are_named(tmp_path):
  for name in ('a.jl', 'b.jl'):
    (tmp_path / name).write_bytes(_LINES)
  source = jsonl.JsonlSource(str(tmp_path / '*.jl'))
  assert source.notes == {'files read': ['a.jl', 'b.jl']}


def test_a_byte_order_mark_is_no_text(tmp_path, read_records):
  (tmp_path / 'a.jl').write_bytes(b'\xef\xbb\xbf' + _LINES)
  source = jsonl.JsonlSource(str(tmp_path / 'a.jl'))
  assert read_records(source) == _RECORDS
  assert not source.tally.skipped


def test_missing_file(tmp_path):
  with pytest.raises(FileNotFoundError, match=r'no file matches .*x\*'):
    jsonl.JsonlSource(str(tmp_path / 'x*'))


@pytest.mark.parametrize(
  ('name', 'compress'), [('a.gz', gzip.compress), ('a.xz', lzma.compress)]
)
@pytest.mark.parametrize(
  'damage', [lambda b: b[:-9], lambda b: b'xx' + b, lambda b: b'']
)
def test_damaged_file(tmp_path, name, compress, damage, read_records):
  (tmp_path / name).write_bytes(damage(compress(_LINES)))
  source = jsonl.JsonlSource(str(tmp_path / name))
  with pytest.raises(errors.SourceError, match=f'{name} .* complete'):
    read_records(source)
