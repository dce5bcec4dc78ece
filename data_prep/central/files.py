"""Files of published data sets: found, read whole, and checked."""

import gzip
import lzma
import os
import pathlib
from typing import Optional
import zlib

from data_prep import errors


def find_folder(
  data_dir: os.PathLike, names: tuple[str, ...], first_file: str
) -> pathlib.Path:
  """Returns the folder that holds a data set.

  Args:
    data_dir: The folder itself, or one that has it by one of its names.
    names: Names that the data set's archives give it.
    first_file: A file that must be in it.

  Raises:
    SourceError: If there is none.
  """
  root = pathlib.Path(data_dir)
  for folder in (root, *(root / name for name in names)):
    if any((folder / f'{first_file}{e}').exists() for e in ('', '.xz')):
      return folder
  raise errors.SourceError(
    f'{root} must hold {first_file}, or a folder {" or ".join(names)} that'
    ' does. Found neither.'
  )


def read_file(path: pathlib.Path, expected_size: Optional[int] = None) -> bytes:
  """Reads a file, `.gz` and `.xz` unpacked.

  Args:
    path: Of the file.
    expected_size: In bytes, unpacked; None takes any.

  Raises:
    SourceError: If it is missing, cut off, or of another size.
  """
  try:
    content = path.read_bytes()
    if path.suffix == '.gz':
      content = gzip.decompress(content)
    elif path.suffix == '.xz':
      content = lzma.decompress(content)
  except FileNotFoundError as e:
    raise errors.SourceError(f'{path} is missing.') from e
  except (EOFError, OSError, lzma.LZMAError, zlib.error) as e:
    raise errors.SourceError(f'{path} is cut off or damaged: {e}.') from e
  if expected_size is not None and len(content) != expected_size:
    raise errors.SourceError(
      f'{path} must have {expected_size:,} bytes. Found {len(content):,}.'
    )
  return content


def check_classes(path: pathlib.Path, targets, num_classes: int) -> None:
  """Raises SourceError unless all targets are classes."""
  if targets.size and int(targets.max()) >= num_classes:
    raise errors.SourceError(
      f'{path} must have labels from 0 to {num_classes - 1}. Found'
      f' {int(targets.max())}.'
    )
