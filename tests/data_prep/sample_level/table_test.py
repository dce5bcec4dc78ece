"""Tables of one's own; their reader is that of `images_test`."""

import data_prep
from data_prep import sample_level
import numpy as np
import pytest

_RNG = np.random.default_rng(0)
_TRAIN = _RNG.normal(size=(20, 5))
_TEST = _RNG.normal(size=(8, 5))


def _save(path, **changes):
  arrays = {
    'train_inputs': _TRAIN,
    'train_labels': np.arange(20) % 4,
    'test_inputs': _TEST,
    'test_labels': np.arange(8) % 4,
    'num_classes': 4,
  }
  arrays |= changes
  np.savez(path, **{n: v for n, v in arrays.items() if v is not None})


@pytest.mark.parametrize(
  'dtype', ['f2', 'f4', 'f8', '>f8', 'g', 'u1', 'i2', 'i8']
)
@pytest.mark.parametrize('order', ['C', 'F'])
def test_numbers_become_float32(tmp_path, dtype, order):
  rows = np.asarray(100 * np.abs(_TRAIN), dtype, order=order)
  _save(tmp_path / 'table.npz', train_inputs=rows)
  for path in (tmp_path, tmp_path / 'table.npz'):
    data = sample_level.load_data('table', path)
    assert data.train.inputs.dtype == np.float32
    assert data.train.inputs.flags.c_contiguous
    np.testing.assert_array_equal(data.train.inputs, rows.astype(np.float32))
  assert (data.name, data.unit, data.is_text) == ('table', 'example', False)
  assert (data.num_classes, data.public, data.caveats) == (4, None, ())


def test_public_rows_of_another_source(tmp_path):
  public = np.concatenate([_TRAIN[:2], _TEST[:1], _RNG.normal(size=(3, 5))])
  _save(
    tmp_path / 'x.npz', public_inputs=public, public_labels=np.zeros(6, int)
  )
  data = sample_level.load_table(tmp_path / 'x.npz')
  of_train, of_test = data.caveats
  assert 'Some public inputs are among the training inputs' in of_train
  assert '1 public inputs are among the test inputs' in of_test
  split = sample_level.split_examples(
    data, sample_level.SplitConfig(public_examples=None)
  )
  assert (len(split.private), len(split.public)) == (20, 6)


def _with(value):
  rows = _TRAIN.copy()
  rows[3, 2] = value
  return rows


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'train_inputs': _with(np.nan)}, 'Found nan in row 3, column 2'),
    ({'train_inputs': _with(-np.inf)}, 'Found -inf in row 3, column 2'),
    ({'train_inputs': _with(1e39)}, 'finite in float32. Found inf in row 3'),
    ({'train_inputs': _TRAIN > 0}, 'array of numbers, .* Found bool'),
    ({'train_inputs': _TRAIN * 1j}, 'array of numbers, .* Found complex128'),
    ({'train_inputs': _TRAIN.astype('U')}, 'array of numbers, .* Found <U'),
    ({'train_inputs': _TRAIN[0]}, r'shape \(5,\)'),
    ({'train_inputs': _TRAIN[:, :0]}, r'shape \(20, 0\)'),
    ({'train_inputs': np.zeros((20, 6, 5))}, r'shape \(20, 6, 5\)'),
    ({'test_inputs': _TEST[:, 1:]}, r'shape \(5,\), like train_in.*\(4,\)'),
    ({'test_inputs': None}, 'must hold the array test_inputs. Found train_in'),
    ({'test_labels': np.zeros(8)}, 'vector of integers. Found float64'),
    ({'test_labels': np.full(8, 4)}, 'num_classes must be one integer from 5,'),
    ({'test_labels': np.full(8, -1)}, 'Found -1 to -1'),
    ({'test_labels': np.zeros(7, int)}, 'must have the length of test_in'),
    ({'public_inputs': _TEST}, 'must hold the array public_labels'),
    ({'train_images': _TRAIN}, 'Found .* train_images'),
  ],
)
def test_what_does_not_fit_is_named(tmp_path, changes, message):
  _save(tmp_path / 'x.npz', **changes)
  with pytest.raises(data_prep.SourceError, match=f'x.npz.*{message}'):
    sample_level.load_table(tmp_path / 'x.npz')


def test_a_table_is_no_images(tmp_path):
  _save(tmp_path / 'images.npz')
  with pytest.raises(data_prep.SourceError, match='Found train_inputs'):
    sample_level.load_images(tmp_path)
