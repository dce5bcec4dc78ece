"""Dumps of Stack Exchange: what is read, what is skipped and counted."""

from data_prep import errors
from data_prep import spool
from data_prep.sources import base
from data_prep.sources import stackexchange
import pytest

_POSTS = [
  '<row Id="1" PostTypeId="1" Title="Not used" OwnerUserId="4"'
  ' Body="&lt;p&gt;I can\'t boil water. Why?&lt;/p&gt;&#xA;'
  '&lt;pre&gt;&lt;code&gt;boil()&lt;/code&gt;&lt;/pre&gt;" />',
  '<row Id="2" PostTypeId="2" OwnerUserId="5"'
  ' Body="&lt;p&gt;See &lt;code&gt;man&lt;/code&gt; at http://a.example/b" />',
]
_COMMENTS = [
  '<row Id="1" PostId="1" UserId="4" Text="Thanks, @bob &amp;lt;3" />'
]


def _write(folder, posts=_POSTS, comments=_COMMENTS):
  folder.mkdir(parents=True, exist_ok=True)
  for name, rows in (('posts', posts), ('comments', comments)):
    if rows is not None:
      lines = ['<?xml version="1.0" encoding="utf-8"?>', f'<{name}>']
      lines += [f'  {row}' for row in rows] + [f'</{name}>', '']
      content = '\r\n'.join(lines).encode('utf-8', 'surrogateescape')
      (folder / f'{name.title()}.xml').write_bytes(content)
  return str(folder)


def _read(folder):
  source = stackexchange.StackExchangeSource(folder)
  return source, spool._split_sentences(list(source.records()))


_COOKING = [
  ('cooking/4', ["i can't boil water .", 'why ?']),
  ('cooking/5', ['see man at <URL>']),
  ('cooking/4', ['thanks , @ bob < 3']),
]


def test_exact_tokens_of_one_site(tmp_path):
  source, records = _read(_write(tmp_path / 'cooking'))
  assert records == _COOKING
  assert source.name == 'stackexchange:cooking'
  assert source.tally.rows == 3
  assert source.bytes_read == source.num_bytes


def test_users_of_sites_are_apart(tmp_path):
  _write(tmp_path / 'dump' / 'cooking')
  _write(tmp_path / 'dump' / 'beer', posts=None)
  (tmp_path / 'dump' / 'notes.txt').write_text('no site')
  _, records = _read(str(tmp_path / 'dump'))
  assert records == [('beer/4', ['thanks , @ bob < 3']), *_COOKING]


@pytest.mark.parametrize(
  ('site', 'meta'),
  [
    ('cooking', 'cooking.meta'),
    ('cooking.stackexchange.com', 'cooking.meta.stackexchange.com'),
    ('askubuntu.com', 'meta.askubuntu.com'),
    ('x.metal', 'x.meta.metal'),
    ('stackoverflow.com', 'stackoverflow.com-Comments'),
    ('stackoverflow.com', 'meta.stackoverflow.com-Comments'),
  ],
)
def test_a_site_and_its_meta_site_have_the_same_users(tmp_path, site, meta):
  _write(tmp_path / site)
  _write(tmp_path / meta, comments=[_COMMENTS[0].replace('1', '9')], posts=None)
  source, records = _read(str(tmp_path))
  assert [user for user, _ in records].count(f'{site}/4') == 3
  both = ', '.join(sorted([site, meta]))
  assert source.notes == {'sites in several folders': [f'{site} ({both})']}


def test_other_sites_are_not_meta_sites(tmp_path):
  for name in ('x.metal', 'metal.x', 'x-Post', 'xmeta'):
    _write(tmp_path / name, posts=None)
  source, records = _read(str(tmp_path))
  names = [user for user, _ in records]
  assert names == ['metal.x/4', 'x-Post/4', 'x.metal/4', 'xmeta/4']
  assert source.notes == {}


def test_a_site_that_was_unpacked_twice_is_read_once(tmp_path):
  _write(tmp_path / 'cooking', comments=None)
  _write(tmp_path / 'cooking-Posts', comments=None)
  source, records = _read(str(tmp_path))
  assert records == _COOKING[:2]
  assert source.tally.skipped == {base.DUPLICATE: 2}


@pytest.mark.parametrize(
  ('row', 'reason'),
  [
    ('<row Id="3" PostTypeId="1" OwnerUserId="4" Body="cut off', 'malformed'),
    ('<row Id="3" PostTypeId="1" OwnerUserId="4" />', 'malformed'),
    ('<row PostTypeId="1" OwnerUserId="4" Body="x" />', 'malformed'),
    ('<row Id="x" PostTypeId="1" OwnerUserId="4" Body="x" />', 'malformed'),
    ('<row Id="-3" PostTypeId="1" OwnerUserId="4" Body="x" />', 'malformed'),
    ('<row Id="3" PostTypeId="1" OwnerUserId="b" Body="x" />', 'malformed'),
    ('half of a row" />', 'malformed'),
    (
      '<row Id="3" PostTypeId="1" OwnerUserId="4" Body="caf\udce9" />',
      'not UTF-8',
    ),
    ('<row Id="1" PostTypeId="1" OwnerUserId="4" Body="x" />', 'seen before'),
    ('<row Id="3" PostTypeId="1" Body="x" />', 'without a user'),
    (
      '<row Id="3" PostTypeId="1" OwnerUserId="-1" Body="x" />',
      'without a user',
    ),
    ('<row Id="3" PostTypeId="5" OwnerUserId="4" Body="x" />', 'neither'),
  ],
)
def test_rows_that_are_not_used_are_counted(tmp_path, row, reason):
  folder = _write(tmp_path / 'cooking', posts=[*_POSTS, row])
  source, records = _read(folder)
  assert records == _COOKING
  assert source.tally.rows == 4
  ((found, number),) = source.tally.skipped.items()
  assert reason in found
  assert number == 1


def test_one_percent_may_be_malformed():
  tally = base.Tally(rows=100)
  tally.skipped[base.MALFORMED] = 1
  tally.skipped[base.NO_USER] = 9  # No fault.
  tally.check('x')
  tally.skipped[base.NOT_UTF8] = 1
  with pytest.raises(errors.SourceError, match='x: 2 of 100 rows are faulty'):
    tally.check('x')


@pytest.mark.parametrize('mark', [b'', b'\xef\xbb\xbf'])
def test_a_row_on_the_line_of_the_table(tmp_path, mark):
  folder = _write(tmp_path / 'cooking')
  path = tmp_path / 'cooking' / 'Posts.xml'
  content = path.read_bytes().replace(b'?>\r\n<posts>\r\n', b'?><posts>')
  path.write_bytes(mark + content)
  source, records = _read(folder)
  assert records == _COOKING
  assert not source.tally.skipped


def test_truncated_file(tmp_path):
  folder = _write(tmp_path / 'cooking')
  path = tmp_path / 'cooking' / 'Posts.xml'
  path.write_bytes(path.read_bytes()[:-20])
  with pytest.raises(errors.SourceError, match='cooking/Posts.xml .*complete'):
    _read(folder)


def test_no_dump(tmp_path):
  with pytest.raises(FileNotFoundError, match='no folder'):
    stackexchange.StackExchangeSource(str(tmp_path / 'nothing'))
  with pytest.raises(FileNotFoundError, match='hold Posts.xml or Comments.xml'):
    stackexchange.StackExchangeSource(str(tmp_path))
