"""Finds, reads and checks files, plain or compressed."""

from collections.abc import Iterator
import contextlib
import gzip
import lzma
import os
import pathlib
from typing import Any, IO, Optional
import zlib

from data_prep import errors

_OPENERS: dict[str, Any] = {'.gz': gzip.open, '.xz': lzma.open}
COMPRESSED = tuple(_OPENERS)
# Longer lines are not rows; reading them whole would take too much memory.
MAX_LINE = 2**24
# More than the decompressed size of any file of the published data sets.
_MAX_SIZE = 2**32
_CHUNK = 2**20


@contextlib.contextmanager
def opened(path: os.PathLike | str) -> Iterator[IO[bytes]]:
  """Opens a file, and decompresses `.gz` and `.xz`.

  Yields:
    The open file.

  Raises:
    SourceError: If the file is missing, or damaged where it is read.
  """
  path = pathlib.Path(path)
  try:
    if path.suffix in COMPRESSED and not path.stat().st_size:
      raise EOFError('it is empty')
    with _OPENERS.get(path.suffix, open)(path, 'rb') as f:
      yield f
  except FileNotFoundError as e:
    raise errors.SourceError(f'{path} is missing.') from e
  except (EOFError, OSError, lzma.LZMAError, zlib.error) as e:
    raise errors.SourceError(
      f'{path} is truncated or damaged: {e}. Is it complete?'
    ) from e


def find_folder(
  data_dir: os.PathLike | str, names: tuple[str, ...], first_file: str
) -> pathlib.Path:
  """Returns the folder that holds a data set: the given one, or one below.

  Raises:
    SourceError: If none of them has the first file, plain or as .xz.
  """
  root = pathlib.Path(data_dir)
  for folder in (root, *(root / name for name in names)):
    if any((folder / f'{first_file}{e}').exists() for e in ('', '.xz')):
      return folder
  raise errors.SourceError(
    f'{root} must hold {first_file}, or a folder {" or ".join(names)} with it.'
    ' Found neither.'
  )


def read_at_most(f: IO[bytes], size: int) -> bytes:
  """Reads a file to its end, or to one byte more than `size`.

  A small file may decompress to more than fits into memory, and a damaged
  header may promise too much. So memory is only used for bytes that exist.
  """
  chunks, left = [], size + 1
  while left and (chunk := f.read(min(left, _CHUNK))):
    chunks.append(chunk)
    left -= len(chunk)
  return b''.join(chunks)


def read_file(path: pathlib.Path, expected_size: Optional[int] = None) -> bytes:
  """Reads a file, and decompresses `.gz` and `.xz`, to 4 GiB at most.

  Raises:
    SourceError: If the file is missing, truncated, or has another size than the
      expected one, after decompression.
  """
  most = _MAX_SIZE if expected_size is None else expected_size
  with opened(path) as f:
    content = read_at_most(f, most)
  if len(content) > most or len(content) < (expected_size or 0):
    found = 'more' if len(content) > most else f'{len(content):,}'
    raise errors.SourceError(
      f'{path} must have {most:,} bytes, if decompressed. Found {found}.'
    )
  return content


def check_classes(path: pathlib.Path, targets, num_classes: int) -> None:
  """Raises SourceError if there are no targets, or one is not a class."""
  if not targets.size:
    raise errors.SourceError(f'{path} must have labels. Found none.')
  if int(targets.max()) >= num_classes:
    raise errors.SourceError(
      f'{path} must have labels from 0 to {num_classes - 1}. Found'
      f' {int(targets.max())}.'
    )
