"""The privacy plan: one object from which everything private is derived.

Sampling, clipping, noise, the division and the event that is accounted come
out of one frozen `PrivacyPlan`, so that what is run and what is claimed cannot
drift apart. Nothing here needs TensorFlow or dp_accounting, so that every
engine can hold a plan.
"""

import dataclasses

import numpy as np
from pda_fed import _validate

# Streams of randomness that share a seed must not share numbers.
_COHORT_STREAM = 0x636F686F


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
  """User-level DP by Poisson cohorts, clipped updates and Gaussian noise.

  A round takes each of the N users with probability q = `expected_cohort` / N,
  clips each update to the norm S = `clip_norm`, sums them, adds
  N(0, (sigma S)^2) to each coordinate and divides by `expected_cohort`. The
  division is by the expected cohort, a constant: the true one is private.

  Example:

  ```
  plan = PrivacyPlan(
      population=342_477, expected_cohort=100, rounds=1600, delta=1e-6,
      noise_multiplier=0.4, clip_norm=0.3)
  plan.cohort(round_num=0, seed=1)  # The users of the first round.
  privacy.epsilon(plan)
  ```

  Attributes:
    population: N, the number of private users.
    expected_cohort: qN, the mean number of users in a round.
    rounds: T, the number of rounds that the plan pays for.
    delta: The delta of (epsilon, delta).
    noise_multiplier: sigma, the noise's standard deviation over `clip_norm`.
    clip_norm: S, the bound on the norm of one user's update.
  """

  population: int
  expected_cohort: float
  rounds: int
  delta: float
  noise_multiplier: float
  clip_norm: float

  def __post_init__(self):
    _validate.integers(1, population=self.population, rounds=self.rounds)
    _validate.positive(expected_cohort=self.expected_cohort)
    _validate.in_range(0, self.population, expected_cohort=self.expected_cohort)
    _validate.between(0, 1, delta=self.delta)
    _validate.non_negative(noise_multiplier=self.noise_multiplier)
    _validate.positive(clip_norm=self.clip_norm)

  @property
  def sampling_rate(self) -> float:
    """q, the probability with which a user is in a round."""
    return self.expected_cohort / self.population

  @property
  def neighbouring(self) -> str:
    """Which change of the data epsilon speaks of, in words."""
    return 'add or remove one user'

  def cohort(self, round_num: int, seed: int) -> np.ndarray:
    """Draws the users of a round, each independently with probability q.

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
    _validate.integers(0, round_num=round_num, seed=seed)
    rng = np.random.default_rng([_COHORT_STREAM, seed, round_num])
    return np.flatnonzero(rng.random(self.population) < self.sampling_rate)
