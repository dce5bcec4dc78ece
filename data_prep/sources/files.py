"""Reads lines of large files and counts bytes."""

from collections.abc import Iterator, Sequence
import gzip
import lzma
import os
import pathlib
from typing import Any
import zlib

from data_prep import errors

# Longer lines are not rows; reading them whole would take too much memory.
MAX_LINE = 2**24
COMPRESSED = ('.gz', '.xz')


class LineReader:
  """Yields the lines of files one by one, plain or compressed.

  Attributes:
    num_bytes: Size of all files, as stored.
    bytes_read: Number of bytes read so far.
  """

  def __init__(self, paths: Sequence[os.PathLike | str]):
    self._paths = [pathlib.Path(path) for path in paths]
    self.num_bytes = sum(path.stat().st_size for path in self._paths)
    self.bytes_read = 0

  def lines(self, path: os.PathLike | str) -> Iterator[bytes]:
    """Yields the lines of a file, at most `MAX_LINE` bytes each.

    Args:
      path: One of the files. .gz and .xz are decompressed.

    Yields:
      Lines with their line break. A longer line comes in pieces.

    Raises:
      SourceError: If a compressed file is damaged or ends early.
    """
    path = pathlib.Path(path)
    before = self.bytes_read
    if path.suffix in COMPRESSED and not path.stat().st_size:
      raise errors.SourceError(
        f'{path.name} cannot be decompressed: it is empty. Is it complete?'
      )
    with open(path, 'rb') as raw:
      f: Any = raw
      if path.suffix == '.gz':
        f = gzip.GzipFile(fileobj=raw)
      elif path.suffix == '.xz':
        f = lzma.LZMAFile(raw)
      try:
        while line := f.readline(MAX_LINE):
          self.bytes_read = before + raw.tell()
          yield line
      except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as e:
        raise errors.SourceError(
          f'{path.name} cannot be decompressed: {e}. Is it complete?'
        ) from e
    self.bytes_read = before + path.stat().st_size
