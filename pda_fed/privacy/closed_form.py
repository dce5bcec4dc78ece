"""Noise of the paper's Algorithm 1."""

import math

from pda_fed.common import validate
from pda_fed.privacy import plan as plan_lib


def algorithm_1_noise_stddev(
  *,
  lipschitz: float,
  rounds: int,
  epsilon: float,
  delta: float,
  population: int,
  tight: bool = False,
) -> float:
  """Returns the noise that Algorithm 1 of the paper adds to the mean gradient.

  sigma^2 = 8 L^2 T log(1/delta) / (epsilon n)^2, for T full-batch steps on n
  examples with gradients of norm at most L. It needs no dp_accounting.

  It meets (epsilon, delta) for adding or removing an example, for epsilon up to
  8 log(1/delta): the steps are rho-zCDP for rho = epsilon^2 / (16
  log(1/delta)), and rho + 2 sqrt(rho log(1/delta)) is then at most epsilon. The
  n of the mean is public, and the same with and without that example: only the
  sum is protected.

  Example:

    >>> target = dict(
    ...   lipschitz=1.0, rounds=10, epsilon=1.0, delta=1e-5, population=10_000
    ... )
    >>> round(algorithm_1_noise_stddev(**target), 5)
    0.00303
    >>> round(algorithm_1_noise_stddev(**target, tight=True), 5)
    0.00118

  Args:
    lipschitz: L, the largest norm of a gradient.
    rounds: T, the number of steps.
    epsilon: The target epsilon.
    delta: The target delta.
    population: n, the number of private examples.
    tight: Whether to return the smallest noise that meets the target, by PLD,
      instead of the formula's.

  Returns:
    sigma, the standard deviation of the noise on each coordinate.

  Raises:
    ValueError: If an argument is out of range.
  """
  validate.positive(lipschitz=lipschitz, epsilon=epsilon)
  validate.integers(1, rounds=rounds, population=population)
  validate.between(0, 1, delta=delta)
  if tight:
    plan = plan_lib.PrivacyPlan.for_epsilon(
      epsilon,
      delta=delta,
      population=population,
      expected_cohort=population,
      rounds=rounds,
      clip_norm=lipschitz,
      unit='example',
    )
    return plan.noise_multiplier * lipschitz / population
  # Above this epsilon the formula gives too little noise.
  validate.in_range(0, 8 * math.log(1 / delta), epsilon=epsilon)
  variance = 8 * lipschitz**2 * rounds * math.log(1 / delta)
  return math.sqrt(variance) / (epsilon * population)
