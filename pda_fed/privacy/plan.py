"""The privacy plan, from which every private operation is derived.

Sampling, clipping, noise, normalization and the accounted event all come from
one frozen `PrivacyPlan`, so that the run and the stated guarantee cannot
diverge. This module needs neither TensorFlow nor dp_accounting, so every engine
can use it.
"""

import dataclasses
import decimal
import math
from typing import Literal, Optional
import warnings

import numpy as np
from pda_fed.common import validate
from pda_fed.privacy import seeds


def round_up(value: float, digits: int = 4) -> str:
  """Formats a number, rounded up to some significant digits.

  Example:

    >>> round_up(6.05321)
    '6.054'
    >>> round_up(0.00012345)
    '0.0001235'

  Args:
    value: An epsilon, or a noise multiplier.
    digits: Number of significant digits.

  Returns:
    The rounded number, never below `value`.
  """
  if not math.isfinite(value) or value == 0:
    return f'{value:g}'
  exact = decimal.Decimal(repr(float(value)))
  unit = decimal.Decimal(1).scaleb(exact.adjusted() - digits + 1)
  return f'{float(exact.quantize(unit, decimal.ROUND_CEILING)):.{digits}g}'


Sampling = Literal['poisson', 'fixed_size', 'fixed_size_as_poisson', 'epochs']
Mechanism = Literal['gaussian', 'tree']

