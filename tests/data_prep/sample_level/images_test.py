"""Images of one's own, and what can be wrong with their file."""

import tracemalloc
import zipfile

import data_prep
from data_prep import sample_level
import numpy as np
import pytest

_RNG = np.random.default_rng(0)
_TRAIN = _RNG.integers(0, 256, (20, 6, 5, 3)).astype(np.uint8)
_TEST = _RNG.integers(0, 256, (8, 6, 5, 3)).astype(np.uint8)
_PUBLIC = _RNG.integers(0, 256, (5, 6, 5, 3)).astype(np.uint8)


def _arrays(**changes):
  arrays = {
    'train_images': _TRAIN,
    'train_labels': np.arange(20) % 4,
    'test_images': _TEST,
    'test_labels': np.arange(8) % 3,
  }
  arrays |= changes
  return {name: value for name, value in arrays.items() if value is not None}


@pytest.mark.parametrize('save', [np.savez, np.savez_compressed])
def test_arrays_come_back(tmp_path, save):
  arrays = _arrays()
  save(tmp_path / 'images.npz', **arrays)
  for path in (tmp_path, tmp_path / 'images.npz'):
    data = sample_level.load_data('images', path)
    np.testing.assert_array_equal(data.train.inputs, arrays['train_images'])
    np.testing.assert_array_equal(data.test.targets, arrays['test_labels'])
    assert data.train.targets.dtype == np.int32
    assert data.num_classes == 4
    assert data.public is None
    # That there is a class 3 is known from private labels alone.
    assert 'read off all labels' in data.caveats[0]


def test_gray_and_column_major_images(tmp_path):
  images = np.asfortranarray(_TRAIN[..., 0])
  assert not images.flags.c_contiguous
  arrays = _arrays(train_images=images, test_images=images[:8])
  np.savez(tmp_path / 'x.npz', **arrays, num_classes=7)
  data = sample_level.load_images(tmp_path / 'x.npz')
  np.testing.assert_array_equal(data.train.inputs[..., 0], images)
  assert (data.num_classes, data.caveats) == (7, ())


def test_public_images_of_another_source(tmp_path):
  more = {'public_images': _PUBLIC, 'public_labels': np.full(5, 9)}
  np.savez(tmp_path / 'x.npz', **_arrays(), **more)
  data = sample_level.load_images(tmp_path / 'x.npz')
  assert data.num_classes == 10
  assert 'public images' not in ' '.join(data.caveats)
  split = sample_level.split_examples(
    data, sample_level.SplitConfig(public_examples=None)
  )
  assert len(split.private) == 20
  np.testing.assert_array_equal(split.public.inputs, _PUBLIC)
  np.testing.assert_array_equal(split.public.targets, np.full(5, 9))
  with pytest.raises(
    ValueError, match='public_examples must be None if and only'
  ):
    sample_level.split_examples(
      data, sample_level.SplitConfig(public_examples=4)
    )


@pytest.mark.parametrize(
  'change',
  [
    {'public_images': None, 'public_labels': None},
    {'public_images': _PUBLIC[::-1]},
    {'public_labels': np.array([9, 9, 9, 9, 8])},
    {'test_labels': np.arange(8)[::-1] % 3},
    {'train_images': _TRAIN[::-1]},
  ],
)
def test_other_data_have_another_hash(tmp_path, change):
  arrays = _arrays(public_images=_PUBLIC, public_labels=np.full(5, 9))
  changed = {n: v for n, v in (arrays | change).items() if v is not None}
  np.savez(tmp_path / 'x.npz', **arrays, num_classes=10)
  np.savez(tmp_path / 'y.npz', **changed, num_classes=10)
  before, after = (
    sample_level.load_images(tmp_path / f'{n}.npz') for n in 'xy'
  )
  assert before.sha256 != after.sha256


