"""The simulated regression problem of the paper.

"Simulation Results" in section "Case Study: Linear Regression" of "Public
Data-Assisted Mirror Descent for Private Model Training" (Amid et al., ICML
2022, arXiv:2112.00193):

*   theta* ~ N(0, I) has p coordinates.
*   A feature vector x has 40 of its first p/5 and 80 of its last 4p/5
    coordinates, chosen uniformly at random, set to 0.05; the others are 0.
*   y ~ N(<theta*, x>, 0.01), so that the smallest possible mean squared error
    is 0.01 for every p.

Every x has the same sum over its first p/5 coordinates (2) and the same over
its last 4p/5 (4). So (2, ..., 2, -1, ..., -1) is orthogonal to every x, and
X^T X is singular however many samples there are: the paper's "small constant
times the identity matrix" is necessary.
"""

import dataclasses
from typing import Any

import numpy as np
from pda_fed.common import validate
from scipy import sparse

_NUM_IN_FIRST_FIFTH = 40
_NUM_IN_REST = 80
_FEATURE_VALUE = 0.05
_RESPONSE_VARIANCE = 0.01


# Compared by identity, as == of dataclasses does not work for arrays.
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RegressionProblem:
  """A least-squares problem with private and public samples.

  Example: see `simulate`.

  Attributes:
    theta_star: The true coefficients of the responses.
    private_features: One row per private sample.
    private_responses: One number per private sample.
    public_features: One row per public sample.
    public_responses: One number per public sample.
  """

  theta_star: np.ndarray
  private_features: sparse.csr_matrix
  private_responses: np.ndarray
  public_features: sparse.csr_matrix
  public_responses: np.ndarray


def simulate(
  p: int, num_private: int, num_public: int, seed: int
) -> RegressionProblem:
  """Draws the simulated problem of the paper.

  theta*, the private and the public samples have separate random streams: the
  private samples of a seed are the same for any `num_public`, and vice versa.

  Example:

    >>> data = simulate(p=200, num_private=10, num_public=5, seed=0)
    >>> data.private_features.shape, data.public_responses.shape
    ((10, 200), (5,))

  Args:
    p: The number of coefficients, at least 200, so that 40 of the first p/5
      (rounded down) exist. The paper goes from 500 to 6000.
    num_private: The number of private samples, at least 1; 10,000 in the paper.
    num_public: The number of public samples, at least 1; 1.5 p in the paper.
    seed: A non-negative integer.

  Returns:
    The `RegressionProblem`, which depends only on the arguments.

  Raises:
    TypeError: If an argument is not an integer.
    ValueError: If an argument is out of range.
  """
  # The first fifth is the tighter constraint: 40 of p/5, compared to 80 of
  # 4p/5.
  validate.integers(5 * _NUM_IN_FIRST_FIFTH, p=p)
  validate.integers(1, num_private=num_private, num_public=num_public)
  validate.integers(0, seed=seed)

  theta_rng, private_rng, public_rng = (
    np.random.default_rng(child)
    for child in np.random.SeedSequence(int(seed)).spawn(3)
  )
  theta_star = theta_rng.standard_normal(p)
  private_features, private_responses = _draw_samples(
    private_rng, num_private, theta_star
  )
  public_features, public_responses = _draw_samples(
    public_rng, num_public, theta_star
  )
  return RegressionProblem(
    theta_star=theta_star,
    private_features=private_features,
    private_responses=private_responses,
    public_features=public_features,
    public_responses=public_responses,
  )


def population_mse(thetas: np.ndarray, theta_star: np.ndarray) -> np.ndarray:
  """Returns the expected mean squared error on new samples.

  It is the closed form for the paper's distribution: the sum of k coordinates
  of d = theta - theta*, drawn from m without replacement, has mean k mean(d)
  and variance k (1 - k/m) var(d).

  Example:

    >>> theta_star = np.zeros(200)
    >>> population_mse(theta_star[:, None], theta_star)
    array([0.01])

  Args:
    thetas: A block of shape (p, columns).
    theta_star: The coefficients of the problem.

  Returns:
    One value for each column, at least 0.01.
  """
  errors = thetas - theta_star[:, None]
  fifth = theta_star.size // 5
  mean: Any = 0.0
  variance: Any = 0.0
  for group, size in (
    (errors[:fifth], _NUM_IN_FIRST_FIFTH),
    (errors[fifth:], _NUM_IN_REST),
  ):
    mean = mean + size * group.mean(axis=0)
    spread = group.var(axis=0, ddof=1)
    variance = variance + size * (1 - size / group.shape[0]) * spread
  return _FEATURE_VALUE**2 * (mean**2 + variance) + _RESPONSE_VARIANCE


def _draw_samples(
  rng: np.random.Generator, num_samples: int, theta_star: np.ndarray
) -> tuple[sparse.csr_matrix, np.ndarray]:
  """Draws feature vectors and their responses."""
  p = theta_star.size
  fifth = p // 5
  columns = np.concatenate(
    [
      _draw_subsets(rng, num_samples, fifth, _NUM_IN_FIRST_FIFTH),
      _draw_subsets(rng, num_samples, p - fifth, _NUM_IN_REST) + fifth,
    ],
    axis=1,
  )
  columns.sort(axis=1)
  row_size = columns.shape[1]
  features = sparse.csr_matrix(
    (
      np.full(columns.size, _FEATURE_VALUE),
      columns.ravel(),
      np.arange(0, columns.size + 1, row_size),
    ),
    shape=(num_samples, p),
  )
  noise = rng.normal(scale=np.sqrt(_RESPONSE_VARIANCE), size=num_samples)
  return features, features @ theta_star + noise


def _draw_subsets(
  rng: np.random.Generator, num_rows: int, population: int, size: int
) -> np.ndarray:
  """Draws a uniformly random subset of range(population) for each row.

  It uses Floyd's algorithm on all rows at once, with `size` draws per row.
  Sorting random keys would need `population` draws.

  Args:
    rng: The random generator.
    num_rows: The number of subsets.
    population: The number of elements to choose from.
    size: The number of elements in a subset, at most `population`.

  Returns:
    An array of shape (num_rows, size) without repetitions in a row.
  """
  subsets = np.empty((num_rows, size), dtype=np.int64)
  for i in range(size):
    last = population - size + i
    drawn = rng.integers(0, last, size=num_rows, endpoint=True)
    # `last` cannot be in the subset yet; use it if `drawn` already is.
    taken = (subsets[:, :i] == drawn[:, np.newaxis]).any(axis=1)
    subsets[:, i] = np.where(taken, last, drawn)
  return subsets
