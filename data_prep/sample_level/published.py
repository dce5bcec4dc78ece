"""Images as they are published: CIFAR-10, EMNIST and handwritten digits.

CIFAR-10: "Learning Multiple Layers of Features from Tiny Images" (Krizhevsky,
2009), its binary archive. Five batches of 10,000 training images and one of
test images; a record is a label and 3,072 bytes: red, green, blue, row by row.

EMNIST: "EMNIST: Extending MNIST to handwritten letters" (Cohen et al., 2017),
the idx files of the ByMerge split. They hold transposed images; loaded images
are upright.

Digits: 1,797 images of 8 x 8 pixels from scikit-learn, without a download, a
copy of the test set of "Optical Recognition of Handwritten Digits" (Alpaydin
and Kaynak, 1998).
"""

import math
import os
import pathlib
import struct

from data_prep import errors
from data_prep import files
from data_prep.sample_level import base
import numpy as np
from pda_fed.privacy import seeds

_CIFAR10_FOLDERS = ('cifar-10-batches-bin', 'cifar-10/cifar-10-batches-bin')
_CIFAR10_CLASSES = 10
_EMNIST_FOLDERS = ('gzip', 'emnist', 'emnist/gzip')
_EMNIST_CLASSES = 47
_UBYTE = 0x08  # The type of bytes in idx files.
_NUM_TEST_DIGITS = 360
# The test images do not depend on a run's seeds.
_DIGITS_SEED = 0


def load_cifar10(
  data_dir: os.PathLike | str, images_per_batch: int = 10_000
) -> base.SampleLevelData:
  """Reads CIFAR-10.

  Example:

  ```
  data = load_cifar10('data')
  data.train.inputs.shape  # (50000, 32, 32, 3)
  ```

  Args:
    data_dir: The folder `cifar-10-batches-bin`, or its parent.
    images_per_batch: Number of images in each of the six files.

  Returns:
    The data; images are uint8 [examples, 32, 32, 3].

  Raises:
    SourceError: If a file is missing, truncated or has invalid labels.
  """
  folder = files.find_folder(data_dir, _CIFAR10_FOLDERS, 'data_batch_1.bin')

  def load(name: str) -> base.Examples:
    path = folder / f'{name}.bin'
    content = files.read_file(path, images_per_batch * (1 + 3 * 32 * 32))
    records = np.frombuffer(content, np.uint8).reshape(images_per_batch, -1)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    labels = records[:, 0].astype(np.int32)
    files.check_classes(path, labels, _CIFAR10_CLASSES)
    return base.Examples(np.ascontiguousarray(images), labels)

  batches = [load(f'data_batch_{i}') for i in range(1, 6)]
  return base.SampleLevelData(
    name='cifar10',
    train=base.Examples(
      np.concatenate([b.inputs for b in batches]),
      np.concatenate([b.targets for b in batches]),
    ),
    test=load('test_batch'),
    num_classes=_CIFAR10_CLASSES,
  )


def _read_idx(path: pathlib.Path, num_dimensions: int) -> np.ndarray:
  """Reads an array of bytes in the idx format.

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


def _load_emnist(folder: pathlib.Path, split: str) -> base.Examples:
  images_path = folder / f'emnist-bymerge-{split}-images-idx3-ubyte.gz'
  labels_path = folder / f'emnist-bymerge-{split}-labels-idx1-ubyte.gz'
  images = _read_idx(images_path, 3)
  labels = _read_idx(labels_path, 1)
  if images.shape[1:] != (28, 28):
    raise errors.SourceError(
      f'{images_path} must hold images of 28 x 28. Found {images.shape[1:]}.'
    )
  if len(images) != len(labels):
    raise errors.SourceError(
      f'{labels_path} must hold {len(images):,} labels, as many as there are'
      f' images. Found {len(labels):,}.'
    )
  files.check_classes(labels_path, labels, _EMNIST_CLASSES)
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
    data_dir, _EMNIST_FOLDERS, 'emnist-bymerge-train-images-idx3-ubyte.gz'
  )
  return base.SampleLevelData(
    name='emnist',
    train=_load_emnist(folder, 'train'),
    test=_load_emnist(folder, 'test'),
    num_classes=_EMNIST_CLASSES,
  )


def load_digits() -> base.SampleLevelData:
  """Loads the digits; images are uint8 [examples, 8, 8, 1].

  Example:

    >>> data = load_digits()
    >>> data.train.inputs.shape[1:], data.num_classes
    ((8, 8, 1), 10)

  Returns:
    The digits; a fifth of them are test data.

  Raises:
    SourceError: If scikit-learn is not installed.
  """
  try:
    from sklearn import datasets
  except ModuleNotFoundError as e:
    raise errors.SourceError(
      'The digits come with scikit-learn, which is not installed here. Install'
      ' it, or choose other data with --dataset and --data_dir.'
    ) from e
  found = datasets.load_digits()
  images = np.round(found.images * (255 / 16)).astype(np.uint8)
  examples = base.Examples(images[..., None], found.target.astype(np.int32))
  draws = seeds.generator('shuffling', _DIGITS_SEED, 0).random(len(examples))
  order = np.argsort(draws, kind='stable')
  return base.SampleLevelData(
    name='digits',
    train=examples.take(np.sort(order[_NUM_TEST_DIGITS:])),
    test=examples.take(np.sort(order[:_NUM_TEST_DIGITS])),
    num_classes=10,
  )