_SAMPLINGS = ('poisson', 'fixed_size', 'fixed_size_as_poisson', 'epochs')
_MECHANISMS = ('gaussian', 'tree')
# Outside this range, squares of float32 overflow or underflow.
_CLIP_NORMS = (1e-18, 1e18)
# Neighbouring relation of each sampling scheme.
_NEIGHBOURING = {
  'poisson': 'add or remove one',
  'fixed_size': 'replace one',
  'fixed_size_as_poisson': 'add or remove one',
  'epochs': 'zero out one',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
  """A clipping norm that follows a quantile of the updates' norms.

  "Differentially Private Learning with Adaptive Clipping" (Andrew et al.,
  NeurIPS 2021, arXiv:1905.03871): the clipping norm moves geometrically, driven
  by a noised count of the updates below it. The count is a second query on
  private data; the plan's noise multiplier covers the cost of both queries.

  Example:

    >>> from pda_fed import privacy
    >>> plan = privacy.PrivacyPlan(
    ...   population=10_000, expected_cohort=100, rounds=500, delta=1e-5,
    ...   noise_multiplier=1.0, clip_norm=0.1,
    ...   adaptive_clipping=AdaptiveClipping(target_quantile=0.5),
    ... )
    >>> round(plan.update_noise_multiplier, 3)  # A little more, for the count.
    1.005

  Attributes:
    target_quantile: The fraction of updates that should not be clipped.
    learning_rate: How fast the clipping norm moves. If all or none of the
      updates are clipped, it changes by a factor of about exp(+-rate / 2).
    count_stddev: Standard deviation of the noise on the count; by default a
      twentieth of the expected cohort.
  """

  target_quantile: float = 0.5
  learning_rate: float = 0.2
  count_stddev: Optional[float] = None

  def __post_init__(self):
    validate.in_range(0, 1, target_quantile=self.target_quantile)
    validate.positive(learning_rate=self.learning_rate)
    if self.count_stddev is not None:
      validate.positive(count_stddev=self.count_stddev)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
  """Differential privacy by sampling, clipping and Gaussian noise.

  A round takes a cohort, clips each user's update to the norm S = `clip_norm`,
  sums them, adds noise of standard deviation sigma S to each coordinate and
  divides by `expected_cohort`. The divisor is a constant, because the actual
  cohort size is private.

  Example:

  ```
  plan = PrivacyPlan(
      population=342_477, expected_cohort=100, rounds=1600, delta=1e-6,
      noise_multiplier=0.4, clip_norm=0.3)
  plan.cohort(round_num=0, seed=1)  # The users of the first round.
  privacy.epsilon(plan)             # 6.05
  ```

  Attributes:
    population: N, the number of private users (or examples).
    expected_cohort: qN, the expected number of users in a round (the batch).
    rounds: T, the number of rounds that the plan accounts for.
    delta: The delta of (epsilon, delta).
    noise_multiplier: sigma, the standard deviation of the noise divided by the
      clipping norm. With adaptive clipping, it covers update and count
      together.
    clip_norm: S, the bound on the norm of one user's update. With adaptive
      clipping, its initial value.
    adaptive_clipping: Settings of adaptive clipping; None for a fixed clipping
      norm.
    mechanism: 'gaussian', independent noise each round; or 'tree', the
      correlated noise of DP-FTRL ("Practical and Private (Deep) Learning
      Without Sampling or Shuffling", Kairouz et al., ICML 2021,
      arXiv:2103.00039), with a new tree each epoch.
    sampling: 'poisson' samples each user independently with probability q.
      'fixed_size' samples a random subset of `expected_cohort` users and
      accounts for it as such, for replacing one user. 'fixed_size_as_poisson'
      samples the same subsets but accounts for them as Poisson, which is common
      but only approximate. 'epochs' takes every user once per epoch in a random
      order, for 'tree'.
    unit: Name of one record: 'user', 'example', 'sequence'.
  """

  population: int
  expected_cohort: float
  rounds: int
  delta: float
  noise_multiplier: float
  clip_norm: float
  adaptive_clipping: Optional[AdaptiveClipping] = None
  mechanism: Mechanism = 'gaussian'
  sampling: Sampling = 'poisson'
  unit: str = 'user'

  def __post_init__(self):
    validate.integers(1, population=self.population, rounds=self.rounds)
    validate.positive(expected_cohort=self.expected_cohort)
    validate.in_range(0, self.population, expected_cohort=self.expected_cohort)
    validate.between(0, 1, delta=self.delta)
    validate.non_negative(noise_multiplier=self.noise_multiplier)
    validate.positive(clip_norm=self.clip_norm)
    validate.in_range(*_CLIP_NORMS, clip_norm=self.clip_norm)
    validate.one_of(_SAMPLINGS, sampling=self.sampling)
    validate.one_of(_MECHANISMS, mechanism=self.mechanism)
    validate.texts(unit=self.unit)
    if self.adaptive_clipping is not None:
      validate.instances(
        AdaptiveClipping, adaptive_clipping=self.adaptive_clipping
      )
    self._check_pairs()
    if self.delta > 1 / self.population:
      warnings.warn(
        f'delta={self.delta:g} is above 1/population={1 / self.population:g}:'
        f' fully revealing one random {self.unit} would satisfy it.',
        UserWarning,
        stacklevel=3,
      )

  def _check_pairs(self) -> None:
    """Raises for combinations that cannot be accounted for."""
    if self.sampling != 'poisson' and self.expected_cohort % 1:
      raise ValueError(
        f'expected_cohort must be an integer with sampling='
        f'{self.sampling!r}. Found {self.expected_cohort!r}.'
      )
    if (self.mechanism == 'tree') != (self.sampling == 'epochs'):
      raise ValueError(
        "mechanism must be 'tree' exactly when sampling is 'epochs'. Found"
        f' mechanism={self.mechanism!r}, sampling={self.sampling!r}.'
      )
    if self.adaptive_clipping is None:
      return
    if self.mechanism == 'tree':
      raise ValueError(
        "adaptive_clipping must be None with mechanism='tree': the tree's"
        f' noise needs a fixed clipping norm. Found {self.adaptive_clipping!r}.'
      )
    if self.noise_multiplier >= 2 * self.count_stddev:
      raise ValueError(
        'noise_multiplier must be below twice the count_stddev of'
        f' adaptive_clipping, {2 * self.count_stddev:g}: the count alone would'
        f' cost more. Found {self.noise_multiplier!r}.'
      )

  @property
  def sampling_rate(self) -> float:
    """q, the probability that a user is in a round."""
    return self.expected_cohort / self.population

  @property
  def neighbouring(self) -> str:
    """The neighbouring relation of epsilon, in words."""
    return f'{_NEIGHBOURING[self.sampling]} {self.unit}'

  @property
  def approximate(self) -> bool:
    """Whether the accounting is only approximate for the sampling used."""
    return self.sampling == 'fixed_size_as_poisson'

  @property
  def rounds_per_epoch(self) -> int:
    """Number of rounds in which every user is expected once."""
    return math.ceil(self.population / self.expected_cohort)

  @property
  def count_stddev(self) -> float:
    """Standard deviation of the noise on the count of unclipped updates.

    It is 0 without adaptive clipping.
    """
    if self.adaptive_clipping is None:
      return 0.0
    return self.adaptive_clipping.count_stddev or self.expected_cohort / 20

  @property
  def update_noise_multiplier(self) -> float:
    """Noise on the sum of updates, divided by the clipping norm.

    Without adaptive clipping it is `noise_multiplier`. With it, a round is one
    Gaussian query of the updates and of the count, whose sensitivity is 1/2.
    The noise on the updates is then chosen so that both together cost as much
    as `noise_multiplier` (Theorem 1 of Andrew et al.).
    """
    if self.adaptive_clipping is None or self.noise_multiplier == 0:
      return self.noise_multiplier
    return (self.noise_multiplier**-2 - (2 * self.count_stddev) ** -2) ** -0.5

  def cohort(self, round_num: int, seed: int) -> np.ndarray:
    """Draws the users of a round.

    The draw depends only on `seed` and `round_num`, so a resumed run draws the
    same cohorts. An empty cohort is valid: the round still adds noise and takes
    a step.

    Args:
      round_num: The index of the round, from 0.
      seed: The sampling seed of the run. Keep it secret: it determines the
        cohorts, and the guarantee requires that they are secret.

    Returns:
      The sorted indices of the users, from 0 to N - 1.

    Raises:
      ValueError: If `round_num` or `seed` is negative.
    """
    validate.integers(0, round_num=round_num, seed=seed)
    size = int(self.expected_cohort)
    if self.sampling == 'epochs':
      epoch, place = divmod(round_num, self.rounds_per_epoch)
      draws = seeds.generator('sampling', seed, epoch).random(self.population)
      # Sorting gives the same order in every numpy version; `permutation` and
      # `choice` do not guarantee that.
      order = np.argsort(draws, kind='stable')
      return np.sort(order[place * size : (place + 1) * size])
    draws = seeds.generator('sampling', seed, round_num).random(self.population)
    if self.sampling == 'poisson':
      return np.flatnonzero(draws < self.sampling_rate)
    return np.sort(np.argsort(draws, kind='stable')[:size])

  def aggregation_arguments(self) -> dict[str, float]:
    """Returns the arguments of `pda_jax.private_mean`.

    Raises:
      ValueError: If the plan's aggregation needs a state between rounds.
    """
    if self.adaptive_clipping is not None or self.mechanism == 'tree':
      raise ValueError(
        'adaptive_clipping must be None and mechanism must be'
        f' "gaussian" for a stateless aggregation. Found {self!r}.'
      )
    return {
      'clip_norm': self.clip_norm,
      'noise_multiplier': self.noise_multiplier,
      'expected_cohort': self.expected_cohort,
    }

  def describe(self, epsilon: float) -> str:
    """States the guarantee in a sentence.

    Args:
      epsilon: The result of `privacy.epsilon` for this plan.

    Returns:
      The unit, the neighbouring relation, epsilon, delta, cohorts and noise.
    """
    cohorts = {
      'poisson': f'Poisson cohorts of {self.expected_cohort:g} out of',
      'epochs': f'cohorts of {self.expected_cohort:g}, once an epoch, out of',
    }.get(self.sampling, f'fixed cohorts of {self.expected_cohort:g} out of')
    if math.isinf(epsilon):
      return (
        f'No {self.unit}-level DP: epsilon is infinite with noise multiplier'
        f' {self.noise_multiplier:g}; {cohorts} {self.population:,}'
        f' {self.unit}s.'
      )
    caution = ' (approximate: accounted as Poisson)' if self.approximate else ''
    return (
      f'{self.unit.capitalize()}-level DP, {self.neighbouring}: (epsilon,'
      f' delta) = ({round_up(epsilon)}, {self.delta:g}); {cohorts}'
      f' {self.population:,} {self.unit}s{caution}, noise multiplier'
      f' {round_up(self.noise_multiplier, 6)}.'
    )
