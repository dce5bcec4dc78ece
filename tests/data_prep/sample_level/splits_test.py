"""Private, public and validation examples are a partition."""

import dataclasses

from data_prep import sample_level
import numpy as np
import pytest


def _data(total, validation=None):
  rows = np.arange(total)
  examples = sample_level.Examples(rows[:, None], rows)
  return sample_level.SampleLevelData('x', examples, examples, 3, validation)


@pytest.mark.parametrize(
  ('total', 'private'),
  [(50_000, 48_000), (48_764, 46_813), (697_932, 670_014)],
)
def test_sizes_are_the_papers(total, private):
  split = sample_level.split_examples(
    _data(total), sample_level.SplitConfig(public_share=0.04)
  )
  assert len(split.private) == private
  assert len(split.public) == total - private
  assert split.validation is None


def test_parts_are_disjoint_and_all():
  config = sample_level.SplitConfig(
    public_share=0.1, validation_examples=7, seed=3
  )
  split = sample_level.split_examples(_data(100), config)
  parts = [split.private, split.public, split.validation]
  assert [len(p) for p in parts] == [83, 10, 7]
  rows = np.concatenate([p.targets for p in parts])
  np.testing.assert_array_equal(np.sort(rows), np.arange(100))


def test_the_seed_decides_and_validation_changes_no_public_example():
  def public(**options):
    config = sample_level.SplitConfig(public_share=0.1, **options)
    return sample_level.split_examples(
      _data(100), config
    ).public.targets.tolist()

  assert public(seed=1) == public(seed=1)
  assert public(seed=1) != public(seed=2)
  assert public(seed=1) == public(seed=1, validation_examples=9)


def test_bad_splits():
  for share in (0, 1, -0.5):
    with pytest.raises(ValueError, match='public_share must be in'):
      sample_level.SplitConfig(public_share=share)
  with pytest.raises(ValueError, match='both private and public'):
    sample_level.split_examples(
      _data(3), sample_level.SplitConfig(public_share=0.99)
    )
  with pytest.raises(ValueError, match='below 9, the number of private'):
    sample_level.split_examples(
      _data(10),
      sample_level.SplitConfig(public_share=0.1, validation_examples=9),
    )
  with pytest.raises(ValueError, match='has its own validation data'):
    own = _data(5).train
    sample_level.split_examples(
      _data(10, own),
      sample_level.SplitConfig(public_share=0.1, validation_examples=1),
    )


def test_public_data_of_another_source():
  public = sample_level.Examples(np.zeros((2, 1)), np.zeros(2))
  config = sample_level.SplitConfig(public_share=None)
  split = sample_level.split_examples(_data(10), config, public)
  assert len(split.private) == 10
  assert split.public is public
  with pytest.raises(ValueError, match='must be None if and only if'):
    sample_level.split_examples(
      _data(10), sample_level.SplitConfig(public_share=0.04), public
    )


def test_the_hash_is_of_public_labels_too():
  data = sample_level.load_digits()
  split = sample_level.split_examples(
    data, sample_level.SplitConfig(public_share=0.1)
  )
  public = split.public
  others = dataclasses.replace(public, targets=public.targets[::-1].copy())
  changed = dataclasses.replace(split, public=others)
  assert sample_level.data_hash(data, split) != sample_level.data_hash(
    data, changed
  )


def test_digits():
  data = sample_level.load_data('digits')
  assert data.train.inputs.shape == (1437, 8, 8, 1)
  assert len(data.test) == 360
  assert set(data.train.targets.tolist()) == set(range(10))
  assert data.train.inputs.max() == 255


def test_files_need_a_folder():
  with pytest.raises(ValueError, match='data_dir must be given'):
    sample_level.load_data('cifar10')
  with pytest.raises(ValueError, match='dataset must be one of'):
    sample_level.load_data('mnist')
  with pytest.raises(ValueError, match='as many as inputs, 2. Found 3'):
    sample_level.Examples(np.zeros((2, 1)), np.zeros(3))
