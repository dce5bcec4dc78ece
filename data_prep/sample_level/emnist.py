"""Reads EMNIST, the ByMerge split, from its idx files.

"EMNIST: Extending MNIST to handwritten letters" (Cohen et al., 2017). The files
hold transposed images; loaded images are upright.
"""

import math
import os
import pathlib
import struct

from data_prep import errors
from data_prep import files
from data_prep.sample_level import base
import numpy as np

_FOLDERS = ('gzip', 'emnist', 'emnist/gzip')
_NUM_CLASSES = 47
_SIZE = 28
_UBYTE = 0x08


def read_idx(path: pathlib.Path, num_dimensions: int) -> np.ndarray:
  """Reads an array of bytes in the idx format.

  Args:
    path: Path of the file. `.gz` is decompressed.
    num_dimensions: Required number of dimensions.

  Raises:
    SourceError: If the file is missing, truncated, or not of this format.
  """
  magic = bytes([0, 0, _UBYTE, num_dimensions])
  with files.opened(path) as f:
    header = f.read(4 + 4 * num_dimensions)
    if header[:4] != magic or len(header) < 4 + 4 * num_dimensions:
      raise errors.SourceError(
        f'{path} must begin with the bytes {magic.hex()}, as an idx file of'
        f' bytes in {num_dimensions} dimensions, and their sizes. Found'
        f' {header.hex()}.'
      )
    shape = struct.unpack_from(f'>{num_dimensions}I', header, 4)
    expected = math.prod(shape)
    content = files.read_at_most(f, expected)
  if len(content) != expected or not expected:
    size = f'{len(header) + len(content):,}'
    raise errors.SourceError(
      f'{path} must have {len(header) + expected:,} bytes when decompressed,'
      f' for the shape {shape} of its header, and must not be empty. Found'
      f' {"more" if len(content) > expected else size}.'
    )
  return np.frombuffer(content, np.uint8).reshape(shape)


def _load_split(folder: pathlib.Path, split: str) -> base.Examples:
  images_path = folder / f'emnist-bymerge-{split}-images-idx3-ubyte.gz'
  labels_path = folder / f'emnist-bymerge-{split}-labels-idx1-ubyte.gz'
  images = read_idx(images_path, 3)
  labels = read_idx(labels_path, 1)
  if images.shape[1:] != (_SIZE, _SIZE):
    raise errors.SourceError(
      f'{images_path} must hold images of {_SIZE} x {_SIZE}. Found'
      f' {images.shape[1:]}.'
    )
  if len(images) != len(labels):
    raise errors.SourceError(
      f'{labels_path} must hold {len(images):,} labels, as many as there are'
      f' images. Found {len(labels):,}.'
    )
  files.check_classes(labels_path, labels, _NUM_CLASSES)
  upright = np.ascontiguousarray(images.transpose(0, 2, 1))
  return base.Examples(upright[..., None], labels.astype(np.int32))


def load_emnist(data_dir: os.PathLike | str) -> base.SampleLevelData:
  """Reads EMNIST ByMerge.

  Example:

  ```
  data = load_emnist('data')
  ```

  Args:
    data_dir: The folder `gzip` of the published archive, or its parent.

  Returns:
    The data; images are uint8 [examples, 28, 28, 1].

  Raises:
    SourceError: If a file is missing, truncated or has invalid labels.
  """
  folder = files.find_folder(
    data_dir, _FOLDERS, 'emnist-bymerge-train-images-idx3-ubyte.gz'
  )
  return base.SampleLevelData(
    name='emnist',
    train=_load_split(folder, 'train'),
    test=_load_split(folder, 'test'),
    num_classes=_NUM_CLASSES,
  )
