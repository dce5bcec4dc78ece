"""JSON lines, each with a `user` and a `text`."""

import codecs
from collections.abc import Iterator, Sequence
import glob
import json
import pathlib
from typing import Any, Optional

from data_prep import errors
from data_prep import files
from data_prep.sources import base

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
    user = str(row['user'])
    if not self._is_somebody(user, where):
      return None
    return base.Record(user, row['text'])


def _find_fault(row: Any) -> str:
  """Returns the fault of a row; '' if there is none."""
  if not isinstance(row, dict):
    return 'it is not an object with the keys "user" and "text"'
  for key in ('user', 'text'):
    if key not in row:
      keys = ', '.join(f'"{name:.40}"' for name in list(row)[:_MOST_KEYS])
      return f'it has no key "{key}", its keys are {keys or "none"}'
  if not isinstance(row['user'], (int, str)) or isinstance(row['user'], bool):
    return '"user" is neither a string nor an integer'
  if not isinstance(row['text'], str):
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