def test_public_images_that_are_elsewhere_too_are_told(tmp_path):
  public = np.concatenate([_PUBLIC, _TRAIN[:3], _TEST[:2]])
  more = {'public_images': public, 'public_labels': np.zeros(10, int)}
  np.savez(tmp_path / 'images.npz', **_arrays(), **more, num_classes=4)
  of_train, of_test = sample_level.load_images(tmp_path).caveats
  assert 'Some public images are among the training images' in of_train
  assert '2 public images are among the test images' in of_test


def test_classes_of_all_parts_are_counted(tmp_path):
  np.savez(tmp_path / 'images.npz', **_arrays(test_labels=np.arange(8)))
  assert sample_level.load_images(tmp_path).num_classes == 8


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'test_labels': None}, 'must hold the array test_labels. Found train_im'),
    ({'public_images': np.zeros((1, 6, 5, 3), np.uint8)}, 'public_labels'),
    ({'public_labels': np.zeros(1, int)}, 'must hold the array public_images'),
    (
      {
        'public_images': np.zeros((1, 6, 6, 3), np.uint8),
        'public_labels': np.zeros(1, int),
      },
      r'public_images must have the shape \(6, 5, 3\).*Found \(6, 6, 3\)',
    ),
    (
      {'train_images': np.zeros((20, 3, 6, 5), np.uint8)},
      r'channels last. Found the shape \(20, 3, 6, 5\)',
    ),
    (
      {'train_labels': np.zeros(20, int), 'test_labels': np.zeros(8, int)},
      'at least two classes. Found 1',
    ),
    ({'train_labels': np.zeros(0, int)}, 'vector of integers. .* \\(0,\\)'),
    ({'train_labels': np.full(20, 2**16)}, r'in \[0, 65,536\)'),
    ({'num_classes': 2**40}, 'to 65,536. Found 1099511627776'),
    ({'num_classes': 5.0}, 'one integer.*Found 5.0'),
    ({'train_images': np.zeros((20, 6, 5))}, 'uint8, .* Found float64'),
    ({'train_images': np.zeros((20, 30), np.uint8)}, r'shape \(20, 30\)'),
    ({'train_images': np.zeros((0, 6, 5), np.uint8)}, r'shape \(0, 6, 5\)'),
    ({'test_images': np.zeros((8, 6, 6, 3), np.uint8)}, r'Found \(6, 6, 3\)'),
    ({'train_labels': np.zeros(20)}, 'vector of integers. Found float64'),
    ({'train_labels': np.zeros((20, 1), int)}, 'vector of integers'),
    ({'train_labels': np.zeros(19, int)}, 'train_labels must .* 20. Found 19'),
    ({'train_labels': np.full(20, -1)}, 'Found -1 to -1'),
    ({'public_image': np.zeros(3)}, 'Found .*public_image'),
    ({'num_classes': 3}, r'integer from 4, .*Found 3'),
    ({'num_classes': np.array([5, 6])}, r'one integer.*Found \[5, 6\]'),
    (
      {'train_labels': np.array([None] * 20)},
      'train_labels holds Python objects',
    ),
  ],
)
def test_what_does_not_fit_is_named(tmp_path, changes, message):
  np.savez(tmp_path / 'x.npz', **_arrays(**changes))
  with pytest.raises(data_prep.SourceError, match=f'x.npz.*{message}'):
    sample_level.load_images(tmp_path / 'x.npz')


def _change_header(path, member, old, new):
  with zipfile.ZipFile(path) as archive:
    content = {name: archive.read(name) for name in archive.namelist()}
  assert old in content[member]
  # A header keeps its length.
  content[member] = content[member].replace(old, new.ljust(len(old)))
  with zipfile.ZipFile(path, 'w') as archive:
    for entry, value in content.items():
      archive.writestr(entry, value)


