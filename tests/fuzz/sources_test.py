"""Damaged sources of text, and lists of users and words."""

import gzip
import json
import lzma

from data_prep import errors
from data_prep import sources
from data_prep import spool
from data_prep import sqlite_writer
from data_prep import user_lists
from data_prep import vocabulary
from data_prep.sources import base
import pytest

from tests.fuzz import harness

_ROWS = [
  (f'user{i % 7}', f'Sentence {i} of a user. And another one, {i * i}!')
  for i in range(40)
]
_DATABASE = 'users.sqlite'


def _check_users(source):
  """What `base.Source` promises."""
  read = {}
  for split in source.splits:
    assert split in base.SPLITS
    users = source.users(split)
    assert list(users.ids) == sorted(set(users.ids))
    assert users.num_sentences.min(initial=0) >= 0
    for user, count in zip(users.ids, users.num_sentences, strict=True):
      sentences = source.sentences(user, split, 0, int(count))
      assert len(sentences) == count
      assert all(isinstance(s, str) for s in sentences)
      ''.join(sentences).encode()
      read[split, user] = sentences
  source.tally.check(source.name)
  return read


def _no_check(expected, found):
  """The loader has looked at all that can be known without a checksum."""
  del expected, found


def _regrouped(source, folder):
  path = folder / 'regrouped.tmp'
  path.unlink(missing_ok=True)
  try:
    regrouped = spool.regroup(
      source, path, num_processes=1, on_progress=lambda *_: None
    )
    return _check_users(regrouped)
  finally:
    path.unlink(missing_ok=True)


def _write_database(folder):
  sqlite_writer.write_sqlite(folder / _DATABASE, sorted(_ROWS))


def _read_database(folder):
  return _check_users(sources.SqliteSource(folder / _DATABASE))


def test_sqlite(fuzz):
  fuzz(
    harness.Target(
      write=_write_database,
      load=_read_database,
      check=_no_check,
    ),
    must_find=0.05,  # Most bytes are text, or room for more.
  )


def _write_posts(folder):
  rows = [
    f'  <row Id="{i + 1}" PostTypeId="{1 + i % 2}" OwnerUserId="{i % 7}"'
    f' Body="&lt;p&gt;{text}&lt;/p&gt;&lt;code&gt;x&lt;/code&gt;" />'
    for i, (_, text) in enumerate(_ROWS)
  ]
  posts = '\n'.join(['<?xml version="1.0"?>', '<posts>', *rows, '</posts>', ''])
  (folder / 'Posts.xml').write_text(posts)
  rows = [
    f'  <row Id="{i + 1}" UserId="{i % 7}" Text="{text}" />'
    for i, (_, text) in enumerate(_ROWS)
  ]
  (folder / 'Comments.xml').write_text(
    '\n'.join(['<comments>', *rows, '</comments>'])
  )


def test_stackexchange(fuzz):
  fuzz(
    harness.Target(
      write=_write_posts,
      load=lambda f: _regrouped(sources.StackExchangeSource(f), f),
      check=_no_check,
    ),
    0.6,
  )


@pytest.mark.parametrize(
  ('name', 'compress'),
  [
    ('rows.jsonl', bytes),
    ('rows.jsonl.gz', gzip.compress),
    ('rows.jsonl.xz', lzma.compress),
  ],
)
def test_jsonl(fuzz, name, compress):
  def write(folder):
    lines = [json.dumps({'user': u, 'text': t}) for u, t in _ROWS]
    (folder / name).write_bytes(compress('\n'.join(lines).encode()))

  fuzz(
    harness.Target(
      write=write,
      load=lambda f: _regrouped(sources.JsonlSource(str(f / name)), f),
      check=_no_check if name == 'rows.jsonl' else harness.equal,
    ),
    0.5,
    must_find=0.2,
  )


@pytest.mark.parametrize(
  ('name', 'compress'), [('rows.csv', bytes), ('rows.csv.gz', gzip.compress)]
)
def test_text_table(fuzz, name, compress):
  def write(folder):
    lines = ['user,text', *(f'{user},"{text}"' for user, text in _ROWS)]
    (folder / name).write_bytes(compress('\n'.join(lines).encode()))

  fuzz(
    harness.Target(
      write=write,
      load=lambda f: _regrouped(sources.TextTableSource(f / name), f),
      check=_no_check if name == 'rows.csv' else harness.equal,
    ),
    0.5,
    must_find=0.2,
  )


def test_a_lone_surrogate_is_left_out(tmp_path):
  rows = [{'user': f'u{i}', 'text': 'Fine.'} for i in range(20)]
  rows.append({'user': 'odd', 'text': 'A lone \ud800 surrogate.'})
  path = tmp_path / 'rows.jsonl'
  path.write_text('\n'.join(map(json.dumps, rows)))
  read = _regrouped(sources.JsonlSource(str(path)), tmp_path)
  assert read['train', 'odd'] == ['a lone surrogate .']


def test_a_large_row_id_takes_no_memory(tmp_path):
  folder = tmp_path / 'site'
  folder.mkdir()
  rows = [
    f'<row Id="{i}" UserId="1" Text="A sentence of {i}." />'
    for i in (2**32 - 1, 2**32 - 1, 7, 2**31)
  ]
  (folder / 'Comments.xml').write_text(
    '\n'.join(['<comments>', *rows, '</comments>'])
  )
  before = harness.most_memory()
  source = sources.StackExchangeSource(folder)
  assert len(list(source.records())) == 3
  assert source.tally.skipped[base.DUPLICATE] == 1
  assert harness.most_memory() - before < 50 * 2**20


def test_user_ids(fuzz):
  def write(folder):
    text = '\n'.join(f'site/{i}' for i in range(50))
    (folder / 'public.txt').write_text(text)

  def check(expected, found):
    assert found and all(found) and len(set(found)) == len(found)
    del expected

  fuzz(
    harness.Target(
      write=write,
      load=lambda f: user_lists.read_user_ids(f / 'public.txt'),
      check=check,
    ),
    must_find=0.1,
  )


def test_words(fuzz):
  def write(folder):
    lines = [f'word{i} {1000 - i}' for i in range(60)]
    (folder / 'words.txt').write_text('\n'.join(lines))

  def check(expected, found):
    assert all(word and not word.isspace() for word in found)
    assert len(set(found)) == len(found)
    del expected

  fuzz(
    harness.Target(
      write=write,
      load=lambda f: vocabulary.read_words(f / 'words.txt'),
      check=check,
    ),
    must_find=0.1,
  )


def test_lists_must_hold_something(tmp_path):
  path = tmp_path / 'empty.txt'
  path.write_text('\n')
  with pytest.raises(errors.SourceError, match='empty.txt'):
    user_lists.read_user_ids(path)
