"""EMNIST's idx files, and what can be wrong with them."""

import gzip
import struct

import data_prep
from data_prep import sample_level
import numpy as np
import pytest


def _write(folder, split, images, labels):
  folder.mkdir(parents=True, exist_ok=True)
  for kind, array in (('images-idx3', images), ('labels-idx1', labels)):
    header = bytes([0, 0, 8, array.ndim])
    header += struct.pack(f'>{array.ndim}I', *array.shape)
    path = folder / f'emnist-bymerge-{split}-{kind}-ubyte.gz'
    path.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture(name='folder')
def fixture_folder(tmp_path):
  images = np.zeros((3, 28, 28), np.uint8)
  images[0, 5, 2] = 200  # Stored transposed: row 2, column 5.
  for split in ('train', 'test'):
    _write(tmp_path / 'gzip', split, images, np.array([0, 46, 3], np.uint8))
  return tmp_path


def _path(folder, kind):
  return folder / 'gzip' / f'emnist-bymerge-train-{kind}-ubyte.gz'


def test_images_stand_upright(folder):
  data = sample_level.load_emnist(folder)
  assert data.train.inputs.shape == (3, 28, 28, 1)
  assert data.train.inputs[0, 2, 5, 0] == 200
  assert data.train.inputs.sum() == 200
  assert data.train.targets.tolist() == [0, 46, 3]
  assert data.num_classes == 47


def test_cut_off_and_foreign_files_are_named(folder):
  path = _path(folder, 'images-idx3')
  content = path.read_bytes()
  path.write_bytes(content[:-20])
  with pytest.raises(data_prep.SourceError, match='images-idx3.*truncated'):
    sample_level.load_emnist(folder)
  path.write_bytes(gzip.compress(gzip.decompress(content)[:-1]))
  with pytest.raises(data_prep.SourceError, match='2,368 bytes.*Found 2,367'):
    sample_level.load_emnist(folder)
  path.write_bytes(gzip.compress(b'PNG?'))
  with pytest.raises(data_prep.SourceError, match='00000803'):
    sample_level.load_emnist(folder)
  path.unlink()
  with pytest.raises(data_prep.SourceError, match='must hold'):
    sample_level.load_emnist(folder)


def test_other_shapes_and_labels_are_errors(folder):
  few = np.zeros((2, 28, 28), np.uint8)
  _write(folder / 'gzip', 'train', few, np.array([0, 46, 3], np.uint8))
  with pytest.raises(data_prep.SourceError, match='must hold 2 labels'):
    sample_level.load_emnist(folder)
  small = np.zeros((3, 27, 28), np.uint8)
  _write(folder / 'gzip', 'train', small, np.zeros(3, np.uint8))
  with pytest.raises(data_prep.SourceError, match='28 x 28'):
    sample_level.load_emnist(folder)
  images = np.zeros((3, 28, 28), np.uint8)
  _write(folder / 'gzip', 'train', images, np.array([0, 1, 47], np.uint8))
  with pytest.raises(data_prep.SourceError, match='0 to 46. Found 47'):
    sample_level.load_emnist(folder)
