"""Splits training examples into private, public and validation ones.

Epsilon compares data with and without one private example, so the public
examples must not depend on the private ones. The split therefore ranks examples
by a hash of the seed and the example itself: those with the lowest hashes are
public, and those with the highest are for validation. Without a private
example, both stay the same.
"""

import dataclasses
import hashlib
from typing import Optional

from data_prep.sample_level import base
import numpy as np
from pda_fed.common import validate

_ROWS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitConfig:
  """Settings of a split.

  Example: see `split_examples`.

  Attributes:
    public_examples: Number of training examples that are public, drawn with
      the seed. None for public data from another source. There is no default:
      examples are only public if you say so.
    validation_examples: Number of private examples held out to choose
      settings. They are not trained on, and not part of the plan's population.
    seed: Seed of the draw. It reveals which of the examples are private.
  """

  public_examples: Optional[int]
  validation_examples: int = 0
  seed: int = 0

  def __post_init__(self):
    if self.public_examples is not None:
      validate.integers(1, public_examples=self.public_examples)
    validate.integers(
      0, validation_examples=self.validation_examples, split_seed=self.seed
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
  """Examples by purpose.

  Example: see `split_examples`.

  Attributes:
    private: Private training examples.
    public: Public training examples.
    validation: Examples to choose settings; None if there are none.
    test: Examples for the final test.
  """

  private: base.Examples
  public: base.Examples
  validation: Optional[base.Examples]
  test: base.Examples


def split_examples(
  data: base.SampleLevelData,
  config: SplitConfig,
  public: Optional[base.Examples] = None,
) -> Split:
  """Splits the training examples.

  Example:

    >>> from data_prep import sample_level
    >>> config = SplitConfig(public_examples=144)
    >>> split = split_examples(sample_level.load_digits(), config)
    >>> len(split.private), len(split.public)
    (1293, 144)

  Args:
    data: The data set.
    config: The settings.
    public: Public examples from another source. Default: the data set's own, if
      any. Required if and only if `public_examples` is None.

  Returns:
    The split. Its validation part is the data set's own, if any.

  Raises:
    ValueError: If a part would be empty.
  """
  public = data.public if public is None else public
  if (config.public_examples is None) != (public is not None):
    raise ValueError(
      'public_examples must be None if and only if there are public data from'
      f' another source. Found public_examples={config.public_examples!r}.'
    )
  if config.validation_examples and data.validation is not None:
    raise ValueError(
      f'validation_examples must be 0: {data.name} has its own validation'
      f' data. Found {config.validation_examples}.'
    )
  total = len(data.train)
  num_public = config.public_examples or 0
  num_private = total - num_public
  if num_private <= 0:
    raise ValueError(
      f'public_examples must be below {total}, the number of training examples'
      f' of {data.name}. Found {num_public}.'
    )
  if config.validation_examples >= num_private:
    raise ValueError(
      f'validation_examples must be below {num_private}, the number of private'
      f' examples. Found {config.validation_examples}.'
    )
  order = rank_by_hash(data.train, config.seed)
  parts = np.split(order, [num_public, total - config.validation_examples])
  # Keeps the order of the file: a split does not shuffle.
  drawn, private, held_out = (data.train.take(np.sort(rows)) for rows in parts)
  return Split(
    private=private,
    public=drawn if public is None else public,
    validation=held_out if config.validation_examples else data.validation,
    test=data.test,
  )


def rank_by_hash(examples: base.Examples, seed: int) -> np.ndarray:
  """Returns the rows of examples in the order of their hashes.

  Example:

    >>> from data_prep import sample_level
    >>> rows = rank_by_hash(sample_level.load_digits().test, seed=0)
    >>> sorted(rows.tolist()) == list(range(360))
    True

  Equal examples have equal hashes and stay in the order of the file; it makes
  no difference which of them are public. Do not hash a number that tells them
  apart: without the first of two, the second would have its number and another
  hash, and might become public or cease to be.
  """
  arrays = [
    np.ascontiguousarray(array).reshape(len(array), -1)
    for array in (examples.inputs, examples.targets)
  ]
  kinds = [
    (array.dtype.str, array.shape[1:])
    for array in (examples.inputs, examples.targets)
  ]
  begun = hashlib.blake2b(
    f'{seed}:{kinds}:'.encode(), digest_size=16, person=b'pda_fed split'
  )
  hashes = bytearray()
  for start in range(0, len(examples), _ROWS_AT_ONCE):
    rows = np.concatenate(
      [a[start : start + _ROWS_AT_ONCE].view(np.uint8) for a in arrays], axis=1
    )
    for row in rows.view(f'V{rows.shape[1]}')[:, 0].tolist():
      digest = begun.copy()
      digest.update(row)
      hashes += digest.digest()
  words = np.frombuffer(hashes, '>u8').reshape(len(examples), -1)
  return np.lexsort(words.T[::-1])


def data_hash(data: base.SampleLevelData, split: Split) -> str:
  """Returns the sha256 of the data for config.json.

  Example:

    >>> from data_prep import sample_level
    >>> data = sample_level.load_digits()
    >>> split = split_examples(data, SplitConfig(public_examples=144))
    >>> len(data_hash(data, split))
    64

  Args:
    data: The data set.
    split: Its split. Public data from another source are hashed too.
  """
  digest = hashlib.sha256(data.sha256.encode())
  for array in (split.public.inputs, split.public.targets):
    digest.update(np.ascontiguousarray(array).data)
  return digest.hexdigest()
