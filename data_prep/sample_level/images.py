"""Images of one's own, as arrays in an .npz file.

    np.savez_compressed('mine.npz', train_images=..., train_labels=...,
                        test_images=..., test_labels=...)

Public images of another source may be there as `public_images` and
`public_labels`; all training images are private then. `num_classes` may be
there, and no other array.
"""

import hashlib
import lzma
import math
import os
import pathlib
from typing import Any, IO, Optional
import zipfile
import zlib

from data_prep import errors
from data_prep.sample_level import base
from data_prep.sample_level import files
import numpy as np

_NAME = 'images.npz'
_PARTS = ('train', 'test', 'public')
_CLASSES = 'num_classes'
_COUNTED = (
  'The number of classes was read off all labels, private ones too, which'
  f' epsilon does not cover: an array {_CLASSES} in the file would say it.'
)
_OVERLAPS = {
  'train': 'the training images: epsilon does not cover what these reveal',
  'test': 'the test images: these are not new to the model',
}
_MOST_CLASSES = 2**16
_SUFFIX = '.npy'
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
    raise ValueError(f'{name} holds Python objects, which are not read')
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
  order = 'F' if is_fortran else 'C'
  return np.frombuffer(content, dtype).reshape(shape, order=order)


def _names(part: str) -> tuple[str, str]:
  return f'{part}_images', f'{part}_labels'


def _read_all(path: pathlib.Path) -> dict[str, np.ndarray]:
  known = [*(name for part in _PARTS for name in _names(part)), _CLASSES]
  members = [name + _SUFFIX for name in known]
  try:
    with zipfile.ZipFile(path) as archive:
      there = archive.namelist()
      for member in there:
        # A name with a slip would leave public images out without a word.
        if member not in members or there.count(member) > 1:
          raise ValueError(
            f'its arrays must be among {", ".join(known)}, each once. Found'
            f' {member!r:.80}'
          )
      return {
        name: _read(archive, name)
        for name, member in zip(known, members, strict=True)
        if member in there
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


def _images(path: pathlib.Path, name: str, images: np.ndarray) -> np.ndarray:
  if images.dtype != np.uint8:
    raise errors.SourceError(
      f'{path} must hold {name} of the type uint8, from 0 to 255. Found'
      f' {images.dtype}.'
    )
  if images.ndim not in (3, 4) or not images.size:
    raise errors.SourceError(
      f'{path} must hold {name} as [images, height, width] or [images, height,'
      f' width, channels], and some. Found the shape {images.shape}.'
    )
  if images.ndim == 3:
    images = images[..., None]
  # As PyTorch has them: no image of so many channels is so low.
  if images.shape[1] in (1, 3, 4) and images.shape[3] > 4:
    raise errors.SourceError(
      f'{path} must hold {name} with channels last. Found the shape'
      f' {images.shape}.'
    )
  return np.ascontiguousarray(images)


def _labels(path: pathlib.Path, name: str, labels: np.ndarray) -> np.ndarray:
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


def load_images(path: os.PathLike) -> base.SampleLevelData:
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
  caveats = _overlaps(there)
  if _CLASSES in arrays:
    num_classes = _check_classes(path, arrays[_CLASSES], num_classes)
  else:
    caveats.append(_COUNTED)
  if num_classes < 2:
    raise errors.SourceError(f'{path} must have at least two classes. Found 1.')
  return base.SampleLevelData(
    name='images',
    train=parts['train'],
    test=parts['test'],
    public=parts['public'],
    num_classes=num_classes,
    caveats=tuple(caveats),
  )


def _check_classes(path: pathlib.Path, given: np.ndarray, least: int) -> int:
  is_integer = given.dtype.kind in 'iu' and given.size == 1
  if not is_integer or not least <= given.item() <= _MOST_CLASSES:
    raise errors.SourceError(
      f'{path} must hold as {_CLASSES} one integer from {least}, the largest'
      f' label and one, to {_MOST_CLASSES:,}. Found {given.tolist()!r:.80}.'
    )
  return int(given.item())


def _overlaps(parts: dict[str, base.Examples]) -> list[str]:
  """Says of public images that are there for something else, too."""
  if 'public' not in parts:
    return []
  public = _digests(parts['public'].inputs)
  return [
    f'{len(found):,} public images are among {what}.'
    for part, what in _OVERLAPS.items()
    if (found := public & _digests(parts[part].inputs))
  ]


def _digests(images: np.ndarray) -> set[bytes]:
  return {hashlib.blake2b(image, digest_size=16).digest() for image in images}
