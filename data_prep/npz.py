"""Reads untrusted .npz files, and checks inputs, labels and classes."""

from collections.abc import Collection, Sized
import pathlib
from typing import Optional
import zipfile

from data_prep import errors
import numpy as np

CLASSES = 'num_classes'
_COUNTED = (
  'The number of classes was read off all labels, private ones too, which'
  f' epsilon does not cover: an array {CLASSES} in an .npz file would say it.'
)
_MOST_CLASSES = 2**16
_SUFFIX = '.npy'
_MOST_NAMES = 10  # Array names shown in a message.
# By number of dimensions.
_SHAPES = {
  2: '[examples, features]',
  3: '[examples, height, width]',
  4: '[examples, height, width, channels]',
}


def _check_names(
  path: pathlib.Path, names: list[str], known: tuple[str, ...]
) -> None:
  """Raises SourceError if a file has unknown or repeated arrays.

  Otherwise a misspelled name would silently leave out public data.
  """
  if set(names) - set(known) or len(set(names)) < len(names):
    found = ', '.join(f'{name:.40}' for name in names[:_MOST_NAMES])
    more = ', ...' if len(names) > _MOST_NAMES else ''
    raise errors.SourceError(
      f'{path} must hold only the arrays {", ".join(known)}, each once. Found'
      f' {found}{more}.'
    )


def _read(archive: zipfile.ZipFile, member: str) -> np.ndarray:
  with archive.open(member) as f:
    array = np.lib.format.read_array(f, allow_pickle=False)
    # Up to the end, where zipfile compares the checksum.
    if f.read(1):
      raise ValueError(f'more bytes than the shape {array.shape} has')
  return array


def read_arrays(
  path: pathlib.Path, known: tuple[str, ...]
) -> dict[str, np.ndarray]:
  """Reads the arrays of an .npz file.

  Raises:
    SourceError: If the file is missing, damaged, or has another array.
  """
  arrays = {}
  member = 'its list of arrays'
  try:
    with zipfile.ZipFile(path) as archive:
      members = archive.namelist()
      _check_names(path, [m.removesuffix(_SUFFIX) for m in members], known)
      for member in members:
        arrays[member.removesuffix(_SUFFIX)] = _read(archive, member)
  except errors.SourceError:
    raise
  except FileNotFoundError as e:
    raise errors.SourceError(f'{path} is missing.') from e
  except Exception as e:
    # Numpy evaluates headers as Python, which can fail in many ways.
    raise errors.SourceError(
      f'{path} is truncated, damaged or not an .npz file of arrays: {member}'
      ' must hold numbers or strings, and all rows must have the same shape.'
      f' Found {e!r:.200}.'
    ) from e
  return arrays


def check_inputs(
  path: pathlib.Path,
  name: str,
  inputs: np.ndarray,
  dimensions: Collection[int] = tuple(_SHAPES),
) -> np.ndarray:
  """Returns inputs with channels, in the machine's order, at most as float32.

  Raises:
    SourceError: If the array has no finite numbers, or channels come first.
  """
  if (
    inputs.dtype.kind not in 'biuf'
    or inputs.ndim not in dimensions
    or not inputs.size
  ):
    shapes = ' or '.join(_SHAPES[number] for number in dimensions)
    raise errors.SourceError(
      f'{path}: {name} must be a non-empty array of numbers, {shapes}. Found'
      f' {inputs.dtype} of the shape {inputs.shape}.'
    )
  if inputs.ndim == 3:
    inputs = inputs[..., None]
  # PyTorch's order: no image is this low and has so many channels.
  if inputs.ndim == 4 and inputs.shape[1] in (1, 3, 4) and inputs.shape[3] > 4:
    raise errors.SourceError(
      f'{path}: {name} must have channels last. Found the shape {inputs.shape}.'
    )
  is_long = inputs.dtype.kind == 'f' and inputs.dtype.itemsize > 4
  dtype = np.dtype(np.float32) if is_long else inputs.dtype
  with np.errstate(over='ignore'):
    inputs = np.ascontiguousarray(inputs, dtype.newbyteorder('<'))
  is_finite = np.isfinite(inputs).reshape(len(inputs), -1).all(1)
  if not is_finite.all():
    row = int(np.argmin(is_finite))
    raise errors.SourceError(
      f'{path}: {name} must be finite. Found nan, inf or a number too large for'
      f' {inputs.dtype} in row {row}.'
    )
  return inputs


def check_labels(
  path: pathlib.Path, name: str, labels: np.ndarray
) -> np.ndarray:
  """Returns labels as int32.

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

  Raises:
    SourceError: If the array is invalid, or there is only one class.
  """
  if given is None:
    if largest < 1:
      raise errors.SourceError(
        f'{path} must have at least two classes. Found 1.'
      )
    return largest + 1, (_COUNTED,)
  least = max(largest + 1, 2)
  is_integer = given.dtype.kind in 'iu' and given.size == 1
  if not is_integer or not least <= given.item() <= _MOST_CLASSES:
    raise errors.SourceError(
      f'{path}: {CLASSES} must be one integer from {least}, the largest'
      f' label plus one, to {_MOST_CLASSES:,}. Found {given.tolist()!r:.80}.'
    )
  return int(given.item()), ()
