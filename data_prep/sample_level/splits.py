"""Splits training examples into private, public and validation ones."""

import dataclasses
import hashlib
import math
from typing import Optional

from data_prep.sample_level import base
import numpy as np
from pda_fed.common import validate
from pda_fed.privacy import seeds


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitConfig:
  """Settings of a split.

  Example: see `split_examples`.

  Attributes:
    public_share: Fraction of training examples that are public, drawn with the
      seed; 4 % in the paper. None for public data from another source. There is
      no default: examples are only public if you say so.
    validation_examples: Number of private examples held out to choose
      settings. They are not trained on, and not part of the plan's population.
    seed: Seed of the draw. It reveals which examples are private.
  """

  public_share: Optional[float]
  validation_examples: int = 0
  seed: int = 0

  def __post_init__(self):
    if self.public_share is not None:
      validate.between(0, 1, public_share=self.public_share)
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
    >>> config = SplitConfig(public_share=0.1)
    >>> split = split_examples(sample_level.load_digits(), config)
    >>> len(split.private) > 8 * len(split.public)
    True

  Args:
    data: The data set.
    config: The settings.
    public: Public examples from another source. Default: the data set's own, if
      any. Required if and only if `public_share` is None.

  Returns:
    The split. Its validation part is the data set's own, if any.

  Raises:
    ValueError: If a part would be empty.
  """
  public = data.public if public is None else public
  if (config.public_share is None) != (public is not None):
    raise ValueError(
      'public_share must be None if and only if there are public data from'
      f' another source. Found public_share={config.public_share!r}.'
    )
  if config.validation_examples and data.validation is not None:
    raise ValueError(
      f'validation_examples must be 0: {data.name} has its own validation'
      f' data. Found {config.validation_examples}.'
    )
  total = len(data.train)
  # Rounded down, as the paper's numbers of private examples.
  num_private = total
  if config.public_share is not None:
    num_private = math.floor((1 - config.public_share) * total + 1e-6)
    if not 0 < num_private < total:
      raise ValueError(
        f'public_share must leave both private and public ones of {total}'
        f' examples. Found {config.public_share}.'
      )
  if config.validation_examples >= num_private:
    raise ValueError(
      f'validation_examples must be below {num_private}, the number of private'
      f' examples. Found {config.validation_examples}.'
    )
  draws = seeds.generator('public', config.seed, 0).random(total)
  order = np.argsort(draws, kind='stable')
  # Keeps the order of the file: a split does not shuffle.
  public_rows = np.sort(order[num_private:])
  held_out = np.sort(order[: config.validation_examples])
  private_rows = np.sort(order[config.validation_examples : num_private])
  validation = data.validation
  if config.validation_examples:
    validation = data.train.take(held_out)
  return Split(
    private=data.train.take(private_rows),
    public=data.train.take(public_rows) if public is None else public,
    validation=validation,
    test=data.test,
  )


def data_hash(data: base.SampleLevelData, split: Split) -> str:
  """Returns the sha256 of the data for config.json.

  Example:

    >>> from data_prep import sample_level
    >>> data = sample_level.load_digits()
    >>> split = split_examples(data, SplitConfig(public_share=0.1))
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
