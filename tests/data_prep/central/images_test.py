"""Images of one's own, and what can be wrong with their file."""

import tracemalloc
import zipfile

import data_prep
from data_prep import central
import numpy as np
import pytest

_RNG = np.random.default_rng(0)


def _arrays(**changes):
  arrays = {
    'train_images': _RNG.integers(0, 256, (20, 6, 5, 3)).astype(np.uint8),
    'train_labels': np.arange(20) % 4,
    'test_images': _RNG.integers(0, 256, (8, 6, 5, 3)).astype(np.uint8),
    'test_labels': np.arange(8) % 3,
  }
  arrays |= changes
  return {name: value for name, value in arrays.items() if value is not None}


@pytest.mark.parametrize('save', [np.savez, np.savez_compressed])
def test_arrays_come_back(tmp_path, save):
  arrays = _arrays()
  save(tmp_path / 'images.npz', **arrays)
  for path in (tmp_path, tmp_path / 'images.npz'):
    data = central.load_data('images', path)
    np.testing.assert_array_equal(data.train.inputs, arrays['train_images'])
    np.testing.assert_array_equal(data.test.targets, arrays['test_labels'])
    assert data.train.targets.dtype == np.int32
    assert data.num_classes == 4
    assert data.public is None
    # That there is a class 3 is known from private labels alone.
    assert 'read off all labels' in data.caveats[0]


def test_gray_and_column_major_images(tmp_path):
  images = np.asfortranarray(_arrays()['train_images'][..., 0])
  assert not images.flags.c_contiguous
  arrays = _arrays(train_images=images, test_images=images[:8])
  np.savez(tmp_path / 'x.npz', **arrays, num_classes=7)
  data = central.load_images(tmp_path / 'x.npz')
  np.testing.assert_array_equal(data.train.inputs[..., 0], images)
  assert (data.num_classes, data.caveats) == (7, ())


def test_public_images_of_another_source(tmp_path):
  public = _RNG.integers(0, 256, (5, 6, 5, 3)).astype(np.uint8)
  more = {'public_images': public, 'public_labels': np.full(5, 9)}
  np.savez(tmp_path / 'x.npz', **_arrays(), **more)
  np.savez(tmp_path / 'y.npz', **_arrays())
  data = central.load_images(tmp_path / 'x.npz')
  assert data.num_classes == 10
  assert data.sha256 != central.load_images(tmp_path / 'y.npz').sha256
  split = central.split_examples(data, central.SplitConfig(public_share=None))
  assert len(split.private) == 20
  np.testing.assert_array_equal(split.public.inputs, public)
  with pytest.raises(ValueError, match='public_share must be None exactly'):
    central.split_examples(data, central.SplitConfig(public_share=0.1))


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'test_labels': None}, 'must hold the array test_labels. Found train_im'),
    ({'public_images': np.zeros((1, 6, 5, 3), np.uint8)}, 'public_labels'),
    ({'train_images': np.zeros((20, 6, 5))}, 'uint8, .* Found float64'),
    ({'train_images': np.zeros((20, 30), np.uint8)}, r'shape \(20, 30\)'),
    ({'train_images': np.zeros((0, 6, 5), np.uint8)}, r'shape \(0, 6, 5, 1\)'),
    ({'test_images': np.zeros((8, 6, 6, 3), np.uint8)}, r'Found \(6, 6, 3\)'),
    ({'train_labels': np.zeros(20)}, 'row of integers. Found float64'),
    ({'train_labels': np.zeros((20, 1), int)}, 'row of integers'),
    ({'train_labels': np.zeros(19, int)}, '20 train_labels.*Found 19'),
    ({'train_labels': np.full(20, -1)}, 'Found -1 to -1'),
    ({'train_labels': np.full(20, 2**40)}, 'Found 1099511627776'),
    ({'public_image': np.zeros(3)}, "Found 'public_image'"),
    ({'num_classes': 3}, r'at least 4, .*Found 3'),
    ({'num_classes': np.array([5, 6])}, r'one integer.*Found \[5, 6\]'),
    (
      {'train_labels': np.array([None] * 20)},
      'train_labels holds Python objects',
    ),
  ],
)
def test_what_does_not_fit_is_named(tmp_path, changes, message):
  np.savez(tmp_path / 'x.npz', **_arrays(**changes))
  with pytest.raises(data_prep.SourceError, match=f'x.npz .*{message}'):
    central.load_images(tmp_path / 'x.npz')


def test_other_files(tmp_path):
  with pytest.raises(data_prep.SourceError, match='images.npz is missing'):
    central.load_images(tmp_path)
  path = tmp_path / 'images.npz'
  path.write_bytes(b'something else')
  with pytest.raises(data_prep.SourceError, match='images.npz is cut off, dam'):
    central.load_images(tmp_path)
  np.save(path.open('wb'), np.zeros(3))
  with pytest.raises(data_prep.SourceError, match='no .npz file of arrays'):
    central.load_images(tmp_path)


def test_a_header_that_promises_too_much_takes_no_memory(tmp_path):
  path = tmp_path / 'images.npz'
  np.savez(path, **_arrays())
  with zipfile.ZipFile(path) as archive:
    content = {name: archive.read(name) for name in archive.namelist()}
  name = 'train_images.npy'
  content[name] = content[name].replace(b'(20, 6, 5, 3)', b'(9999999999,)')
  with zipfile.ZipFile(path, 'w') as archive:
    for entry, value in content.items():
      archive.writestr(entry, value)
  tracemalloc.start()
  with pytest.raises(data_prep.SourceError, match='9,999,999,999 bytes'):
    central.load_images(tmp_path)
  _, most = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert most < 10e6