@pytest.mark.parametrize(
  'shape',
  [b'(-20, 6, 5)', b'(True, 6)', b'(20, 6, 5,', b'{[]: 1}', b'------'],
)
def test_headers_that_are_no_headers(tmp_path, shape):
  is_shape = shape.endswith(b')')
  why = 'has the shape' if is_shape else 'has a damaged header'
  path = tmp_path / 'images.npz'
  np.savez(path, **_arrays())
  _change_header(path, 'train_images.npy', b'(20, 6, 5, 3)', shape)
  with pytest.raises(data_prep.SourceError, match=f'train_images {why}'):
    sample_level.load_images(tmp_path)


def test_members_that_are_no_arrays(tmp_path):
  path = tmp_path / 'images.npz'
  for name in ('train_images', 'notes.txt'):
    np.savez(path, **_arrays())
    with zipfile.ZipFile(path, 'a') as archive:
      archive.writestr(name, b'x')
    words = f"damaged or not an .npz .*: '{name}' in it is not an array"
    with pytest.raises(data_prep.SourceError, match=words):
      sample_level.load_images(tmp_path)


@pytest.mark.filterwarnings('ignore:Duplicate name')
@pytest.mark.parametrize(
  'name', ['train_image', '../train_images', 'test_labels']
)
def test_wrong_names_are_no_damage(tmp_path, name):
  path = tmp_path / 'images.npz'
  np.savez(path, **_arrays())
  with zipfile.ZipFile(path, 'a') as archive:
    archive.writestr(f'{name}.npy', b'x')
  words = f'only the arrays train_images, .*, each once. Found .*, {name}.$'
  with pytest.raises(data_prep.SourceError, match=words) as caught:
    sample_level.load_images(tmp_path)
  assert 'damaged' not in str(caught.value)


def test_a_file_of_many_other_arrays(tmp_path):
  np.savez(tmp_path / 'images.npz', **{f'a{i}': 0 for i in range(11)})
  words = 'Found a0, a1, .*, a9, ....$'
  with pytest.raises(data_prep.SourceError, match=words):
    sample_level.load_images(tmp_path)


@pytest.mark.parametrize('method', [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_in_any_compression(tmp_path, method):
  path = tmp_path / 'images.npz'
  images = _RNG.integers(0, 256, (400, 6, 5, 3)).astype(np.uint8)
  np.savez(path, **_arrays(train_images=images, train_labels=np.arange(400)))
  with zipfile.ZipFile(path) as archive:
    content = {name: archive.read(name) for name in archive.namelist()}
  with zipfile.ZipFile(path, 'w', method) as archive:
    for entry, value in content.items():
      archive.writestr(entry, value)
  assert len(sample_level.load_images(tmp_path).train) == 400
  whole = path.read_bytes()
  num_found = 0
  for place in range(30, len(whole), 150):
    damaged = bytearray(whole)
    damaged[place] ^= 0x55
    path.write_bytes(damaged)
    try:
      assert len(sample_level.load_images(tmp_path).train) == 400
    except data_prep.SourceError:
      num_found += 1
  assert num_found > 200


def test_other_files(tmp_path):
  with pytest.raises(data_prep.SourceError, match='images.npz is missing'):
    sample_level.load_images(tmp_path)
  path = tmp_path / 'images.npz'
  path.write_bytes(b'something else')
  with pytest.raises(
    data_prep.SourceError, match='images.npz is truncated, dam'
  ):
    sample_level.load_images(tmp_path)
  np.save(path.open('wb'), np.zeros(3))
  with pytest.raises(data_prep.SourceError, match='not an .npz file of arrays'):
    sample_level.load_images(tmp_path)


def test_a_header_that_promises_too_much_takes_no_memory(tmp_path):
  path = tmp_path / 'images.npz'
  np.savez(path, **_arrays())
  _change_header(path, 'train_images.npy', b'(20, 6, 5, 3)', b'(9999999999,)')
  tracemalloc.start()
  with pytest.raises(data_prep.SourceError, match='9,999,999,999 bytes'):
    sample_level.load_images(tmp_path)
  _, most = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert most < 10e6
