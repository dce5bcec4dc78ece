"""Damaged images and texts of sample-level training."""

import dataclasses
import gzip
import struct

from data_prep import errors
from data_prep import sample_level
import numpy as np
import pytest

from tests.fuzz import harness

_RNG = np.random.default_rng(0)
_IMAGES = 4
_BATCHES = [f'data_batch_{i}' for i in range(1, 6)] + ['test_batch']


def _arrays(data):
  parts = (data.train, data.test, data.validation, data.public)
  return [(p.inputs, p.targets) for p in parts if p is not None]


def _images_are_sound(shape, classes):
  def check(expected, found):
    for (inputs, targets), (other, others) in zip(
      _arrays(expected), _arrays(found), strict=True
    ):
      assert other.shape[1:] == shape and len(other) == len(inputs)
      assert other.dtype == np.uint8
      assert others.dtype == np.int32 and others.shape == targets.shape
      assert 0 <= others.min() and others.max() < classes

  return check


def _same_arrays(expected, found):
  harness.equal(_arrays(expected), _arrays(found))


def _batch():
  images = _RNG.integers(0, 256, (_IMAGES, 3072), np.uint8)
  return images, _RNG.integers(0, 10, _IMAGES).astype(np.uint8)


def _write_binary(folder):
  for name in _BATCHES:
    images, labels = _batch()
    records = np.concatenate([labels[:, None], images], axis=1)
    (folder / f'{name}.bin').write_bytes(records.tobytes())


def _load_cifar10(folder):
  return sample_level.load_cifar10(folder, images_per_batch=_IMAGES)


def test_cifar10_binary(fuzz):
  fuzz(
    harness.Target(
      write=_write_binary,
      load=_load_cifar10,
      check=_images_are_sound((32, 32, 3), 10),
    )
  )


def _idx(array):
  header = bytes([0, 0, 8, array.ndim])
  sizes = struct.pack(f'>{array.ndim}I', *array.shape)
  return header + sizes + array.tobytes()


def _write_emnist(compress):
  def write(folder):
    for split in ('train', 'test'):
      images = _RNG.integers(0, 256, (_IMAGES, 28, 28), np.uint8)
      labels = _RNG.integers(0, 47, _IMAGES).astype(np.uint8)
      for kind, array in (('images-idx3', images), ('labels-idx1', labels)):
        name = f'emnist-bymerge-{split}-{kind}-ubyte.gz'
        (folder / name).write_bytes(compress(_idx(array)))

  return write


def test_emnist(fuzz):
  fuzz(
    harness.Target(
      write=_write_emnist(gzip.compress),
      load=sample_level.load_emnist,
      check=_same_arrays,
    ),
    must_find=0.8,
  )


@pytest.mark.slow
def test_emnist_behind_the_checksum(fuzz):
  """A damage that was there before the file was compressed."""

  def reseal(folder):
    for path in folder.glob('*.gz'):
      path.write_bytes(gzip.compress(path.read_bytes(), 1))

  def load(folder):
    contents = {p: p.read_bytes() for p in folder.glob('*.gz')}
    try:
      reseal(folder)
      return sample_level.load_emnist(folder)
    finally:
      for path, content in contents.items():
        path.write_bytes(content)

  fuzz(
    harness.Target(
      write=_write_emnist(bytes),
      load=load,
      check=_images_are_sound((28, 28, 1), 47),
    ),
    must_find=0.2,
  )


@pytest.mark.parametrize('save', [np.savez, np.savez_compressed])
def test_images_of_ones_own(fuzz, save):
  def write(folder):
    arrays = {}
    for part in ('train', 'test', 'public'):
      arrays[f'{part}_images'] = _RNG.integers(0, 256, (4, 6, 5), np.uint8)
      arrays[f'{part}_labels'] = np.arange(4)
    save(folder / 'images.npz', **arrays, num_classes=4)

  def check(expected, found):
    if found.public is None:  # Which a run refuses, or was told.
      expected = dataclasses.replace(expected, public=None)
    _same_arrays(expected, found)

  fuzz(
    harness.Target(
      write=write,
      load=sample_level.load_images,
      check=check,
    ),
    must_find=0.3,
  )


def test_wikitext(fuzz):
  def write(folder):
    for split in ('train', 'valid', 'test'):
      lines = [
        ' '.join(f'w{(i * j) % 40}' for j in range(1, 40)) for i in range(12)
      ]
      (folder / f'wiki.{split}.tokens').write_text('\n'.join(lines))

  def check(expected, found):
    assert found.num_classes == expected.num_classes == len(found.vocabulary)
    for inputs, targets in _arrays(found):
      assert inputs.dtype == targets.dtype == np.uint16
      assert inputs.shape == targets.shape and inputs.shape[1] == 35
      assert len(inputs) and inputs.max() < found.num_classes

  fuzz(
    harness.Target(
      write=write,
      load=lambda f: sample_level.load_wikitext(f, vocabulary_size=30),
      check=check,
    ),
    must_find=0.02,
  )


def test_a_small_file_that_unpacks_to_much(tmp_path):
  _write_emnist(gzip.compress)(tmp_path)
  path = tmp_path / 'emnist-bymerge-train-labels-idx1-ubyte.gz'
  path.write_bytes(gzip.compress(_idx(np.zeros(4, np.uint8)) + bytes(2**28)))
  before = harness.most_memory()
  with pytest.raises(errors.SourceError, match='labels'):
    sample_level.load_emnist(tmp_path)
  assert harness.most_memory() - before < 64 * 2**20


def test_dimensions_whose_product_overflows(tmp_path):
  _write_emnist(gzip.compress)(tmp_path)
  path = tmp_path / 'emnist-bymerge-train-images-idx3-ubyte.gz'
  sizes = struct.pack('>3I', 2**31, 2**31, 4)  # 2**64, which wraps to 0.
  path.write_bytes(gzip.compress(bytes([0, 0, 8, 3]) + sizes))
  with pytest.raises(errors.SourceError, match='images'):
    sample_level.load_emnist(tmp_path)
