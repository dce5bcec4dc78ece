"""Noise by a formula of the paper, for machines without dp_accounting."""

import math

from pda_fed.common import validate


def algorithm_1_noise_stddev(
  *,
  lipschitz: float,
  rounds: int,
  epsilon: float,
  delta: float,
  population: int,
) -> float:
  """The noise that Algorithm 1 of the paper adds to the mean gradient.

  sigma^2 = 8 L^2 T log(1/delta) / (epsilon n)^2, for T full-batch steps on n
  examples with gradients of norm at most L. Compare `tight_noise_stddev`.

  It keeps (epsilon, delta) for the addition or removal of an example and
  epsilon up to 8 log(1/delta): the steps are rho-zCDP for rho = epsilon^2 / (16
  log(1/delta)), and rho + 2 sqrt(rho log(1/delta)) is then at most epsilon. The
  n of the mean is taken as known to all, and the same with and without that
  example: it is the sum that may not tell.

  Example:

    >>> stddev = algorithm_1_noise_stddev(
    ...   lipschitz=1.0, rounds=10, epsilon=1.0, delta=1e-5, population=10_000
    ... )
    >>> round(stddev, 5)
    0.00303

  Args:
    lipschitz: L.
    rounds: T.
    epsilon: The target.
    delta: The target.
    population: n, the number of private examples.

  Returns:
    sigma, the standard deviation of the noise on each coordinate.

  Raises:
    ValueError: If an argument is out of its range.
  """
  validate.positive(lipschitz=lipschitz, epsilon=epsilon)
  validate.integers(1, rounds=rounds, population=population)
  validate.between(0, 1, delta=delta)
  # Above it the formula gives too little noise.
  validate.in_range(0, 8 * math.log(1 / delta), epsilon=epsilon)
  variance = 8 * lipschitz**2 * rounds * math.log(1 / delta)
  return math.sqrt(variance) / (epsilon * population)
