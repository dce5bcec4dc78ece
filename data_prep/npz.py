"""Reads untrusted .npz files, and checks labels and classes."""

from collections.abc import Sequence, Sized
import lzma
import math
import pathlib
from typing import Any, IO, Optional
import zipfile
import zlib

from data_prep import errors
from data_prep import files
import numpy as np

CLASSES = 'num_classes'
_COUNTED = (
  'The number of classes was read off all labels, private ones too, which'
  f' epsilon does not cover: an array {CLASSES} in an .npz file would say it.'
)
_MOST_CLASSES = 2**16
_SUFFIX = '.npy'
_MOST_NAMES = 10  # Array names shown in a message.
_HEADERS = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}


def _read_header(f: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, Any]:
  """Returns shape, whether it is Fortran order, and dtype of an array.

  Args:
    f: File at the start of the array; afterwards at its numbers.
    name: Name of the array.

  Raises:
    ValueError: If the header is damaged, or the array holds objects.
  """
  try:
    version = np.lib.format.read_magic(f)
    shape, is_fortran, dtype = _HEADERS[version](f)
  except Exception as e:
    # Numpy evaluates the header as Python, which can fail in many ways.
    raise ValueError(f'{name} has a damaged header ({e!r:.80})') from e
  if dtype.hasobject:
    raise ValueError(
      f'{name} holds Python objects, which are not read: all rows must have'
      ' the same shape'
    )
  if any(type(size) is not int or size < 0 for size in shape):
    raise ValueError(f'{name} has the shape {shape!r:.80}')
  return shape, is_fortran, dtype


def _read(archive: zipfile.ZipFile, name: str) -> np.ndarray:
  """Returns an array, without trusting the size in its header.

  Args:
    archive: The .npz file.
    name: Name of the array.

  Raises:
    ValueError: If the array is damaged, or holds objects.
  """
  with archive.open(name + _SUFFIX) as f:
    shape, is_fortran, dtype = _read_header(f, name)
    expected = math.prod(shape) * dtype.itemsize
    content = files.read_at_most(f, expected)
  if len(content) != expected:
    raise ValueError(
      f'{name} must have {expected:,} bytes, but has another number'
    )
  flat = np.frombuffer(content, dtype)
  return flat.reshape(shape, order='F' if is_fortran else 'C')


def _check_names(
  path: pathlib.Path, members: Sequence[str], known: tuple[str, ...]
) -> None:
  """Raises SourceError if a file has unknown or repeated arrays.

  Otherwise a misspelled name would silently leave out public data.

  Args:
    path: The file, for the message.
    members: Names of its members.
    known: Allowed names of arrays.
  """
  names = [member.removesuffix(_SUFFIX) for member in members]
  if set(names) - set(known) or len(set(names)) < len(names):
    found = ', '.join(f'{name:.40}' for name in names[:_MOST_NAMES])
    more = ', ...' if len(names) > _MOST_NAMES else ''
    raise errors.SourceError(
      f'{path} must hold only the arrays {", ".join(known)}, each once. Found'
      f' {found}{more}.'
    )


def read_arrays(
  path: pathlib.Path, known: tuple[str, ...]
) -> dict[str, np.ndarray]:
  """Reads the arrays of an .npz file.

  Args:
    path: The file.
    known: Allowed names of arrays. Not all need to be present.

  Raises:
    SourceError: If the file is missing, damaged, or has another array.
  """
  try:
    with zipfile.ZipFile(path) as archive:
      there = archive.namelist()
      others = [m for m in there if not m.endswith(_SUFFIX)]
      if others:
        raise ValueError(f'{others[0]!r:.80} in it is not an array')
      _check_names(path, there, known)
      return {
        name: _read(archive, name) for name in known if name + _SUFFIX in there
      }
  except FileNotFoundError as e:
    raise errors.SourceError(f'{path} is missing.') from e
  except (
    EOFError,
    OSError,
    RuntimeError,  # A password, or an unknown compression.
    ValueError,
    lzma.LZMAError,
    zipfile.BadZipFile,
    zlib.error,
  ) as e:
    raise errors.SourceError(
      f'{path} is truncated, damaged or not an .npz file of arrays: {e}.'
    ) from e


def with_channels(
  path: pathlib.Path, name: str, images: np.ndarray
) -> np.ndarray:
  """Returns images as [images, height, width, channels].

  Args:
    path: The file of the array, for error messages.
    name: The name of the array, for error messages.
    images: The array. Grey images may lack the last dimension.

  Raises:
    SourceError: If channels come first.
  """
  if images.ndim == 3:
    images = images[..., None]
  # PyTorch's order: no image is this low and has so many channels.
  if images.shape[1] in (1, 3, 4) and images.shape[3] > 4:
    raise errors.SourceError(
      f'{path}: {name} must have channels last. Found the shape {images.shape}.'
    )
  return images


def check_labels(
  path: pathlib.Path, name: str, labels: np.ndarray
) -> np.ndarray:
  """Returns labels as int32.

  Args:
    path: The file of the array, for error messages.
    name: The name of the array, for error messages.
    labels: The array.

  Raises:
    SourceError: If the labels are not classes.
  """
  if labels.dtype.kind not in 'iu' or labels.ndim != 1 or not labels.size:
    raise errors.SourceError(
      f'{path}: {name} must be a vector of integers. Found {labels.dtype}'
      f' of the shape {labels.shape}.'
    )
  least, most = int(labels.min()), int(labels.max())
  if least < 0 or most >= _MOST_CLASSES:
    raise errors.SourceError(
      f'{path}: {name} must be in [0, {_MOST_CLASSES:,}). Found {least} to'
      f' {most}.'
    )
  return labels.astype(np.int32)


def check_lengths(path: pathlib.Path, **arrays: Sized) -> None:
  """Raises SourceError if arrays differ in length."""
  (first, of), *others = arrays.items()
  for name, array in others:
    if len(array) != len(of):
      raise errors.SourceError(
        f'{path}: {name} must have the length of {first}, {len(of):,}. Found'
        f' {len(array):,}.'
      )


def count_classes(
  path: pathlib.Path, largest: int, given: Optional[np.ndarray]
) -> tuple[int, tuple[str, ...]]:
  """Returns the number of classes, and caveats on it.

  Args:
    path: The file, for error messages.
    largest: The largest label.
    given: The array `CLASSES`, if present.

  Raises:
    SourceError: If the array is invalid, or there is only one class.
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
      f'{path}: {CLASSES} must be one integer from {least}, the largest'
      f' label plus one, to {_MOST_CLASSES:,}. Found {given.tolist()!r:.80}.'
    )
  return int(given.item())
