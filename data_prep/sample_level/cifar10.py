"""Reads CIFAR-10 from its binary archive.

"Learning Multiple Layers of Features from Tiny Images" (Krizhevsky, 2009). The
archive holds five batches of 10,000 training images and one of test images. A
record is a label and 3,072 bytes: red, green, blue, row by row.
"""

import os
import pathlib

from data_prep import files
from data_prep.sample_level import base
import numpy as np

_FOLDERS = ('cifar-10-batches-bin', 'cifar-10/cifar-10-batches-bin')
_TRAIN = tuple(f'data_batch_{i}' for i in range(1, 6))
_TEST = 'test_batch'
_IMAGE_BYTES = 3 * 32 * 32
_NUM_CLASSES = 10
# Other data in this format may have other numbers of images.
_IMAGES_PER_BATCH = 10_000


def _read(path: pathlib.Path, num_images: int) -> base.Examples:
  content = files.read_file(path, num_images * (1 + _IMAGE_BYTES))
  records = np.frombuffer(content, np.uint8).reshape(num_images, -1)
  images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
  labels = records[:, 0].astype(np.int32)
  return base.Examples(np.ascontiguousarray(images), labels)


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
    data_dir: The folder `cifar-10-batches-bin`, or its parent.
    images_per_batch: Number of images in each of the six files.

  Returns:
    The data; images are uint8 [examples, 32, 32, 3].

  Raises:
    SourceError: If a file is missing, truncated or has invalid labels.
  """
  folder = files.find_folder(data_dir, _FOLDERS, f'{_TRAIN[0]}.bin')

  def load(name: str) -> base.Examples:
    path = folder / f'{name}.bin'
    batch = _read(path, images_per_batch)
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
