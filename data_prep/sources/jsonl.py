"""Lines of JSON, each with a `user` and a `text`."""

from collections.abc import Iterator
import glob
import json
import pathlib

from data_prep import tokenizer
from data_prep.sources import base
from data_prep.sources import files


class JsonlSource(base.RecordSource):
  """JSON lines in one file or many, plain, .gz or .xz.

  `user` is a string or an integer, `text` is plain text of any number of
  sentences. A user's lines may lie anywhere; their order is that of the lines,
  and of the files by name. Other fields are ignored.
  """

  def __init__(self, pattern: str):
    """Finds the files.

    Args:
      pattern: A path, or a pattern such as 'dump/*.jsonl.gz'.

    Raises:
      FileNotFoundError: If no file matches.
    """
    super().__init__()
    self._pattern = pattern
    literal = pathlib.Path(pattern)
    matches = [pattern] if literal.is_file() else sorted(glob.glob(pattern))
    self._paths = [path for path in matches if pathlib.Path(path).is_file()]
    if not self._paths:
      raise FileNotFoundError(f'jsonl: no file matches {pattern}.')
    self._reader = files.LineReader(self._paths)

  @property
  def name(self) -> str:
    return f'jsonl:{pathlib.Path(self._pattern).name}'

  @property
  def num_bytes(self) -> int:
    return self._reader.num_bytes

  @property
  def bytes_read(self) -> int:
    return self._reader.bytes_read

  def records(self) -> Iterator[tuple[str, str, str]]:
    for path in self._paths:
      for line in self._reader.lines(path):
        record = self._parse(line)
        if record is not None:
          yield record

  def _parse(self, line: bytes):
    if not line.strip():
      return None  # A blank line at the end of a file is no row.
    self.tally.rows += 1
    try:
      row = json.loads(line.decode())
    except UnicodeDecodeError:
      self.tally.skipped[base.NOT_UTF8] += 1
      return None
    except (ValueError, RecursionError):
      self.tally.skipped[base.MALFORMED] += 1
      return None
    user = row.get('user') if isinstance(row, dict) else None
    text = row.get('text') if isinstance(row, dict) else None
    if isinstance(user, int) and not isinstance(user, bool):
      user = str(user)
    if (
      not isinstance(user, str)
      or not isinstance(text, str)
      or len(user) > base.MAX_ID_LENGTH
    ):
      self.tally.skipped[base.MALFORMED] += 1
      return None
    if not _is_encodable(user):
      self.tally.skipped[base.NOT_UTF8] += 1
      return None
    if not user:
      self.tally.skipped[base.NO_USER] += 1
      return None
    return user, base.TRAIN, text

  def split_sentences(self, content: str) -> list[str]:
    return tokenizer.split_sentences(content)


def _is_encodable(user: str) -> bool:
  """Whether it is no lone surrogate, which JSON can write and UTF-8 cannot."""
  try:
    user.encode()
  except UnicodeEncodeError:
    return False
  return True
