"""Reads lists of user ids and of words from files."""

from collections.abc import Callable
import os
import pathlib

from data_prep import errors


def _read_distinct(
  path: os.PathLike | str, parse: Callable[[str], str]
) -> list[str]:
  """Returns what `parse` finds in each line; empty lines are ignored."""
  name = pathlib.Path(path).name
  try:
    lines = pathlib.Path(path).read_text(encoding='utf-8-sig').split('\n')
  except UnicodeDecodeError as e:
    raise errors.SourceError(f'{name} is not UTF-8: {e}.') from e
  found: dict[str, int] = {}
  for number, line in enumerate(lines, start=1):
    try:
      value = parse(line)
      if value in found:
        raise ValueError(f'{value!r} is already on line {found[value]}')
    except ValueError as e:
      raise errors.SourceError(f'{name}, line {number}: {e}.') from e
    if value:
      found[value] = number
  return list(found)


def read_user_ids(path: os.PathLike | str) -> tuple[str, ...]:
  """Reads user ids, one per line.

  Returns:
    The ids in the order of the file.

  Raises:
    OSError: If the file cannot be read.
    SourceError: If the file is empty, repeats an id or is not UTF-8.
  """
  # Nothing else is stripped: 'a ' is another user than 'a'.
  ids = _read_distinct(path, lambda line: line.removesuffix('\r'))
  if not ids:
    raise errors.SourceError(
      f'{pathlib.Path(path).name} must hold user ids. Found none.'
    )
  return tuple(ids)


def read_words(path: os.PathLike | str) -> list[str]:
  """Reads a vocabulary: per line a word, or a word and its count.

  Returns:
    The words in the order of the file.

  Raises:
    OSError: If the file cannot be read.
    SourceError: If a line is malformed, a word occurs twice, or the file is not
      UTF-8.
  """

  def parse(line: str) -> str:
    word, *count = line.split() or ['']
    if count and (len(count) > 1 or not count[0].isdigit()):
      raise ValueError(
        f'must be a word, or a word and its count. Found {line.strip()!r}'
      )
    return word

  return _read_distinct(path, parse)
