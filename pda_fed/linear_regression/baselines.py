"""Baselines for mirror descent, and the noise of a target epsilon."""

from typing import Literal, Optional, Union

import numpy as np
from pda_fed import privacy
from pda_fed.common import validate
from pda_fed.linear_regression import least_squares
from pda_fed.privacy import rounding
from scipy import linalg
from scipy import sparse

Noise = Literal['algorithm_1', 'tight']


def check_target(noise: Noise, epsilon: float, delta: float) -> None:
  """Raises if `noise_stddev` cannot meet the target.

  Args:
    noise: See `noise_stddev`.
    epsilon: The target epsilon.
    delta: The target delta.

  Raises:
    ValueError: If an argument is out of range.
  """
  validate.one_of(('algorithm_1', 'tight'), noise=noise)
  validate.positive(epsilon=epsilon)
  validate.between(0, 1, delta=delta)
  if noise == 'algorithm_1':  # The accountant supports any epsilon.
    privacy.algorithm_1_noise_stddev(
      lipschitz=1.0, rounds=1, epsilon=epsilon, delta=delta, population=1
    )


def noise_stddev(
  noise: Noise,
  *,
  clip_norm: float,
  rounds: int,
  epsilon: float,
  delta: float,
  population: int,
) -> float:
  """Returns the noise on a mean of clipped gradients.

  Example:

    >>> found = noise_stddev(
    ...   'algorithm_1', clip_norm=1.0, rounds=10, epsilon=1.0, delta=1e-5,
    ...   population=10_000,
    ... )
    >>> round(found, 5)
    0.00303

  Args:
    noise: 'algorithm_1' for the formula of Algorithm 1, or 'tight' for the
      smallest noise by PLD (needs dp_accounting).
    clip_norm: L, the clipping norm of a gradient.
    rounds: T, the number of full-batch steps.
    epsilon: The target epsilon.
    delta: The target delta.
    population: n, the number of private examples.

  Returns:
    The standard deviation of the noise on each coordinate of the mean.

  Raises:
    ValueError: If an argument is out of range.
  """
  validate.one_of(('algorithm_1', 'tight'), noise=noise)
  return privacy.algorithm_1_noise_stddev(
    tight=noise == 'tight',
    lipschitz=clip_norm,
    rounds=rounds,
    epsilon=epsilon,
    delta=delta,
    population=population,
  )


def dp_sufficient_statistics(
  features: Union[np.ndarray, sparse.spmatrix],
  responses: np.ndarray,
  rng: np.random.Generator,
  *,
  epsilon: float,
  delta: float,
  feature_norm: float,
  response_bound: float,
  noise: Noise = 'algorithm_1',
  center: Optional[np.ndarray] = None,
) -> np.ndarray:
  """Solves least squares from a noised X^T X and a noised X^T y.

  Rows are scaled to a norm of at most `feature_norm`, responses clipped to
  `response_bound`. A sample then changes the upper triangle of X^T X and X^T y
  together by at most B sqrt(B^2 + R^2) in norm, and one Gaussian release covers
  both. The noised X^T X is rarely positive definite. A ridge of twice the
  spectral norm of the noise, which is near 2 s sqrt(p), fixes that.

  Example:

    >>> rng = np.random.default_rng(0)
    >>> features = rng.normal(size=(10_000, 2)) / 2
    >>> theta = dp_sufficient_statistics(
    ...   features, features @ [1.0, -1.0], rng, epsilon=1.0, delta=1e-5,
    ...   feature_norm=2.0, response_bound=3.0,
    ... )
    >>> theta.round(0)
    array([ 1., -1.])

  Args:
    features: X, an (n, p) array or SciPy sparse matrix.
    responses: The n responses.
    rng: The random generator of the noise.
    epsilon: Epsilon of the release.
    delta: Delta of the release.
    feature_norm: B, the bound on the norm of a row.
    response_bound: R, the bound on a response.
    noise: See `noise_stddev`.
    center: The coefficients towards which the ridge shrinks, for example those
      of public data; by default 0.

  Returns:
    The coefficients.

  Raises:
    ValueError: If a number is out of range or not finite, or if shapes do not
      match.
  """
  validate.positive(feature_norm=feature_norm, response_bound=response_bound)
  features, responses = least_squares.check_samples(features, responses)
  p = features.shape[1]
  center = np.zeros(p) if center is None else np.asarray(center, np.float64)
  if center.shape != (p,) or not np.isfinite(center).all():
    raise ValueError(
      f'center must be a vector of {p} finite numbers. Found {center!r}.'
    )
  norms = np.sqrt(np.asarray(features.multiply(features).sum(axis=1)).ravel())
  shrink = np.minimum(1.0, feature_norm / np.maximum(norms, feature_norm))
  features = sparse.diags(shrink) @ features
  responses = np.clip(responses, -response_bound, response_bound)
  stddev = noise_stddev(
    noise,
    clip_norm=feature_norm * np.hypot(feature_norm, response_bound),
    rounds=1,
    epsilon=epsilon,
    delta=delta,
    population=1,  # The statistics are sums, not means.
  )
  gram = (features.T @ features).toarray()
  upper = np.triu(rng.standard_normal((p, p)))
  gram += stddev * (upper + np.triu(upper, 1).T)
  moments = features.T @ responses + stddev * rng.standard_normal(p)
  gram = rounding.round_noised(gram, stddev)
  moments = rounding.round_noised(moments, stddev)
  # From here on everything is post-processing.
  target = moments - gram @ center
  ridge = 2 * (2 * stddev * np.sqrt(p))
  while True:
    shifted = gram.copy()
    shifted[np.diag_indices(p)] += ridge
    try:
      factor = linalg.cho_factor(shifted, overwrite_a=True, check_finite=False)
    except linalg.LinAlgError:
      ridge *= 1.5
      continue
    return center + linalg.cho_solve(factor, target, check_finite=False)
