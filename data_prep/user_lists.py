"""Reads lists of user ids from files."""

import os
import pathlib

from data_prep import errors


def read_user_ids(path: os.PathLike | str) -> tuple[str, ...]:
  """Reads user ids, one per line.

  Args:
    path: A UTF-8 file; empty lines are ignored.

  Returns:
    The ids in the order of the file.

  Raises:
    OSError: If the file cannot be read.
    SourceError: If the file is empty, repeats an id or is not UTF-8.
  """
  name = pathlib.Path(path).name
  try:
    lines = pathlib.Path(path).read_text(encoding='utf-8-sig').split('\n')
  except UnicodeDecodeError as e:
    raise errors.SourceError(f'{name} is not UTF-8: {e}.') from e
  ids: dict[str, int] = {}
  for number, line in enumerate(lines, start=1):
    # Nothing else is stripped: 'a ' is another user than 'a'.
    user = line.removesuffix('\r')
    if user in ids:
      raise errors.SourceError(
        f'{name}, line {number}: {user!r} is already on line {ids[user]}.'
      )
    if user:
      ids[user] = number
  if not ids:
    raise errors.SourceError(f'{name} must hold user ids. Found none.')
  return tuple(ids)
