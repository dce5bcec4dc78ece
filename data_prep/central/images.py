"""Images of one's own, as arrays in an .npz file.

    np.savez_compressed('mine.npz', train_images=..., train_labels=...,
                        test_images=..., test_labels=...)

Public images of another source may be there as `public_images` and
`public_labels`; all training images are private then. `num_classes` may be
there, and no other array.
"""

import math
import os
import pathlib
from typing import Optional
import zipfile
import zlib

from data_prep import errors
from data_prep.central import base
from data_prep.central import files
import numpy as np

_NAME = 'images.npz'
_PARTS = ('train', 'test', 'public')
_CLASSES = 'num_classes'
_COUNTED = (
  'The number of classes was read off all labels, private ones too, which'
  f' epsilon does not cover: an array {_CLASSES} in the file would say it.'
)
_HEADERS = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}


def _read(archive: zipfile.ZipFile, name: str) -> np.ndarray:
  """Reads an array; no memory is taken for what a header only promises.

  Args:
    archive: The .npz file.
    name: The array's.

  Raises:
    ValueError: If it is damaged, or no plain array.
  """
  with archive.open(f'{name}.npy') as f:
    version = np.lib.format.read_magic(f)
    if version not in _HEADERS:
      raise ValueError(f'{name} has the format {version}, which is not known')
    shape, is_fortran, dtype = _HEADERS[version](f)
    if dtype.hasobject:
      raise ValueError(f'{name} holds Python objects, which are not read')
    expected = math.prod(shape) * dtype.itemsize
    content = files.read_at_most(f, expected)
  if len(content) != expected:
    raise ValueError(f'{name} must have {expected:,} bytes, and has others')
  order = 'F' if is_fortran else 'C'
  return np.frombuffer(content, dtype).reshape(shape, order=order)


def _names(part: str) -> tuple[str, str]:
  return f'{part}_images', f'{part}_labels'


def _read_all(path: pathlib.Path) -> dict[str, np.ndarray]:
  wanted = [*(name for part in _PARTS for name in _names(part)), _CLASSES]
  try:
    with zipfile.ZipFile(path) as archive:
      there = [name.removesuffix('.npy') for name in archive.namelist()]
      for name in there:
        # A name with a slip would leave public images out without a word.
        if name not in wanted or there.count(name) > 1:
          raise ValueError(
            f'its arrays must be among {", ".join(wanted)}, each once. Found'
            f' {name!r}'
          )
      return {name: _read(archive, name) for name in there}
  except FileNotFoundError as e:
    raise errors.SourceError(f'{path} is missing.') from e
  except (
    EOFError,
    NotImplementedError,  # A compression that is not known.
    OSError,
    RuntimeError,  # A password.
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
  ) as e:
    raise errors.SourceError(
      f'{path} is cut off, damaged or no .npz file of arrays: {e}.'
    ) from e


def _images(path: pathlib.Path, name: str, images: np.ndarray) -> np.ndarray:
  if images.dtype != np.uint8:
    raise errors.SourceError(
      f'{path} must hold {name} of the type uint8, from 0 to 255. Found'
      f' {images.dtype}.'
    )
  if images.ndim == 3:
    images = images[..., None]
  if images.ndim != 4 or not images.size:
    raise errors.SourceError(
      f'{path} must hold {name} as [images, height, width] or [images, height,'
      f' width, channels], and some. Found the shape {images.shape}.'
    )
  return np.ascontiguousarray(images)


def _labels(path: pathlib.Path, name: str, labels: np.ndarray) -> np.ndarray:
  if labels.dtype.kind not in 'iu' or labels.ndim != 1 or not labels.size:
    raise errors.SourceError(
      f'{path} must hold {name} as a row of integers. Found {labels.dtype} of'
      f' the shape {labels.shape}.'
    )
  if int(labels.min()) < 0 or int(labels.max()) >= 2**31:
    raise errors.SourceError(
      f'{path} must hold {name} of 0, 1, 2, ... Found'
      f' {int(labels.min())} to {int(labels.max())}.'
    )
  return labels.astype(np.int32)


def _part(
  path: pathlib.Path, arrays: dict[str, np.ndarray], part: str
) -> Optional[base.Examples]:
  """Returns the examples of a part; None where public ones are not there."""
  names = _names(part)
  missing = [name for name in names if name not in arrays]
  if part == 'public' and len(missing) == 2:
    return None
  if missing:
    found = ', '.join(arrays) or 'none of them'
    raise errors.SourceError(
      f'{path} must hold the array {missing[0]}. Found {found}.'
    )
  images = _images(path, names[0], arrays[names[0]])
  labels = _labels(path, names[1], arrays[names[1]])
  if len(images) != len(labels):
    raise errors.SourceError(
      f'{path} must hold {len(images):,} {names[1]}, as many as images. Found'
      f' {len(labels):,}.'
    )
  return base.Examples(images, labels)


def load_images(path: os.PathLike) -> base.CentralData:
  """Reads images of one's own.

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
      `train_images`, `train_labels`, `test_images` and `test_labels`, images in
      uint8; `public_images` and `public_labels` of another source if there are;
      and `num_classes`, without which the labels are counted.

  Returns:
    The data.

  Raises:
    SourceError: If it is missing or damaged, or an array does not fit.
  """
  path = pathlib.Path(path)
  path = path / _NAME if path.is_dir() else path
  arrays = _read_all(path)
  parts = {part: _part(path, arrays, part) for part in _PARTS}
  there = {name: part for name, part in parts.items() if part is not None}
  shape = there['train'].inputs.shape[1:]
  for name, part in there.items():
    if part.inputs.shape[1:] != shape:
      raise errors.SourceError(
        f'{path} must hold {name}_images of the shape {shape}, that of'
        f' train_images. Found {part.inputs.shape[1:]}.'
      )
  num_classes = 1 + max(int(part.targets.max()) for part in there.values())
  if _CLASSES in arrays:
    num_classes = _check_classes(path, arrays[_CLASSES], num_classes)
  return base.CentralData(
    name='images',
    train=parts['train'],
    test=parts['test'],
    public=parts['public'],
    num_classes=num_classes,
    caveats=() if _CLASSES in arrays else (_COUNTED,),
  )


def _check_classes(path: pathlib.Path, given: np.ndarray, least: int) -> int:
  if given.dtype.kind not in 'iu' or given.size != 1 or given.item() < least:
    raise errors.SourceError(
      f'{path} must hold as {_CLASSES} one integer, at least {least}, the'
      f' largest label and one. Found {given.tolist()!r:.80}.'
    )
  return int(given.item())
