"""Images or a table from arrays in an .npz file.

    np.savez_compressed('mine.npz', train_images=..., train_labels=...,
                        test_images=..., test_labels=...)

Public images from another source may be added as `public_images` and
`public_labels`; all training images are then private. `num_classes` is
optional; other arrays are not allowed. A table has `train_inputs` instead of
`train_images`, and so on.
"""

from collections.abc import Callable
import hashlib
import os
import pathlib
from typing import NamedTuple, Optional

from data_prep import errors
from data_prep import npz
from data_prep.sample_level import base
import numpy as np

_PARTS = ('train', 'test', 'public')
# Not how many training inputs: the count would be exact.
_OVERLAPS = {
  'train': 'Some public {0} are among the training {0}: epsilon does not cover'
  ' what these reveal.',
  'test': '{1:,} public {0} are among the test {0}: these are not new to the'
  ' model.',
}


class _Kind(NamedTuple):
  """A kind of file.

  Attributes:
    dataset: Name of the data set.
    inputs: How inputs are called in array names: 'images' or 'inputs'.
    check: Function of (path, name, array) that checks and converts inputs.
  """

  dataset: str
  inputs: str
  check: Callable[[pathlib.Path, str, np.ndarray], np.ndarray]

  def names(self, part: str) -> tuple[str, str]:
    """Returns the names of a part's arrays."""
    return f'{part}_{self.inputs}', f'{part}_labels'


def _images(path: pathlib.Path, name: str, images: np.ndarray) -> np.ndarray:
  if images.dtype != np.uint8:
    raise errors.SourceError(
      f'{path}: {name} must have the type uint8, from 0 to 255. Found'
      f' {images.dtype}.'
    )
  if images.ndim not in (3, 4) or not images.size:
    raise errors.SourceError(
      f'{path}: {name} must be a non-empty array [images, height, width]'
      f' or [images, height, width, channels]. Found the shape {images.shape}.'
    )
  return np.ascontiguousarray(npz.with_channels(path, name, images))


def _rows(path: pathlib.Path, name: str, rows: np.ndarray) -> np.ndarray:
  if rows.dtype.kind not in 'fiu' or rows.ndim != 2 or not rows.size:
    raise errors.SourceError(
      f'{path}: {name} must be a non-empty array of numbers, [examples,'
      f' features]. Found {rows.dtype} of the shape {rows.shape}.'
    )
  with np.errstate(all='ignore'):
    rows = np.ascontiguousarray(rows, np.float32)
  if not np.isfinite(rows).all():
    row, column = np.argwhere(~np.isfinite(rows))[0]
    raise errors.SourceError(
      f'{path}: {name} must be finite in float32. Found'
      f' {rows[row, column]} in row {row}, column {column}.'
    )
  return rows


_IMAGES = _Kind('images', 'images', _images)
_TABLE = _Kind('table', 'inputs', _rows)


def _part(
  path: pathlib.Path, kind: _Kind, arrays: dict[str, np.ndarray], part: str
) -> Optional[base.Examples]:
  """Returns the examples of a part; None if there are no public ones."""
  names = kind.names(part)
  missing = [name for name in names if name not in arrays]
  if part == 'public' and len(missing) == 2:
    return None
  if missing:
    found = ', '.join(arrays) or 'none of them'
    raise errors.SourceError(
      f'{path} must hold the array {missing[0]}. Found {found}.'
    )
  inputs = kind.check(path, names[0], arrays[names[0]])
  labels = npz.check_labels(path, names[1], arrays[names[1]])
  npz.check_lengths(path, **dict(zip(names, (inputs, labels), strict=True)))
  return base.Examples(inputs, labels)


def load_images(path: os.PathLike | str) -> base.SampleLevelData:
  """Reads your own images from an .npz file.

  Example:

    >>> import tempfile
    >>> images, labels = np.zeros([6, 8, 8], np.uint8), np.arange(6) % 3
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   np.savez(
    ...     f'{folder}/images.npz', train_images=images, train_labels=labels,
    ...     test_images=images, test_labels=labels, num_classes=3,
    ...   )
    ...   data = load_images(folder)
    >>> data.train.inputs.shape, data.num_classes
    ((6, 8, 8, 1), 3)

  Args:
    path: The file, or a folder that holds it as `images.npz`. Its arrays are
      `train_images`, `train_labels`, `test_images` and `test_labels`, with
      images in uint8. Optional are `public_images` and `public_labels`, from
      another source, and `num_classes`. Without the latter, the labels are
      counted.

  Returns:
    The data.

  Raises:
    SourceError: If the file is missing or damaged, or an array is invalid.
  """
  return _load(pathlib.Path(path), _IMAGES)


def load_table(path: os.PathLike | str) -> base.SampleLevelData:
  """Reads your own table, with a row of numbers for each example.

  Example:

    >>> import tempfile
    >>> rows, labels = np.zeros([6, 4]), np.arange(6) % 3
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   np.savez(
    ...     f'{folder}/table.npz', train_inputs=rows, train_labels=labels,
    ...     test_inputs=rows, test_labels=labels, num_classes=3,
    ...   )
    ...   data = load_table(folder)
    >>> data.train.inputs.shape, data.train.inputs.dtype.name
    ((6, 4), 'float32')

  Args:
    path: The file, or a folder that holds it as `table.npz`. Its arrays are
      those of `load_images`, but named `train_inputs` instead of `train_images`
      and so on. Inputs are [examples, features], finite floats or integers.

  Returns:
    The data, in float32.

  Raises:
    SourceError: If the file is missing or damaged, or an array is invalid.
  """
  return _load(pathlib.Path(path), _TABLE)


def _load(path: pathlib.Path, kind: _Kind) -> base.SampleLevelData:
  path = path / f'{kind.dataset}.npz' if path.is_dir() else path
  known = *(name for part in _PARTS for name in kind.names(part)), npz.CLASSES
  arrays = npz.read_arrays(path, known)
  parts = {part: _part(path, kind, arrays, part) for part in _PARTS}
  there = {name: part for name, part in parts.items() if part is not None}
  shape = there['train'].inputs.shape[1:]
  for name, part in there.items():
    if part.inputs.shape[1:] != shape:
      raise errors.SourceError(
        f'{path}: {name}_{kind.inputs} must have the shape {shape}, like'
        f' train_{kind.inputs}. Found {part.inputs.shape[1:]}.'
      )
  largest = max(int(part.targets.max()) for part in there.values())
  num_classes, caveats = npz.count_classes(
    path, largest, arrays.get(npz.CLASSES)
  )
  return base.SampleLevelData(
    name=kind.dataset,
    train=parts['train'],
    test=parts['test'],
    public=parts['public'],
    num_classes=num_classes,
    caveats=(*_overlaps(there, kind.inputs), *caveats),
  )


def _overlaps(parts: dict[str, base.Examples], inputs: str) -> list[str]:
  """Returns caveats on public inputs that are also private or test inputs."""
  if 'public' not in parts:
    return []
  public = _digests(parts['public'].inputs)
  return [
    what.format(inputs, len(found))
    for part, what in _OVERLAPS.items()
    if (found := public & _digests(parts[part].inputs))
  ]


def _digests(inputs: np.ndarray) -> set[bytes]:
  return {hashlib.blake2b(one, digest_size=16).digest() for one in inputs}
