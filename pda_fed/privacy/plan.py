"""The privacy plan, from which every private operation is derived.

Sampling, clipping, noise, normalization and the accounted event all come from
one frozen `PrivacyPlan`, so that the run and the stated guarantee cannot
diverge. A plan needs neither TensorFlow nor dp_accounting, so every engine can
use it; only the methods that compute an epsilon import dp_accounting.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import math
from typing import Any, get_args, Literal, Optional, Union
import warnings

import numpy as np
from pda_fed.common import validate
from pda_fed.privacy import adaptive
from pda_fed.privacy import cohorts as cohorts_lib
from pda_fed.privacy import seeds as seeds_lib
from pda_fed.privacy import words

Sampling = Literal['poisson', 'fixed_size', 'fixed_size_as_poisson', 'epochs']
Mechanism = Literal['gaussian', 'tree']
Accountant = Literal['pld', 'rdp']

# Outside this range, squares of float32 overflow or underflow.
_CLIP_NORMS = (1e-18, 1e18)
# Sampling schemes whose privacy loss distribution is unknown.
_NO_PLD = ('fixed_size', 'epochs')
# Neighbouring relation of each sampling scheme.
_NEIGHBOURING = {
  'poisson': 'add or remove one',
  'fixed_size': 'replace one',
  'fixed_size_as_poisson': 'add or remove one',
  'epochs': 'zero out one',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
  """Differential privacy by sampling, clipping and Gaussian noise.

  A round takes a cohort, clips each user's update to the norm S = `clip_norm`,
  sums them, adds noise of standard deviation sigma S to each coordinate and
  divides by `expected_cohort`. The divisor is a constant, because the actual
  cohort size is private.

  Example:

    >>> plan = PrivacyPlan(
    ...   population=342_477, expected_cohort=100, rounds=1600, delta=1e-6,
    ...   noise_multiplier=0.4, clip_norm=0.3,
    ... )
    >>> round(plan.epsilon(), 2), round(plan.epsilon(accountant='rdp'), 2)
    (6.05, 7.51)
    >>> all_users = range(plan.population)
    >>> first = next(plan.cohorts(all_users))  # The users of the first round.

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
  adaptive_clipping: Optional[adaptive.AdaptiveClipping] = None
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
    validate.one_of(get_args(Sampling), sampling=self.sampling)
    validate.one_of(get_args(Mechanism), mechanism=self.mechanism)
    validate.texts(unit=self.unit)
    if self.adaptive_clipping is not None:
      validate.instances(
        adaptive.AdaptiveClipping, adaptive_clipping=self.adaptive_clipping
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

  @classmethod
  def for_epsilon(
    cls,
    epsilon: float,
    *,
    delta: float,
    population: int,
    expected_cohort: float,
    rounds: int,
    clip_norm: float,
    accountant: Optional[Accountant] = None,
    **fields: Any,
  ) -> 'PrivacyPlan':
    """Returns the plan with the smallest noise that keeps epsilon.

    Example:

      >>> plan = PrivacyPlan.for_epsilon(
      ...   4, delta=1e-5, population=10_000, expected_cohort=100, rounds=500,
      ...   clip_norm=0.3,
      ... )
      >>> round(plan.noise_multiplier, 2), round(plan.epsilon(), 1)
      (0.68, 4.0)

    Args:
      epsilon: The largest epsilon that all rounds of the plan may spend.
      delta: See `PrivacyPlan`.
      population: See `PrivacyPlan`.
      expected_cohort: See `PrivacyPlan`.
      rounds: See `PrivacyPlan`.
      clip_norm: See `PrivacyPlan`.
      accountant: See `epsilon`.
      **fields: Other fields of the plan.

    Returns:
      A plan whose epsilon is at most the target, and within 0.5 % of it.

    Raises:
      ValueError: If a field is out of range, or no noise multiplier between
        1e-3 and 1e6 meets `epsilon`.
    """
    from pda_fed.privacy import calibration

    fields |= {
      'delta': delta,
      'population': population,
      'expected_cohort': expected_cohort,
      'rounds': rounds,
      'clip_norm': clip_norm,
    }
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # The plan that is returned warns.
      # A fixed clipping norm costs the same, and allows any noise.
      fixed = cls(**{**fields, 'adaptive_clipping': None}, noise_multiplier=1.0)
      noise = calibration.least_noise(fixed, epsilon, accountant)
    return cls(**fields, noise_multiplier=noise)

  @property
  def accountant(self) -> Accountant:
    """The tightest accountant that applies to the plan.

    'pld', or 'rdp' where the privacy loss distribution is unknown.
    """
    return 'rdp' if self.sampling in _NO_PLD else 'pld'

  def epsilon(
    self,
    rounds: Optional[int] = None,
    delta: Optional[float] = None,
    accountant: Optional[Accountant] = None,
  ) -> float:
    """Returns the epsilon spent by `rounds` rounds.

    Args:
      rounds: Number of completed rounds; by default the plan's.
      delta: The target delta; by default the plan's.
      accountant: 'pld' (tight) or 'rdp' (looser; used for the paper's figures);
        by default the tightest that applies, `plan.accountant`.

    Returns:
      Epsilon. It is infinite if the plan adds no noise, and 0 before the first
      round.

    Raises:
      ValueError: If an argument is out of range, or the accountant cannot
        handle the plan.
    """
    from pda_fed.privacy import accounting

    rounds = self.rounds if rounds is None else rounds
    delta = self.delta if delta is None else delta
    return accounting.epsilon(self, rounds, delta, accountant)

  def epsilon_curve(
    self,
    rounds: Optional[Sequence[int]] = None,
    accountant: Optional[Accountant] = None,
  ) -> np.ndarray:
    """Returns the epsilon spent after each of several numbers of rounds.

    Shared work is done once. Up to 32 values are exact. Of more, 32 are exact;
    the others get the epsilon of the next larger exact one, never less than was
    spent.

    Args:
      rounds: Numbers of rounds; by default 0, 1, ... up to the plan's.
      accountant: See `epsilon`.

    Returns:
      An array as long as `rounds`.

    Raises:
      ValueError: See `epsilon`.
    """
    from pda_fed.privacy import accounting

    rounds = range(self.rounds + 1) if rounds is None else rounds
    return accounting.epsilon_curve(self, rounds, accountant)

  def max_rounds(
    self, epsilon: float, accountant: Optional[Accountant] = None
  ) -> int:
    """Returns the largest number of rounds that keeps epsilon.

    Args:
      epsilon: The largest epsilon that the rounds may spend.
      accountant: See `epsilon`.

    Returns:
      The number of rounds; 0 if one round already exceeds `epsilon`.

    Raises:
      ValueError: If `epsilon` is not positive, or 2^40 rounds do not spend it.
    """
    from pda_fed.privacy import calibration

    return calibration.most_rounds(self, epsilon, accountant)

  def cohort(self, round_num: int, seed: int) -> np.ndarray:
    """Returns the sorted indices of a round's users; see also `cohorts`.

    The draw depends only on `seed` and `round_num`, so a resumed run draws the
    same cohorts. An empty cohort is valid: the round still adds noise and takes
    a step.

    Args:
      round_num: The index of the round, from 0.
      seed: The sampling seed of the run. Keep it secret: it determines the
        cohorts, and the guarantee requires that they are secret.

    Raises:
      ValueError: If `round_num` or `seed` is negative.
    """
    return cohorts_lib.draw(self, round_num, seed)

  def cohorts(
    self,
    users: Union[Sequence[Any], Mapping[Any, Any]],
    seeds: Optional[seeds_lib.SeedStreams] = None,
    first_round: int = 0,
  ) -> Iterator[cohorts_lib.Cohort]:
    """Yields the users of each round.

    Example:

      >>> plan = PrivacyPlan(
      ...   population=4, expected_cohort=2, rounds=3, delta=0.1,
      ...   noise_multiplier=1.0, clip_norm=0.3,
      ... )
      >>> seeds = seeds_lib.SeedStreams(1)  # Without privacy: one knows it.
      >>> for cohort in plan.cohorts(['Ann', 'Bo', 'Cy', 'Di'], seeds):
      ...   print(cohort.round_num, list(cohort))
      0 ['Cy']
      1 ['Ann', 'Cy']
      2 ['Ann', 'Bo', 'Di']

    Args:
      users: The data of each user: a list, or a mapping from the user's name.
        Only data of sampled users is read.
      seeds: The secrets of the run; fresh ones by default. The trainer takes
        the noise of a round from its cohort's seeds, so that cohorts and noise
        share one secret.
      first_round: The first round, for a run that resumes with its own seeds.

    Returns:
      The cohorts, one for each round.

    Raises:
      ValueError: If there are not as many users as the plan's population.
    """
    validate.integers(0, first_round=first_round)
    if len(users) != self.population:
      raise ValueError(
        f'users must be as many as population, {self.population:,}. Found'
        f' {len(users):,}.'
      )
    seeds = seeds_lib.SeedStreams() if seeds is None else seeds
    return (
      cohorts_lib.Cohort(users, self.cohort(t, seeds.sampling), t, seeds)
      for t in range(first_round, self.rounds)
    )

  def statement(self, epsilon: Optional[float] = None) -> str:
    """States the guarantee in a sentence.

    Args:
      epsilon: An epsilon of this plan, by `plan.accountant`, that has been
        computed before. By default it is computed now.

    Returns:
      The unit, the neighbouring relation, epsilon, delta, the accountant,
      cohorts and noise.
    """
    return words.statement(self, self.epsilon() if epsilon is None else epsilon)
