"""Texts by user in JSON lines, or in the columns of a .csv file."""

import codecs
from collections.abc import Iterable, Iterator, Sequence
import csv
import glob
import json
import os
import pathlib
from typing import Any, Optional

from data_prep import errors
from data_prep import files
from data_prep.sources import base

_USER = 'user'
_TEXT = 'text'
_LABEL = 'label'  # Of a table of numbers, see `arrays.open_csv`.
_MOST_KEYS = 5  # Shown in a message.


class JsonlSource(base.RecordSource):
  """JSON lines in one or many files, plain, .gz or .xz.

  `user` is a string or an integer, `text` is plain text with any number of
  sentences. Other fields are ignored. A user's lines may be anywhere; their
  order is that of the lines, with files sorted by name.

  Example:

  ```
  source = JsonlSource('posts.jsonl')  # {"user": "ann", "text": "..."}
  ```
  """

  def __init__(self, pattern: str):
    """Finds the files.

    Args:
      pattern: A path, or a pattern such as 'dump/*.jsonl.gz'.

    Raises:
      FileNotFoundError: If no file matches.
      SourceError: If two files are the same, one compressed or under another
        name.
    """
    is_path = pathlib.Path(pattern).is_file()
    matches = [pattern] if is_path else sorted(glob.glob(pattern))
    self._paths = [
      path for path in map(pathlib.Path, matches) if path.is_file()
    ]
    if not self._paths:
      raise FileNotFoundError(f'jsonl: no file matches {pattern}.')
    _check_twins(self._paths)
    super().__init__(f'jsonl:{pathlib.Path(pattern).name}', self._paths)
    self.notes['files read'] = [path.name for path in self._paths]

  def records(self) -> Iterator[base.Record]:
    for path in self._paths:
      for number, line in enumerate(self._lines(path), start=1):
        if number == 1:
          line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():  # Skips blank lines at the end of a file.
          record = self._parse(line, f'{path.name}, line {number}')
          if record is not None:
            yield record

  def _parse(self, line: bytes, where: str) -> Optional[base.Record]:
    self.tally.rows += 1
    try:
      row = json.loads(line.decode())
    except UnicodeDecodeError:
      self.tally.add_fault(base.NOT_UTF8, f'{where}: it is not UTF-8')
      return None
    except (ValueError, RecursionError):
      self.tally.add_fault(base.MALFORMED, f'{where}: it is not JSON')
      return None
    fault = _find_fault(row)
    if fault:
      self.tally.add_fault(base.MALFORMED, f'{where}: {fault}')
      return None
    user = str(row[_USER])
    if not self._is_somebody(user, where):
      return None
    return base.Record(user, row[_TEXT])


def _find_fault(row: Any) -> str:
  """Returns the fault of a row; '' if there is none."""
  if not isinstance(row, dict):
    return 'it is not an object with the keys "user" and "text"'
  for key in (_USER, _TEXT):
    if key not in row:
      keys = ', '.join(f'"{name:.40}"' for name in list(row)[:_MOST_KEYS])
      return f'it has no key "{key}", its keys are {keys or "none"}'
  if not isinstance(row[_USER], (int, str)) or isinstance(row[_USER], bool):
    return '"user" is neither a string nor an integer'
  if not isinstance(row[_TEXT], str):
    return '"text" is not a string'
  return ''


def _check_twins(paths: Sequence[pathlib.Path]) -> None:
  """Raises SourceError if a text would be read twice.

  The second copy of a private sentence could be public, as overflow.
  """
  seen: dict[object, str] = {}
  for path in paths:
    status = path.stat()
    plain = path.with_suffix('') if path.suffix in files.COMPRESSED else path
    for key in ((status.st_dev, status.st_ino), plain):
      if key in seen:
        raise errors.SourceError(
          f'jsonl: {seen[key]} and {path.name} are the same text. Choose one.'
        )
      seen[key] = path.name


class TextTableSource(base.RecordSource):
  """The texts of a .csv file, plain, .gz or .xz.

  The first row names the columns: `user`, `text`, and any number of columns
  that are ignored. A text is plain text with any number of sentences. A user's
  rows may be anywhere.

  Example:

  ```
  source = TextTableSource('posts.csv')  # user,text
  ```
  """

  def __init__(self, path: os.PathLike | str):
    """Checks the header.

    Args:
      path: Path of the file.

    Raises:
      SourceError: If the file is missing, or lacks one of the columns.
    """
    self._path = pathlib.Path(path)
    header = read_header(self._path)
    for column in (_USER, _TEXT):
      if header.count(column) != 1:
        raise errors.SourceError(
          f'{self._path} must have a header with one column {column}. Found'
          f' {", ".join(header) or "an empty file":.200}.'
        )
    super().__init__(f'csv:{self._path.name}', [self._path])
    self._num_columns = len(header)
    self._user, self._text = header.index(_USER), header.index(_TEXT)

  def records(self) -> Iterator[base.Record]:
    # csv's own limit is 131,072 characters. Without any limit, a quote that is
    # never closed would read the whole file as one text.
    csv.field_size_limit(files.MAX_LINE)
    rows = csv.reader(_decoded(self._lines(self._path)), strict=True)
    try:
      next(rows)
      for row in filter(None, rows):  # Skips blank lines.
        self.tally.rows += 1
        where = f'{self._path.name}, line {rows.line_num}'
        if len(row) != self._num_columns:
          fault = f'it has {len(row)} cells instead of {self._num_columns}'
          self.tally.add_fault(base.MALFORMED, f'{where}: {fault}')
        elif self._is_somebody(row[self._user], where):
          if base.is_encodable(row[self._text]):
            yield base.Record(row[self._user], row[self._text])
          else:
            self.tally.add_fault(base.NOT_UTF8, f'{where}: it is not UTF-8')
    except csv.Error as e:
      raise errors.SourceError(
        f'{self._path}, line {rows.line_num}, must be a row of a CSV file: {e}.'
      ) from e


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
  """Yields lines; bytes that are not UTF-8 become lone surrogates."""
  for number, line in enumerate(lines):
    if number == 0:
      line = line.removeprefix(codecs.BOM_UTF8)
    yield line.decode(errors='surrogateescape')


def read_header(path: pathlib.Path) -> list[str]:
  """Returns the names of the columns; an empty list for an empty file.

  Raises:
    SourceError: If the file is missing or damaged.
  """
  try:
    with files.opened(path) as f:
      return next(csv.reader(_decoded(f), strict=True), [])
  except csv.Error as e:
    raise errors.SourceError(f'{path} must be a CSV file: {e}.') from e


def is_text_table(path: os.PathLike | str) -> bool:
  """Returns whether a .csv file holds texts, not numbers.

  Raises:
    SourceError: If the file is missing or damaged, or has neither a column
      `text` nor a column `label`.
  """
  header = read_header(pathlib.Path(path))
  if _TEXT not in header and _LABEL not in header:
    raise errors.SourceError(
      f'{path} must have a header with the columns {_USER} and {_TEXT}, or'
      f' {_USER}, {_LABEL} and features. Found'
      f' {", ".join(header) or "an empty file":.200}. Rename the columns in'
      ' the first line.'
    )
  return _TEXT in header
