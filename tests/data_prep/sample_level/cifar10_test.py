"""CIFAR-10's binary archive, and what can be wrong with it."""

import data_prep
from data_prep import sample_level
import numpy as np
import pytest

_NAMES = [*(f'data_batch_{i}' for i in range(1, 6)), 'test_batch']


@pytest.fixture(name='batches')
def fixture_batches():
  """Two images for each file, by name: labels and bytes."""
  rng = np.random.default_rng(0)
  return {
    name: (
      rng.integers(0, 10, 2).astype(np.uint8),
      rng.integers(0, 256, (2, 3072)).astype(np.uint8),
    )
    for name in _NAMES
  }


def _write_binary(folder, batches):
  folder.mkdir(parents=True)
  for name, (labels, images) in batches.items():
    records = np.concatenate([labels[:, None], images], axis=1)
    (folder / f'{name}.bin').write_bytes(records.tobytes())


def test_images_and_labels(tmp_path, batches):
  _write_binary(tmp_path / 'cifar-10-batches-bin', batches)
  binary = sample_level.load_cifar10(tmp_path, images_per_batch=2)
  assert binary.train.inputs.shape == (10, 32, 32, 3)
  assert len(binary.test) == 2
  # The first byte is red, at the upper left; 1,024 bytes on it is green.
  labels, images = batches['data_batch_1']
  assert binary.train.targets[0] == labels[0]
  np.testing.assert_array_equal(
    binary.train.inputs[0, 0, 0], images[0, [0, 1024, 2048]]
  )
  assert binary.train.inputs[0, 0, 1, 0] == images[0, 1]
  assert binary.train.inputs[0, 1, 0, 0] == images[0, 32]


def test_the_folder_itself_will_do(tmp_path, batches):
  _write_binary(tmp_path / 'x', batches)
  assert len(
    sample_level.load_cifar10(tmp_path / 'x', images_per_batch=2).train
  )


def test_missing_and_cut_off_files_are_named(tmp_path, batches):
  with pytest.raises(data_prep.SourceError, match='data_batch_1'):
    sample_level.load_cifar10(tmp_path)
  _write_binary(tmp_path / 'x', batches)
  with pytest.raises(data_prep.SourceError, match='30,730,000.*6,146'):
    sample_level.load_cifar10(tmp_path / 'x')
  (tmp_path / 'x' / 'data_batch_3.bin').unlink()
  with pytest.raises(data_prep.SourceError, match='data_batch_3.bin is miss'):
    sample_level.load_cifar10(tmp_path / 'x', images_per_batch=2)


def test_a_label_beyond_the_classes_is_an_error(tmp_path, batches):
  batches['test_batch'][0][0] = 10
  _write_binary(tmp_path / 'x', batches)
  with pytest.raises(data_prep.SourceError, match='test_batch.bin.*0 to 9'):
    sample_level.load_cifar10(tmp_path / 'x', images_per_batch=2)
