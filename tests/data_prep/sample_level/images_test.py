"""Images and tables of one's own; `npz_test` has what any array may lack."""

import data_prep
from data_prep import sample_level
import numpy as np
import pytest

_RNG = np.random.default_rng(0)
_IMAGES = _RNG.integers(0, 256, (33, 6, 5, 3)).astype(np.uint8)
_ROWS = _RNG.normal(size=(33, 5))
_INPUTS = {'images': (_IMAGES, 'images'), 'table': (_ROWS, 'inputs')}
_KINDS = sorted(_INPUTS)


def _save(path, kind, **changes):
  """Writes 20 training, 8 test and 5 public examples."""
  inputs, name = _INPUTS[kind]
  train, test, public = np.split(inputs, [20, 28])
  arrays = {
    f'train_{name}': train,
    'train_labels': np.arange(20) % 4,
    f'test_{name}': test,
    'test_labels': np.arange(8) % 3,
    f'public_{name}': public,
    'public_labels': np.full(5, 9),
    **changes,
  }
  np.savez(path, **{n: v for n, v in arrays.items() if v is not None})


@pytest.mark.parametrize('kind', _KINDS)
def test_arrays_come_back(tmp_path, kind):
  inputs, name = _INPUTS[kind]
  without = {f'public_{name}': None, 'public_labels': None}
  _save(tmp_path / f'{kind}.npz', kind, **without)
  for path in (tmp_path, tmp_path / f'{kind}.npz'):
    data = sample_level.load_data(kind, path)
    dtype = np.uint8 if kind == 'images' else np.float32
    assert data.train.inputs.dtype == dtype
    np.testing.assert_array_equal(data.train.inputs, inputs[:20].astype(dtype))
    np.testing.assert_array_equal(data.test.targets, np.arange(8) % 3)
    assert (data.num_classes, data.public) == (4, None)
    assert 'read off all labels' in data.caveats[0]
    assert (data.name, data.unit, data.is_text) == (kind, 'example', False)


@pytest.mark.parametrize('kind', _KINDS)
def test_public_examples_of_another_source(tmp_path, kind):
  _save(tmp_path / 'x.npz', kind, num_classes=12)
  load = {'images': sample_level.load_images, 'table': sample_level.load_table}
  data = load[kind](tmp_path / 'x.npz')
  assert (data.num_classes, data.caveats) == (12, ())
  config = sample_level.SplitConfig(public_examples=None)
  split = sample_level.split_examples(data, config)
  assert len(split.private) == 20
  np.testing.assert_array_equal(split.public.inputs, data.public.inputs)
  np.testing.assert_array_equal(split.public.targets, np.full(5, 9))


@pytest.mark.parametrize(
  'change',
  [
    {'public_images': None, 'public_labels': None},
    {'public_images': _IMAGES[:5]},
    {'public_labels': np.array([9, 9, 9, 9, 8])},
    {'test_labels': np.arange(8)[::-1] % 3},
    {'train_images': _IMAGES[:20][::-1]},
  ],
)
def test_other_data_have_another_hash(tmp_path, change):
  _save(tmp_path / 'x.npz', 'images', num_classes=10)
  _save(tmp_path / 'y.npz', 'images', num_classes=10, **change)
  before, after = (
    sample_level.load_images(tmp_path / f'{n}.npz') for n in 'xy'
  )
  assert before.sha256 != after.sha256


def test_public_examples_that_are_elsewhere_too_are_told(tmp_path):
  public = np.concatenate([_IMAGES[28:], _IMAGES[:3], _IMAGES[20:22]])
  changes = {'public_images': public, 'public_labels': np.zeros(10, int)}
  _save(tmp_path / 'images.npz', 'images', **changes, num_classes=4)
  of_train, of_test = sample_level.load_images(tmp_path).caveats
  assert 'Some public images are among the training images' in of_train
  assert '2 public images are among the test images' in of_test


@pytest.mark.parametrize(
  ('kind', 'changes', 'message'),
  [
    ('images', {'test_labels': None}, 'the array test_labels. Found train_im'),
    ('images', {'public_labels': None}, 'must hold the array public_labels'),
    ('images', {'public_images': None}, 'must hold the array public_images'),
    (
      'images',
      {'public_images': np.zeros((5, 6, 6, 3), np.uint8)},
      r'public_images must have the shape \(6, 5, 3\).*Found \(6, 6, 3\)',
    ),
    ('images', {'train_images': _ROWS[:20]}, 'uint8, .* Found float64'),
    (
      'images',
      {'train_images': np.zeros((20, 30), np.uint8)},
      r'train_images .* \[examples, height, width\] .* shape \(20, 30\)',
    ),
    ('images', {'public_image': np.zeros(3)}, 'Found .*public_image'),
    ('images', {'train_labels': np.zeros(19, int)}, 'train_labels .* Found 19'),
    ('images', {'num_classes': 3}, 'integer from 10'),
    ('table', {'train_images': _ROWS}, 'Found .*train_images'),
    ('table', {'train_inputs': np.zeros((20, 6, 5))}, r'shape \(20, 6, 5\)'),
    ('table', {'train_inputs': _ROWS[:20] * np.inf}, 'train_inputs .* finite'),
    ('table', {'test_labels': np.full(8, -1)}, 'test_labels .* Found -1 to -1'),
  ],
)
def test_what_does_not_fit_is_named(tmp_path, kind, changes, message):
  _save(tmp_path / 'x.npz', kind, **changes)
  with pytest.raises(data_prep.SourceError, match=f'x.npz.*{message}'):
    sample_level.load_data(kind, tmp_path / 'x.npz')
