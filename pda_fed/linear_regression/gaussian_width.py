"""Gaussian width, by formula and by Monte Carlo.

G_Q = E max over x in Q of <g, x>, g ~ N(0, I): a measure of how isotropic a set
is; see section "Background" of "Public Data-Assisted Mirror Descent for Private
Model Training" (Amid et al., ICML 2022, arXiv:2112.00193). The paper gives
orders of magnitude; these functions return the values. Its "roughly log p" for
the l1 ball is an upper bound: the width is near sqrt(2 log p).
"""

from collections.abc import Callable
import math

import numpy as np
from numpy import typing as npt
from pda_fed.common import validate
from scipy import integrate
from scipy import special

# A function of samples g (samples, p) that returns max over Q of <g, x>.
SupportFn = Callable[[np.ndarray], np.ndarray]


def ellipsoid(radii: npt.ArrayLike) -> float:
  """Returns the width of an ellipsoid, E sqrt(sum_i r_i^2 g_i^2).

  It uses the known Laplace transform of the sum: sqrt(q) is 1/(2 sqrt(pi))
  times the integral of (1 - exp(-s q)) s^-1.5 over s.

  Args:
    radii: r_i, the half-axes, non-negative.

  Returns:
    The width, with a relative error of about 1e-8. It lies between sqrt(2/pi)
    and 1 times sqrt(sum_i r_i^2), the paper's formula.

  Raises:
    ValueError: If a radius is negative or not finite, or if all are 0.
  """
  squares = np.square(_check_radii(radii))
  size = squares.sum()
  squares = squares / size

  def integrand(u: float) -> float:
    s = math.exp(u)
    log_laplace = -0.5 * np.log1p(2 * s * squares).sum()
    return -math.expm1(log_laplace) * math.exp(-u / 2)

  # The integrand falls like exp(-|u| / 2) on either side.
  value, _ = integrate.quad(
    integrand, -45, 45, points=[-2, 0, 2], limit=500, epsrel=1e-10
  )
  return float(math.sqrt(size) * value / (2 * math.sqrt(math.pi)))


def l2_ball(p: int, radius: float = 1.0) -> float:
  """Returns the width of the Euclidean ball, near sqrt(p) times the radius."""
  _check_ball(p, radius)
  ratio = special.gammaln((p + 1) / 2) - special.gammaln(p / 2)
  return radius * math.sqrt(2) * math.exp(ratio)


def l1_ball(p: int, radius: float = 1.0) -> float:
  """Returns the width of the l1 ball, E max_i |g_i| times the radius."""
  _check_ball(p, radius)

  def exceeds(t: float) -> float:
    inside = math.log1p(-special.erfc(t / math.sqrt(2))) if t > 0 else -math.inf
    return -math.expm1(p * inside)

  # Beyond the last point, the probability to exceed t is below 1e-16 p.
  edge = math.sqrt(2 * math.log(2 * p))
  value, _ = integrate.quad(
    exceeds, 0, edge + 9, points=[edge], limit=200, epsrel=1e-10
  )
  return radius * value


def linf_ball(p: int, radius: float = 1.0) -> float:
  """Returns the width of the l-infinity ball, p sqrt(2/pi) times the radius."""
  _check_ball(p, radius)
  return radius * p * math.sqrt(2 / math.pi)


def ellipsoid_support(radii: npt.ArrayLike) -> SupportFn:
  """Returns the support function of an ellipsoid, for `monte_carlo`."""
  radii = _check_radii(radii)
  return lambda g: np.linalg.norm(g * radii, axis=-1)


def l1_support(g: np.ndarray) -> np.ndarray:
  """The support function of the l1 ball, for `monte_carlo`."""
  return np.abs(g).max(axis=-1)


def linf_support(g: np.ndarray) -> np.ndarray:
  """The support function of the l-infinity ball, for `monte_carlo`."""
  return np.abs(g).sum(axis=-1)


def monte_carlo(
  support_fn: SupportFn,
  p: int,
  *,
  num_samples: int = 1000,
  rng: np.random.Generator,
) -> tuple[float, float]:
  """Estimates the width of any set from its support function.

  Args:
    support_fn: A function of samples (samples, p) that returns max over Q of
      <g, x> for each.
    p: The dimension.
    num_samples: Number of samples, at least 2.
    rng: The random generator.

  Returns:
    The estimate and its standard error.

  Raises:
    ValueError: If a number is out of range.
  """
  validate.integers(1, p=p)
  validate.integers(2, num_samples=num_samples)
  chunk = max(1, 4_000_000 // p)  # At most 32 MB at a time.
  values = np.concatenate(
    [
      support_fn(rng.standard_normal((min(chunk, num_samples - start), p)))
      for start in range(0, num_samples, chunk)
    ]
  )
  error = values.std(ddof=1) / math.sqrt(values.size)
  return float(values.mean()), float(error)


def _check_ball(p: int, radius: float) -> None:
  validate.integers(1, p=p)
  validate.positive(radius=radius)


def _check_radii(radii: npt.ArrayLike) -> np.ndarray:
  radii = np.asarray(radii, np.float64)
  if radii.ndim != 1 or not (radii >= 0).all() or not 0 < radii.sum() < np.inf:
    raise ValueError(
      'radii must be a vector of non-negative, finite numbers, not all 0. Found'
      f' {radii!r}.'
    )
  return radii
