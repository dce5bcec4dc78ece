"""A table of texts in a .csv file, with the columns `user` and `text`."""

import codecs
from collections.abc import Iterable, Iterator
import csv
import os
import pathlib

from data_prep import errors
from data_prep import files
from data_prep.sources import base

_USER = 'user'
_TEXT = 'text'
_LABEL = 'label'  # Of a table of numbers, see `arrays.open_csv`.


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

  Args:
    path: Path of a .csv file.

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

  Args:
    path: Path of the file.

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
