"""Published images, and what can be wrong with their files."""

import gzip
import struct

import data_prep
from data_prep import sample_level
import numpy as np
import pytest

_NAMES = [*(f'data_batch_{i}' for i in range(1, 6)), 'test_batch']


class TestCifar10:
  @pytest.fixture
  def batches(self):
    """Two records for each file, by name."""
    rng = np.random.default_rng(0)
    records = {n: rng.integers(0, 256, (2, 3073), np.uint8) for n in _NAMES}
    for record in records.values():
      record[:, 0] %= 10  # The labels.
    return records

  def _load(self, folder, batches, images=2, without=''):
    folder.mkdir(parents=True)
    for name, records in batches.items():
      if name != without:
        (folder / f'{name}.bin').write_bytes(records.tobytes())
    return sample_level.load_cifar10(folder, images_per_batch=images)

  def test_images_and_labels(self, tmp_path, batches):
    folder = tmp_path / 'cifar-10-batches-bin'
    data = self._load(folder, batches)
    assert data.train.inputs.shape == (10, 32, 32, 3)
    assert len(data.test) == 2
    # The first byte is red, at the upper left; 1,024 bytes on it is green.
    label, *image = batches['data_batch_1'][0].tolist()
    assert data.train.targets[0] == label
    found = data.train.inputs[0]
    assert found[0, 0].tolist() == [image[0], image[1024], image[2048]]
    assert (found[0, 1, 0], found[1, 0, 0]) == (image[1], image[32])
    # Its parent will do.
    parent = sample_level.load_cifar10(tmp_path, images_per_batch=2)
    assert parent.sha256 == data.sha256

  def test_bad_files_are_named(self, tmp_path, batches):
    def check(words, **options):
      folder = tmp_path / str(len(list(tmp_path.iterdir())))
      with pytest.raises(data_prep.SourceError, match=words):
        self._load(folder, batches, **options)

    check('data_batch_1', without='data_batch_1')
    check('30,730,000.*6,146', images=10_000)
    check('data_batch_3.bin is missing', without='data_batch_3')
    batches['test_batch'][0, 0] = 10
    check('test_batch.bin.*0 to 9')


class TestEmnist:
  def _write(self, folder, split, images, labels):
    folder.mkdir(parents=True, exist_ok=True)
    for kind, array in (('images-idx3', images), ('labels-idx1', labels)):
      header = bytes([0, 0, 8, array.ndim])
      header += struct.pack(f'>{array.ndim}I', *array.shape)
      path = folder / f'emnist-bymerge-{split}-{kind}-ubyte.gz'
      path.write_bytes(gzip.compress(header + array.tobytes()))

  @pytest.fixture
  def folder(self, tmp_path):
    images = np.zeros((3, 28, 28), np.uint8)
    images[0, 5, 2] = 200  # Stored transposed: row 2, column 5.
    labels = np.array([0, 46, 3], np.uint8)
    for split in ('train', 'test'):
      self._write(tmp_path / 'gzip', split, images, labels)
    return tmp_path

  def test_images_stand_upright(self, folder):
    data = sample_level.load_emnist(folder)
    assert data.train.inputs.shape == (3, 28, 28, 1)
    assert data.train.inputs[0, 2, 5, 0] == data.train.inputs.sum() == 200
    assert data.train.targets.tolist() == [0, 46, 3]
    assert data.num_classes == 47

  @pytest.mark.parametrize(
    ('change', 'words'),
    [
      (lambda packed: packed[:-20], 'images-idx3.*truncated'),
      (
        lambda packed: gzip.compress(gzip.decompress(packed)[:-1]),
        '2,368 bytes.*Found 2,367',
      ),
      (lambda _: gzip.compress(b'PNG?'), '00000803'),
      (None, 'must hold'),
    ],
  )
  def test_cut_off_and_foreign_files_are_named(self, folder, change, words):
    path = folder / 'gzip/emnist-bymerge-train-images-idx3-ubyte.gz'
    if change is None:
      path.unlink()
    else:
      path.write_bytes(change(path.read_bytes()))
    with pytest.raises(data_prep.SourceError, match=words):
      sample_level.load_emnist(folder)

  @pytest.mark.parametrize(
    ('shape', 'labels', 'words'),
    [
      ((2, 28, 28), [0, 46, 3], 'must hold 2 labels'),
      ((3, 27, 28), [0, 0, 0], '28 x 28'),
      ((3, 28, 28), [0, 1, 47], '0 to 46. Found 47'),
    ],
  )
  def test_other_shapes_and_labels(self, folder, shape, labels, words):
    images, labels = np.zeros(shape, np.uint8), np.array(labels, np.uint8)
    self._write(folder / 'gzip', 'train', images, labels)
    with pytest.raises(data_prep.SourceError, match=words):
      sample_level.load_emnist(folder)


def test_digits():
  data = sample_level.load_data('digits')
  assert data.train.inputs.shape == (1437, 8, 8, 1)
  assert len(data.test) == 360
  assert set(data.train.targets.tolist()) == set(range(10))
  assert data.train.inputs.max() == 255
