"""Public dumps of Stack Exchange: streams `Posts.xml` and `Comments.xml`.

A dump has a folder per site, with a file per table and one `<row .../>` per
line. Questions and answers are HTML; comments are plain text. Titles, tags and
older revisions are not used, as in TFF's StackOverflow data.

A user is a site and an id. A site and its meta site share their accounts, so
they count as one site: otherwise a person active on both would be two users.
Folders of archives that hold one table each also count as one site.
"""

import collections
from collections.abc import Iterator
import pathlib
import re
from typing import Optional
from xml.etree import ElementTree

from data_prep import errors
from data_prep.sources import base

_POSTS = 'Posts.xml'
_COMMENTS = 'Comments.xml'
_QUESTION_OR_ANSWER = ('1', '2')
_MAX_ROW_ID = 2**32
_IDS_PER_PAGE = 2**16
# The largest sites have one archive per table.
_TABLE_SUFFIX = re.compile(
  '-(?:Badges|Comments|PostHistory|PostLinks|Posts|Tags|Users|Votes)$'
)
# Matches whole components only: x.metal is a different site.
_META = re.compile(r'^meta\.|\.meta(?=\.|$)')


def _archive(path: pathlib.Path) -> str:
  """Returns the name of a file's site or meta site."""
  return _TABLE_SUFFIX.sub('', path.parent.name)


def _site(path: pathlib.Path) -> str:
  """Returns the site of a file: 'beer' for beer and beer.meta."""
  return _META.sub('', _archive(path), count=1)


class _SeenIds:
  """A set of row ids, one bit each: a dump may have 100 million.

  It uses pages, as a damaged id may be far from the others.
  """

  def __init__(self):
    self._pages = collections.defaultdict(lambda: bytearray(_IDS_PER_PAGE // 8))

  def add(self, number: int) -> bool:
    """Adds an id; returns whether it is new."""
    page, place = divmod(number, _IDS_PER_PAGE)
    bits, byte, bit = self._pages[page], place >> 3, 1 << (place & 7)
    if bits[byte] & bit:
      return False
    bits[byte] |= bit
    return True


class StackExchangeSource(base.RecordSource):
  """A site's folder, or a folder of such folders. A user is 'SITE/ID'.

  Example:

  ```
  source = StackExchangeSource('dumps/datascience.stackexchange.com')
  ```
  """

  def __init__(self, folder: str):
    """Finds the files.

    Args:
      folder: Folder with `Posts.xml` or `Comments.xml`, or with subfolders that
        have them.

    Raises:
      FileNotFoundError: If there are no such files.
    """
    root = pathlib.Path(folder).absolute()
    if not root.is_dir():
      raise FileNotFoundError(f'stackexchange: there is no folder {folder}.')
    sites = [root, *sorted(root.iterdir())]
    self._files = [
      site / name
      for site in sites
      for name in (_POSTS, _COMMENTS)
      if (site / name).is_file()
    ]
    if not self._files:
      raise FileNotFoundError(
        f'stackexchange: {folder} and its subfolders must hold {_POSTS} or'
        f' {_COMMENTS}. Found neither.'
      )
    super().__init__(f'stackexchange:{root.name}', self._files)
    folders = collections.defaultdict(set)
    for path in self._files:
      folders[_site(path)].add(path.parent.name)
    folded = [
      f'{site} ({", ".join(sorted(names))})'
      for site, names in sorted(folders.items())
      if len(names) > 1
    ]
    if folded:
      self.notes['sites in several folders'] = folded

  def records(self) -> Iterator[base.Record]:
    # By table, not by file: a site that was unpacked twice, under two names,
    # must not give its users every sentence twice.
    seen = collections.defaultdict(_SeenIds)
    for path in self._files:
      is_html = path.name == _POSTS
      ids = seen[_archive(path), path.name]
      for user, text in self._read_file(path, ids):
        yield base.Record(f'{_site(path)}/{user}', text, is_html)

  def _read_file(
    self, path: pathlib.Path, seen: _SeenIds
  ) -> Iterator[tuple[str, str]]:
    table = path.stem.lower().encode()
    closing = b'</%s>' % table
    opening = re.compile(
      rb'^(?:\xef\xbb\xbf)?(?:<\?xml[^>]*>)?\s*(?:<%s\b[^>]*>)?\s*' % table
    )
    has_rows = is_closed = False
    for line in self._lines(path):
      line = line.strip()
      if not has_rows:  # The first row may follow the table's tag.
        line = opening.sub(b'', line)
      if line.startswith(b'<row'):
        has_rows = True
        self.tally.rows += 1
        record = self._parse(line, path.name == _POSTS, seen)
        if record is not None:
          yield record
      elif line == closing:
        is_closed = True
      elif line:
        # A dump has nothing else between rows.
        self.tally.rows += 1
        self.tally.skipped[base.MALFORMED] += 1
    if not is_closed:
      raise errors.SourceError(
        f'{path.parent.name}/{path.name} must end with {closing.decode()}: it'
        ' is incomplete, or not a table of a dump.'
      )

  def _parse(
    self, line: bytes, is_post: bool, seen: _SeenIds
  ) -> Optional[tuple[str, str]]:
    """Returns (user id, text) of a row; None if it is skipped."""
    try:
      row = ElementTree.fromstring(line.decode()).attrib
      number = int(row['Id'])
      text = row['Body' if is_post else 'Text']
      user = row.get('OwnerUserId' if is_post else 'UserId', '')
      # The site's own bot has the id -1. Former users have no id.
      is_somebody = user != '' and int(user) >= 0
    except UnicodeDecodeError:
      return self._skip(base.NOT_UTF8)
    except (ElementTree.ParseError, KeyError, ValueError):
      return self._skip(base.MALFORMED)
    if not 0 <= number < _MAX_ROW_ID:
      return self._skip(base.MALFORMED)
    if not seen.add(number):
      return self._skip(base.DUPLICATE)
    if is_post and row.get('PostTypeId') not in _QUESTION_OR_ANSWER:
      return self._skip(base.OTHER_KIND)
    if not is_somebody:
      return self._skip(base.NO_USER)
    return str(int(user)), text

  def _skip(self, reason: str) -> Optional[tuple[str, str]]:
    self.tally.skipped[reason] += 1
    return None
