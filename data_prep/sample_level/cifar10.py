"""Reads CIFAR-10 from its binary or its Python archive.

"Learning Multiple Layers of Features from Tiny Images" (Krizhevsky, 2009).
Both archives hold five batches of 10,000 training images and one of test
images. A record is a label and 3,072 bytes: red, green, blue, row by row.
"""

import os
import pathlib

from data_prep import errors
from data_prep.sample_level import base
from data_prep.sample_level import files
from data_prep.sample_level import pickles
import numpy as np

_FOLDERS = (
  'cifar-10-batches-bin',
  'cifar-10-batches-py',
  'cifar-10/cifar-10-batches-bin',
  'cifar-10/cifar-10-batches-py',
)
_TRAIN = tuple(f'data_batch_{i}' for i in range(1, 6))
_TEST = 'test_batch'
_IMAGE_BYTES = 3 * 32 * 32
_NUM_CLASSES = 10
# Other data in this format may have other numbers of images.
_IMAGES_PER_BATCH = 10_000


def _to_examples(images: np.ndarray, labels: np.ndarray) -> base.Examples:
  images = images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
  return base.Examples(np.ascontiguousarray(images), labels.astype(np.int32))


def _read_binary(path: pathlib.Path, num_images: int) -> base.Examples:
  content = files.read_file(path, num_images * (1 + _IMAGE_BYTES))
  records = np.frombuffer(content, np.uint8).reshape(num_images, -1)
  return _to_examples(records[:, 1:], records[:, 0])


def _read_pickle(path: pathlib.Path, num_images: int) -> base.Examples:
  try:
    batch = pickles.load_arrays(files.read_file(path))
    images, labels = batch[b'data'], batch[b'labels']
  except (KeyError, ValueError) as e:
    raise errors.SourceError(
      f'{path} is truncated or not a batch: {e!r}.'
    ) from e
  if np.shape(images) != (num_images, _IMAGE_BYTES):
    raise errors.SourceError(
      f'{path} must hold an array of images of the shape ({num_images},'
      f' {_IMAGE_BYTES}). Found {np.shape(images)}.'
    )
  if (
    not isinstance(labels, list)
    or len(labels) != num_images
    or any(label not in range(_NUM_CLASSES) for label in labels)
  ):
    raise errors.SourceError(
      f'{path} must hold a list of {num_images} labels from 0 to'
      f' {_NUM_CLASSES - 1}. Found something else.'
    )
  return _to_examples(images, np.array(labels))


def load_cifar10(
  data_dir: os.PathLike | str, images_per_batch: int = _IMAGES_PER_BATCH
) -> base.SampleLevelData:
  """Reads CIFAR-10.

  Example:

  ```
  data = load_cifar10('data')
  data.train.inputs.shape  # (50000, 32, 32, 3)
  ```

  Args:
    data_dir: The folder `cifar-10-batches-bin` or `cifar-10-batches-py`, or its
      parent.
    images_per_batch: Number of images in each of the six files.

  Returns:
    The data; images are uint8 [examples, 32, 32, 3].

  Raises:
    SourceError: If a file is missing, truncated or has invalid labels.
  """
  try:
    folder, ending, read = (
      files.find_folder(data_dir, _FOLDERS, f'{_TRAIN[0]}.bin'),
      '.bin',
      _read_binary,
    )
  except errors.SourceError:
    folder = files.find_folder(data_dir, _FOLDERS, _TRAIN[0])
    ending, read = '', _read_pickle

  def load(name: str) -> base.Examples:
    path = folder / f'{name}{ending}'
    batch = read(path, images_per_batch)
    files.check_classes(path, batch.targets, _NUM_CLASSES)
    return batch

  batches = [load(name) for name in _TRAIN]
  return base.SampleLevelData(
    name='cifar10',
    train=base.Examples(
      np.concatenate([b.inputs for b in batches]),
      np.concatenate([b.targets for b in batches]),
    ),
    test=load(_TEST),
    num_classes=_NUM_CLASSES,
  )
