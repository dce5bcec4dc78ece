"""JSON lines, each with a `user` and a `text`."""

import codecs
from collections.abc import Iterator, Mapping, Sequence
import glob
import json
import pathlib
from typing import Any

from data_prep import errors
from data_prep import tokenizer
from data_prep.sources import base
from data_prep.sources import files

_MOST_KEYS = 5  # Shown in a message.


class JsonlSource(base.LineSource):
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
    super().__init__()
    self._pattern = pattern
    literal = pathlib.Path(pattern)
    matches = [pattern] if literal.is_file() else sorted(glob.glob(pattern))
    self._paths = [path for path in matches if pathlib.Path(path).is_file()]
    if not self._paths:
      raise FileNotFoundError(f'jsonl: no file matches {pattern}.')
    _check_twins(self._paths)
    self._reader = files.LineReader(self._paths)

  @property
  def name(self) -> str:
    return f'jsonl:{pathlib.Path(self._pattern).name}'

  @property
  def notes(self) -> Mapping[str, list[str]]:
    return {'files read': [pathlib.Path(path).name for path in self._paths]}

  def records(self) -> Iterator[tuple[str, str, str]]:
    for path in self._paths:
      for number, line in enumerate(self._reader.lines(path)):
        if number == 0:
          line = line.removeprefix(codecs.BOM_UTF8)
        where = f'{pathlib.Path(path).name}, line {number + 1}'
        record = self._parse(line, where)
        if record is not None:
          yield record

  def _parse(self, line: bytes, where: str):
    if not line.strip():
      return None  # Skips blank lines at the end of a file.
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
    user, text = str(row['user']), row['text']
    if not base.is_encodable(user):
      self.tally.add_fault(base.NOT_UTF8, f'{where}: "user" is not UTF-8')
      return None
    if not user:
      self.tally.skipped[base.NO_USER] += 1
      return None
    return user, base.TRAIN, text

  def split_sentences(self, content: str) -> list[str]:
    return tokenizer.split_sentences(content)


def _find_fault(row: Any) -> str:
  """Returns the fault of a row; '' if there is none."""
  if not isinstance(row, dict):
    return 'it is not an object with the keys "user" and "text"'
  for key in ('user', 'text'):
    if key not in row:
      keys = ', '.join(f'"{name:.40}"' for name in list(row)[:_MOST_KEYS])
      return f'it has no key "{key}", its keys are {keys or "none"}'
  user = row['user']
  if not isinstance(user, (int, str)) or isinstance(user, bool):
    return '"user" is neither a string nor an integer'
  if len(str(user)) > base.MAX_ID_LENGTH:
    return f'"user" has more than {base.MAX_ID_LENGTH} characters'
  if not isinstance(row['text'], str):
    return '"text" is not a string'
  return ''


def _check_twins(paths: Sequence[str]) -> None:
  """Raises if a text would be read twice.

  The second copy of a private sentence could be public, as overflow.

  Args:
    paths: Paths of existing files.

  Raises:
    SourceError: If two paths are the same file, or one is the other compressed.
  """
  seen: dict[object, str] = {}
  for path in map(pathlib.Path, paths):
    status = path.stat()
    plain = path.with_suffix('') if path.suffix in files.COMPRESSED else path
    for key in ((status.st_dev, status.st_ino), plain):
      if key in seen:
        raise errors.SourceError(
          f'jsonl: {seen[key]} and {path.name} are the same text. Choose one.'
        )
      seen[key] = path.name
