"""Arrays in .npz files of one's own, and what can be wrong with them."""

import zipfile

from data_prep import errors
from data_prep import npz
import numpy as np
import pytest

_X = np.arange(60.0).reshape(12, 5)
_KNOWN = ('x', 'y', 'user')


def _rewrite(path, change, method=zipfile.ZIP_STORED):
  """Writes an archive again, with other bytes of its members."""
  with zipfile.ZipFile(path) as archive:
    content = {name: archive.read(name) for name in archive.namelist()}
  with zipfile.ZipFile(path, 'w', method) as archive:
    for name, value in content.items():
      archive.writestr(name, change(value))


@pytest.fixture
def path(tmp_path):
  np.savez(tmp_path / 'a.npz', x=_X, y=np.arange(12))
  return tmp_path / 'a.npz'


@pytest.mark.parametrize('save', [np.savez, np.savez_compressed])
def test_arrays_come_back(path, save):
  save(path, user=np.array(['a', 'b']), x=np.asfortranarray(_X))
  found = npz.read_arrays(path, _KNOWN)
  assert list(found) == ['user', 'x']
  assert np.array_equal(found['x'], _X)
  assert found['user'].tolist() == ['a', 'b']


@pytest.mark.parametrize(
  'shape',
  [b'(-2, 5)', b'(True, 5)', b'(12, 5', b'{[]:1}', b'------', b'(9, 5)']
  + [b'(99, 5)', b'(2, 99)', b'(9**99)'],
)
def test_headers_that_do_not_fit(path, shape):
  def change(content):
    # A header keeps its length.
    return content.replace(b'(12, 5)', shape.ljust(7))

  _rewrite(path, change)
  words = 'a.npz is truncated, damaged or not .* x.npy must hold numbers'
  with pytest.raises(errors.SourceError, match=words):
    npz.read_arrays(path, _KNOWN)


@pytest.mark.filterwarnings('ignore:Duplicate name')
@pytest.mark.parametrize('name', ['z', '../x', 'y', 'notes.txt'])
def test_wrong_names_are_no_damage(path, name):
  with zipfile.ZipFile(path, 'a') as archive:
    archive.writestr(f'{name}.npy', b'x')
  words = f'only the arrays x, y, user, each once. Found x, y, {name}.$'
  with pytest.raises(errors.SourceError, match=words):
    npz.read_arrays(path, _KNOWN)
  np.savez(path, **{f'a{i}': 0 for i in range(11)})
  with pytest.raises(errors.SourceError, match='Found a0, a1, .*, a9, ....$'):
    npz.read_arrays(path, _KNOWN)


def test_other_files(path):
  def check(words):
    with pytest.raises(errors.SourceError, match=f'a.npz {words}'):
      npz.read_arrays(path, _KNOWN)

  np.savez(path, x=np.array([[1], [1, 2]], object))
  check('.* x.npy .* rows must have the same shape. Found .*Object arrays')
  path.write_bytes(b'something else')
  check('is truncated, damaged')
  with path.open('wb') as f:
    np.save(f, _X)
  check('.* not an .npz file of arrays')
  path.unlink()
  check('is missing')


@pytest.mark.parametrize(
  ('x', 'dtype'),
  [
    ('?', '?'),
    ('u1', 'u1'),
    ('>i8', '<i8'),
    ('>f8', '<f4'),
    ('g', '<f4'),
    ('f2', '<f2'),
  ],
)
@pytest.mark.parametrize('order', ['C', 'F'])
def test_inputs_keep_their_numbers(tmp_path, x, dtype, order):
  x = np.asarray(_X.reshape(3, 4, 5), x, order=order)
  found = npz.check_inputs(tmp_path, 'x', x)
  assert found.dtype == dtype
  assert found.flags.c_contiguous
  np.testing.assert_array_equal(found, x.astype(dtype)[..., None])


def _with(value):
  x = _X.copy()
  x[7, 1] = value
  return x


@pytest.mark.parametrize(
  ('x', 'words'),
  [
    (_X.astype(str), 'numbers.* Found <U'),
    (_X * 1j, 'numbers.* Found complex128'),
    (_X[0], r'\[examples, features\] or .* shape \(5,\)'),
    (_X[:0], r'shape \(0, 5\)'),
    (np.zeros((1,) * 5), r'shape \(1, 1, 1, 1, 1\)'),
    (np.zeros((9, 3, 8, 8)), r'channels last. Found the shape \(9, 3, 8, 8\)'),
    (_with(np.nan), 'finite.* row 7'),
    (_with(-np.inf), 'finite.* row 7'),
    (_with(1e300), 'finite.* large for float32 in row 7'),
  ],
)
def test_bad_inputs(tmp_path, x, words):
  with pytest.raises(errors.SourceError, match=f'a.npz: x must .*{words}'):
    npz.check_inputs(tmp_path / 'a.npz', 'x', x)


@pytest.mark.parametrize(
  ('y', 'words'),
  [
    (np.zeros(3), 'vector of integers. Found float64'),
    (np.zeros((3, 1), int), r'vector of integers.* \(3, 1\)'),
    (np.zeros(0, int), r'vector of integers. .* \(0,\)'),
    (np.full(3, -1), 'Found -1 to -1'),
    (np.full(3, 2**16), r'in \[0, 65,536\)'),
  ],
)
def test_bad_labels(tmp_path, y, words):
  with pytest.raises(errors.SourceError, match=f'a.npz: y must .*{words}'):
    npz.check_labels(tmp_path / 'a.npz', 'y', y)


def test_lengths_that_differ(tmp_path):
  npz.check_lengths(tmp_path, x=_X, y=range(12))
  with pytest.raises(errors.SourceError, match='y must .* of x, 12. Found 11'):
    npz.check_lengths(tmp_path, x=_X, y=range(11))


def test_classes_that_were_counted_are_told(tmp_path):
  # That there is a class 3 is known from private labels alone.
  number, (caveat,) = npz.count_classes(tmp_path, 3, None)
  assert number == 4
  assert 'read off all labels' in caveat
  assert npz.count_classes(tmp_path, 3, np.array(7)) == (7, ())


@pytest.mark.parametrize(
  ('largest', 'given', 'words'),
  [
    (0, None, 'at least two classes. Found 1'),
    (0, 1, 'integer from 2'),
    (3, 3, 'integer from 4, .*Found 3'),
    (3, 2**40, 'to 65,536. Found 1099511627776'),
    (3, 5.0, 'one integer.*Found 5.0'),
    (3, [5, 6], r'one integer.*Found \[5, 6\]'),
  ],
)
def test_bad_classes(tmp_path, largest, given, words):
  given = None if given is None else np.array(given)
  with pytest.raises(errors.SourceError, match=words):
    npz.count_classes(tmp_path, largest, given)
