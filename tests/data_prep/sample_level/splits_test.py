"""Private, public and validation examples are a partition."""

import collections
import dataclasses
import hashlib

from data_prep import sample_level
import numpy as np
from pda_fed.common import standardization
import pytest


def _data(total, validation=None):
  rows = np.arange(total)
  examples = sample_level.Examples(rows[:, None], rows)
  return sample_level.SampleLevelData('x', examples, examples, 3, validation)


def test_parts_are_disjoint_and_all():
  config = sample_level.SplitConfig(
    public_examples=10, validation_examples=7, seed=3
  )
  split = sample_level.split_examples(_data(100), config)
  parts = [split.private, split.public, split.validation]
  assert [len(p) for p in parts] == [83, 10, 7]
  for part in parts:  # In the order of the file.
    assert np.all(np.diff(part.targets) > 0)
  rows = np.concatenate([p.targets for p in parts])
  np.testing.assert_array_equal(np.sort(rows), np.arange(100))


def test_the_seed_decides_and_validation_changes_no_public_example():
  def public(**options):
    config = sample_level.SplitConfig(public_examples=10, **options)
    return sample_level.split_examples(
      _data(100), config
    ).public.targets.tolist()

  assert public(seed=1) == public(seed=1)
  assert public(seed=1) != public(seed=2)
  assert public(seed=1) == public(seed=1, validation_examples=9)


def test_every_example_is_equally_likely():
  drawn = collections.Counter()
  held_out = collections.Counter()
  for seed in range(1000):
    config = sample_level.SplitConfig(
      public_examples=3, validation_examples=3, seed=seed
    )
    split = sample_level.split_examples(_data(10), config)
    drawn.update(split.public.targets.tolist())
    held_out.update(split.validation.targets.tolist())
  # Binomial with mean 300 and standard deviation 14.5.
  for row in range(10):
    assert abs(drawn[row] - 300) < 5 * 14.5
    assert abs(held_out[row] - 300) < 5 * 14.5


def test_the_split_is_pinned():
  # A changed split would silently change the data of runs made before.
  examples = sample_level.Examples(
    np.arange(8, dtype='u1').reshape(4, 2, 1, 1), np.arange(4, dtype='<i4')
  )
  data = sample_level.SampleLevelData('x', examples, examples, 4)
  config = sample_level.SplitConfig(
    public_examples=1, validation_examples=1, seed=6
  )
  split = sample_level.split_examples(data, config)
  head = b"6:[('|u1', (2, 1, 1)), ('<i4', ())]:"
  hashes = [
    hashlib.blake2b(
      head + bytes([2 * i, 2 * i + 1]) + bytes([i, 0, 0, 0]),
      digest_size=16,
      person=b'pda_fed split',
    ).digest()
    for i in range(4)
  ]
  order = sorted(range(4), key=hashes.__getitem__)
  assert split.public.targets.tolist() == order[:1]
  assert split.validation.targets.tolist() == order[3:]
  assert order == [2, 1, 3, 0]


class _Located(sample_level.Examples):
  """Examples that, when taken, know their rows."""

  def take(self, rows):
    taken = super().take(rows)
    object.__setattr__(taken, 'rows', rows)
    return taken


def _copies(rng):
  """Images of few pixels: most of them occur several times."""
  images = rng.integers(0, 2, (300, 2, 2, 1), dtype=np.uint8)
  return images, rng.integers(0, 2, 300).astype('i4')


def _table(rng):
  return rng.normal(size=(300, 4)).astype('f4'), rng.integers(0, 2, 300)


def _text(rng):
  tokens = rng.integers(0, 9, (300, 6)).astype('u2')
  return tokens[:, :-1], tokens[:, 1:]


def _contents(examples):
  return examples.inputs.tobytes(), examples.targets.tobytes()


@pytest.mark.parametrize('make', [_copies, _table, _text])
def test_other_parts_do_not_depend_on_private_examples(make):
  train = _Located(*make(np.random.default_rng(0)))
  config = sample_level.SplitConfig(
    public_examples=40, validation_examples=50, seed=2
  )

  def split(rows):
    examples = _Located(train.inputs[rows], train.targets[rows])
    data = sample_level.SampleLevelData('x', examples, train, 2)
    return sample_level.split_examples(data, config)

  every = np.arange(300)
  found = split(every)
  others = {_contents(found.public.take([i])) for i in range(40)}
  copies = 0
  for row in found.private.rows[:200]:
    without = split(np.delete(every, row))
    assert len(without.private) == len(found.private) - 1
    assert _contents(without.public) == _contents(found.public)
    assert _contents(without.validation) == _contents(found.validation)
    copies += _contents(train.take([row])) in others
    if make is not _text:
      for one, other in zip(
        standardization.mean_and_scale(without.public.inputs),
        standardization.mean_and_scale(found.public.inputs),
        strict=True,
      ):
        assert one.tobytes() == other.tobytes()
  # Some private examples have a public copy.
  assert bool(copies) == (make is _copies)


def test_bad_splits():
  for number in (0, -5):
    with pytest.raises(
      ValueError, match=f'public_examples must be at least 1. Found {number}'
    ):
      sample_level.SplitConfig(public_examples=number)
  with pytest.raises(TypeError, match='public_examples .* Found 0.04'):
    sample_level.SplitConfig(public_examples=0.04)
  for number in (3, 4):
    with pytest.raises(
      ValueError, match=f'public_examples must be below 3, .* of x. .* {number}'
    ):
      sample_level.split_examples(
        _data(3), sample_level.SplitConfig(public_examples=number)
      )
  with pytest.raises(ValueError, match='below 9, the number of private'):
    sample_level.split_examples(
      _data(10),
      sample_level.SplitConfig(public_examples=1, validation_examples=9),
    )
  with pytest.raises(ValueError, match='has its own validation data'):
    own = _data(5).train
    sample_level.split_examples(
      _data(10, own),
      sample_level.SplitConfig(public_examples=1, validation_examples=1),
    )


def test_public_data_of_another_source():
  public = sample_level.Examples(np.zeros((2, 1)), np.zeros(2))
  config = sample_level.SplitConfig(public_examples=None)
  split = sample_level.split_examples(_data(10), config, public)
  assert len(split.private) == 10
  assert split.public is public
  with pytest.raises(ValueError, match='must be None if and only if'):
    sample_level.split_examples(
      _data(10), sample_level.SplitConfig(public_examples=2), public
    )


def test_the_hash_is_of_public_labels_too():
  data = sample_level.load_digits()
  split = sample_level.split_examples(
    data, sample_level.SplitConfig(public_examples=144)
  )
  public = split.public
  others = dataclasses.replace(public, targets=public.targets[::-1].copy())
  changed = dataclasses.replace(split, public=others)
  assert sample_level.data_hash(data, split) != sample_level.data_hash(
    data, changed
  )


def test_files_need_a_folder():
  with pytest.raises(ValueError, match='data_dir must be given'):
    sample_level.load_data('cifar10')
  with pytest.raises(ValueError, match='dataset must be one of'):
    sample_level.load_data('mnist')
  with pytest.raises(ValueError, match='as many as inputs, 2. Found 3'):
    sample_level.Examples(np.zeros((2, 1)), np.zeros(3))
