"""The privacy plan: one object from which everything private is derived.

Sampling, clipping, noise, the division and the event that is accounted come
out of one frozen `PrivacyPlan`, so that what is run and what is claimed cannot
drift apart. Nothing here needs TensorFlow or dp_accounting, so that every
engine can hold a plan.
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
  """Formats a number so that what is printed is never below it.

  Example:

    >>> round_up(6.05321)
    '6.054'
    >>> round_up(0.00012345)
    '0.0001235'

  Args:
    value: An epsilon, or a noise multiplier.
    digits: Significant digits.

  Returns:
    The number, rounded up.
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
# Beyond these, squares of float32 overflow or vanish.
_CLIP_NORMS = (1e-18, 1e18)
# Which change of the data epsilon speaks of.
_NEIGHBOURING = {
  'poisson': 'add or remove one',
  'fixed_size': 'replace one',
  'fixed_size_as_poisson': 'add or remove one',
  'epochs': 'zero out one',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
  """A clip that follows a quantile of the norms of the updates.

  "Differentially Private Learning with Adaptive Clipping" (Andrew et al.,
  NeurIPS 2021, arXiv:1905.03871): a noised count of the updates below the clip
  moves it geometrically. The count is a second query on private data; the
  plan's noise multiplier is what both queries cost together.

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
    target_quantile: The share of updates that should not be clipped.
    learning_rate: How fast the clip follows: a cohort that is all on one side
      of it moves it by about exp(+-rate / 2).
    count_stddev: The standard deviation of the noise that the count gets;
      by default a twentieth of the expected cohort.
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
  divides by `expected_cohort`. The division is by the expected cohort, a
  constant: the true one is private.

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
    expected_cohort: qN, the mean number of users in a round (the batch).
    rounds: T, the number of rounds that the plan pays for.
    delta: The delta of (epsilon, delta).
    noise_multiplier: sigma, the noise's standard deviation over the clip. With
      adaptive clipping, that of update and count together.
    clip_norm: S, the bound on the norm of one user's update; with adaptive
      clipping, where it starts.
    adaptive_clipping: None for a fixed clip.
    mechanism: 'gaussian', independent noise each round; or 'tree', the
      correlated noise of DP-FTRL ("Practical and Private (Deep) Learning
      Without Sampling or Shuffling", Kairouz et al., ICML 2021,
      arXiv:2103.00039), where the tree starts anew each epoch.
    sampling: 'poisson', each user independently with probability q;
      'fixed_size', a random subset of `expected_cohort` users, accounted as
      such for the change of one user to another; 'fixed_size_as_poisson', the
      same subsets accounted as if they were Poisson, which is customary and
      only approximate; 'epochs', every user once an epoch in a random order,
      for 'tree'.
    unit: What one record is, in words: 'user', 'example', 'sequence'.
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
        f' revealing one random {self.unit} whole would satisfy it.',
        UserWarning,
        stacklevel=3,
      )

  def _check_pairs(self) -> None:
    """Refuses combinations that we could run but not account for."""
    if self.sampling != 'poisson' and self.expected_cohort % 1:
      raise ValueError(
        f'expected_cohort must be a whole number with sampling='
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
        f' noise is for one clip. Found {self.adaptive_clipping!r}.'
      )
    if self.noise_multiplier >= 2 * self.count_stddev:
      raise ValueError(
        'noise_multiplier must be below twice the count_stddev of'
        f' adaptive_clipping, {2 * self.count_stddev:g}: the count alone would'
        f' cost more. Found {self.noise_multiplier!r}.'
      )

  @property
  def sampling_rate(self) -> float:
    """q, the probability with which a user is in a round."""
    return self.expected_cohort / self.population

  @property
  def neighbouring(self) -> str:
    """Which change of the data epsilon speaks of, in words."""
    return f'{_NEIGHBOURING[self.sampling]} {self.unit}'

  @property
  def approximate(self) -> bool:
    """Whether the accounted event is not quite the one that is run."""
    return self.sampling == 'fixed_size_as_poisson'

  @property
  def rounds_per_epoch(self) -> int:
    """Rounds in which every user is expected once."""
    return math.ceil(self.population / self.expected_cohort)

  @property
  def count_stddev(self) -> float:
    """Noise of the count of unclipped updates; 0 without adaptive clipping."""
    if self.adaptive_clipping is None:
      return 0.0
    return self.adaptive_clipping.count_stddev or self.expected_cohort / 20

  @property
  def update_noise_multiplier(self) -> float:
    """The noise that the sum of updates gets, over the clip.

    Without adaptive clipping it is `noise_multiplier`. With it, a round is one
    Gaussian query of the updates and of the count, whose sensitivity is a half;
    the noise of the updates is what makes both together cost as much as
    `noise_multiplier` (Theorem 1 of Andrew et al.).
    """
    if self.adaptive_clipping is None or self.noise_multiplier == 0:
      return self.noise_multiplier
    return (self.noise_multiplier**-2 - (2 * self.count_stddev) ** -2) ** -0.5

  def cohort(self, round_num: int, seed: int) -> np.ndarray:
    """Draws the users of a round.

    The draw depends on `seed` and `round_num` alone, so a resumed run takes
    the same cohorts. An empty cohort is a cohort: the round still adds noise
    and steps.

    Args:
      round_num: The round, from 0.
      seed: The seed of the run's sampling. Whoever knows it knows the cohorts,
        and the guarantee rests on their being secret.

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
      # An order by sorting is the same in every numpy, which `permutation`
      # and `choice` do not promise.
      order = np.argsort(draws, kind='stable')
      return np.sort(order[place * size : (place + 1) * size])
    draws = seeds.generator('sampling', seed, round_num).random(self.population)
    if self.sampling == 'poisson':
      return np.flatnonzero(draws < self.sampling_rate)
    return np.sort(np.argsort(draws, kind='stable')[:size])

  def aggregation_arguments(self) -> dict[str, float]:
    """The arguments of `vectorized.private_mean` for a fixed clip.

    Raises:
      ValueError: If the plan's aggregation needs a state from round to round.
    """
    if self.adaptive_clipping is not None or self.mechanism == 'tree':
      raise ValueError(
        'adaptive_clipping must be None and mechanism must be'
        f' "gaussian" for an aggregation without a state. Found {self!r}.'
      )
    return {
      'clip_norm': self.clip_norm,
      'noise_multiplier': self.noise_multiplier,
      'expected_cohort': self.expected_cohort,
    }

  def describe(self, epsilon: float) -> str:
    """States the guarantee in a sentence.

    Args:
      epsilon: As computed by `privacy.epsilon` for this plan.

    Returns:
      The unit, the neighbouring relation, epsilon, delta and the cohorts.
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
