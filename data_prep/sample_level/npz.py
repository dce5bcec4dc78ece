"""Arrays of one's own: .npz files read without trust, labels, classes."""

from collections.abc import Sequence, Sized
import lzma
import math
import pathlib
from typing import Any, IO, Optional
import zipfile
import zlib

from data_prep import errors
from data_prep.sample_level import files
import numpy as np

CLASSES = 'num_classes'
_COUNTED = (
  'The number of classes was read off all labels, private ones too, which'
  f' epsilon does not cover: an array {CLASSES} in an .npz file would say it.'
)
_MOST_CLASSES = 2**16
_SUFFIX = '.npy'
_MOST_NAMES = 10  # Of arrays, in a message.
_HEADERS = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}


def _read_header(f: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, Any]:
  """Returns shape, whether columns come first, and dtype of an array.

  Args:
    f: At its beginning; afterwards at the numbers.
    name: The array's.

  Raises:
    ValueError: If it is damaged, or not of plain numbers.
  """
  try:
    version = np.lib.format.read_magic(f)
    shape, is_fortran, dtype = _HEADERS[version](f)
  except Exception as e:
    # Numpy evaluates the header as Python, which can fail in many ways.
    raise ValueError(f'{name} has a damaged header ({e!r:.80})') from e
  if dtype.hasobject:
    raise ValueError(
      f'{name} holds Python objects, which are not read: all its rows must have'
      ' one shape'
    )
  if any(type(size) is not int or size < 0 for size in shape):
    raise ValueError(f'{name} has the shape {shape!r:.80}')
  return shape, is_fortran, dtype


def _read(archive: zipfile.ZipFile, name: str) -> np.ndarray:
  """Returns an array; no memory is taken for what a header only promises.

  Args:
    archive: The .npz file.
    name: The array's.

  Raises:
    ValueError: If it is damaged, or not of plain numbers.
  """
  with archive.open(name + _SUFFIX) as f:
    shape, is_fortran, dtype = _read_header(f, name)
    expected = math.prod(shape) * dtype.itemsize
    content = files.read_at_most(f, expected)
  if len(content) != expected:
    raise ValueError(f'{name} must have {expected:,} bytes, and has others')
  flat = np.frombuffer(content, dtype)
  return flat.reshape(shape, order='F' if is_fortran else 'C')


def _check_names(
  path: pathlib.Path, members: Sequence[str], known: tuple[str, ...]
) -> None:
  """Raises SourceError if a whole file has other arrays than it may.

  A name with a slip would leave public data out without a word.

  Args:
    path: The file, for the message.
    members: The names of its members.
    known: The names that arrays may have.
  """
  names = [member.removesuffix(_SUFFIX) for member in members]
  if set(names) - set(known) or len(set(names)) < len(names):
    found = ', '.join(f'{name:.40}' for name in names[:_MOST_NAMES])
    more = ', ...' if len(names) > _MOST_NAMES else ''
    raise errors.SourceError(
      f'{path} must hold no arrays but {", ".join(known)}, each once. Found'
      f' {found}{more}.'
    )


def read_arrays(
  path: pathlib.Path, known: tuple[str, ...]
) -> dict[str, np.ndarray]:
  """Reads the arrays of an .npz file.

  Args:
    path: The file.
    known: The names that arrays may have; not all need be there.

  Raises:
    SourceError: If it is missing, damaged, or has another array.
  """
  try:
    with zipfile.ZipFile(path) as archive:
      there = archive.namelist()
      others = [m for m in there if not m.endswith(_SUFFIX)]
      if others:
        raise ValueError(f'{others[0]!r:.80} in it is no array')
      _check_names(path, there, known)
      return {
        name: _read(archive, name) for name in known if name + _SUFFIX in there
      }
  except FileNotFoundError as e:
    raise errors.SourceError(f'{path} is missing.') from e
  except (
    EOFError,
    OSError,
    RuntimeError,  # A password, or a compression that is not known.
    ValueError,
    lzma.LZMAError,
    zipfile.BadZipFile,
    zlib.error,
  ) as e:
    raise errors.SourceError(
      f'{path} is cut off, damaged or no .npz file of arrays: {e}.'
    ) from e


def with_channels(
  path: pathlib.Path, name: str, images: np.ndarray
) -> np.ndarray:
  """Returns images as [images, height, width, channels].

  Args:
    path: The file of the array, for error messages.
    name: The name of the array, for error messages.
    images: The array; gray images may lack the last dimension.

  Raises:
    SourceError: If channels come first.
  """
  if images.ndim == 3:
    images = images[..., None]
  # As PyTorch has them: no image of so many channels is so low.
  if images.shape[1] in (1, 3, 4) and images.shape[3] > 4:
    raise errors.SourceError(
      f'{path} must hold {name} with channels last. Found the shape'
      f' {images.shape}.'
    )
  return images


def check_labels(
  path: pathlib.Path, name: str, labels: np.ndarray
) -> np.ndarray:
  """Returns labels in int32.

  Args:
    path: The file of the array, for error messages.
    name: The name of the array, for error messages.
    labels: The array.

  Raises:
    SourceError: If they are no classes.
  """
  if labels.dtype.kind not in 'iu' or labels.ndim != 1 or not labels.size:
    raise errors.SourceError(
      f'{path} must hold {name} as a row of integers. Found {labels.dtype} of'
      f' the shape {labels.shape}.'
    )
  least, most = int(labels.min()), int(labels.max())
  if least < 0 or most >= _MOST_CLASSES:
    raise errors.SourceError(
      f'{path} must hold {name} of 0, 1, 2, ..., below {_MOST_CLASSES:,}. Found'
      f' {least} to {most}.'
    )
  return labels.astype(np.int32)


def check_lengths(path: pathlib.Path, **arrays: Sized) -> None:
  """Raises SourceError unless all arrays are as long as the first."""
  (first, of), *others = arrays.items()
  for name, array in others:
    if len(array) != len(of):
      raise errors.SourceError(
        f'{path} must hold {len(of):,} {name}, as many as {first}. Found'
        f' {len(array):,}.'
      )


def count_classes(
  path: pathlib.Path, largest: int, given: Optional[np.ndarray]
) -> tuple[int, tuple[str, ...]]:
  """Returns the number of classes, and what must be said of it.

  Args:
    path: The file, for error messages.
    largest: The largest label.
    given: The array `CLASSES`, if there is one.

  Raises:
    SourceError: If it is no such number, or there is one class alone.
  """
  if given is not None:
    return _check_classes(path, given, max(largest + 1, 2)), ()
  if largest < 1:
    raise errors.SourceError(f'{path} must have at least two classes. Found 1.')
  return largest + 1, (_COUNTED,)


def _check_classes(path: pathlib.Path, given: np.ndarray, least: int) -> int:
  is_integer = given.dtype.kind in 'iu' and given.size == 1
  if not is_integer or not least <= given.item() <= _MOST_CLASSES:
    raise errors.SourceError(
      f'{path} must hold as {CLASSES} one integer from {least}, the largest'
      f' label and one, to {_MOST_CLASSES:,}. Found {given.tolist()!r:.80}.'
    )
  return int(given.item())
