"""The constraint set C of Algorithm 1, and Bregman projections onto it.

The linear-regression theorem of "Public Data-Assisted Mirror Descent for
Private Model Training" (Amid et al., ICML 2022, arXiv:2112.00193) takes

  C = {theta : |theta| <= r, |grad Psi(theta)| <= c sqrt(log(1/delta) / n_pub)}.

If Psi is quadratic with Hessian H and minimizer m, the Bregman projection of z
minimizes 1/2 (theta - z)^T H (theta - z) over C, and the multipliers mu of the
ball and nu of the gradient's bound give

  (H + mu I + nu H^2) theta = H z + nu H^2 m,

which is diagonal in the basis of H's eigenvectors. Each bound holds with
equality or its multiplier is 0. The norms fall as their multipliers rise.
"""

from collections.abc import Callable
import dataclasses
import math
from typing import Optional

import numpy as np
from pda_fed.common import validate
from scipy import optimize

# Bounds hold up to this relative error.
_TOLERANCE = 1e-12


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConstraintSet:
  """A ball, a bound on the public gradient, or the intersection of both.

  Example:

    >>> from pda_fed import linear_regression
    >>> psi = linear_regression.EuclideanMirrorMap([3.0, 4.0])
    >>> psi.minimizer(ConstraintSet(radius=1.0))
    array([0.6, 0.8])

  Attributes:
    radius: r, the largest norm of theta; None for no bound.
    public_gradient_norm: The largest norm of the gradient of the public loss,
      regularised but not scaled, at theta; None for no bound.
  """

  radius: Optional[float] = None
  public_gradient_norm: Optional[float] = None

  def __post_init__(self):
    if self.radius is None and self.public_gradient_norm is None:
      raise ValueError(
        'radius or public_gradient_norm must be given. Found None for both.'
      )
    for name in ('radius', 'public_gradient_norm'):
      if getattr(self, name) is not None:
        validate.positive(**{name: getattr(self, name)})


def theorem_constraint(
  *, radius: float, constant: float, delta: float, num_public: int
) -> ConstraintSet:
  """Returns the set C of the linear-regression theorem.

  Example:

    >>> found = theorem_constraint(
    ...   radius=1.0, constant=2.0, delta=1e-2, num_public=100
    ... )
    >>> round(found.public_gradient_norm, 3)
    0.429

  Args:
    radius: r of the initial set C_0.
    constant: The constant in the theorem's O(): the bound on the public
      gradient is `constant` sqrt(log(1/delta) / n_pub).
    delta: The delta of (epsilon, delta).
    num_public: n_pub, the number of public samples.

  Raises:
    ValueError: If an argument is out of range.
  """
  validate.positive(radius=radius, constant=constant)
  validate.between(0, 1, delta=delta)
  validate.integers(1, num_public=num_public)
  bound = constant * math.sqrt(math.log(1 / delta) / num_public)
  return ConstraintSet(radius=radius, public_gradient_norm=bound)


def project_onto_ball(theta: np.ndarray, radius: float) -> np.ndarray:
  """Returns the nearest point with norm at most r, in the Euclidean norm."""
  norms = np.linalg.norm(theta, axis=0)
  return theta * np.minimum(1.0, radius / np.maximum(norms, radius))


def project_quadratic(
  point: np.ndarray,
  minimizer: np.ndarray,
  eigenvalues: np.ndarray,
  constraint: ConstraintSet,
) -> np.ndarray:
  """Returns the Bregman projection for a quadratic, in its eigenbasis.

  Args:
    point: z in the basis of the eigenvectors of H.
    minimizer: m in that basis.
    eigenvalues: Eigenvalues of H, positive. H belongs to the public loss,
      regularised but not scaled: a factor does not change the projection.
    constraint: C.

  Returns:
    The point of C with the smallest Bregman divergence from z, in that basis.

  Raises:
    ValueError: If C is empty.
  """
  radius = constraint.radius
  bound = constraint.public_gradient_norm
  radius = math.inf if radius is None else radius
  bound = math.inf if bound is None else bound

  def solve(mu: float, nu: float) -> np.ndarray:
    # Divide by 1 + mu + nu, because multipliers may be large.
    size = 1.0 + mu + nu
    weights = eigenvalues / size, mu / size, nu / size * eigenvalues**2
    return (weights[0] * point + weights[2] * minimizer) / sum(weights)

  def norm(theta: np.ndarray) -> float:
    return float(np.linalg.norm(theta))

  def gradient_norm(theta: np.ndarray) -> float:
    return float(np.linalg.norm(eigenvalues * (theta - minimizer)))

  def within_ball(nu: float) -> np.ndarray:
    mu = _multiplier(lambda mu: norm(solve(mu, nu)), radius)
    return solve(mu, nu)

  theta = within_ball(0.0)
  if gradient_norm(theta) <= bound * (1 + _TOLERANCE):
    return theta
  _check_not_empty(minimizer, eigenvalues, radius, bound)
  nu = _multiplier(lambda nu: gradient_norm(within_ball(nu)), bound)
  return within_ball(nu)


def _multiplier(norm: Callable[[float], float], bound: float) -> float:
  """Returns the smallest multiplier at which a falling norm meets its bound."""
  if norm(0.0) <= bound:
    return 0.0
  high = 1.0
  while norm(high) > bound:
    high *= 16.0
    if high > 1e60:  # The bound is met only in the limit.
      return high
  low = high
  while norm(low) <= bound:
    low /= 16.0
  return optimize.brentq(
    lambda multiplier: norm(multiplier) - bound, low, high, xtol=1e-300
  )


def _check_not_empty(
  minimizer: np.ndarray, eigenvalues: np.ndarray, radius: float, bound: float
) -> None:
  """Raises if no point of the ball has a small enough public gradient."""
  if np.linalg.norm(minimizer) <= radius:
    return

  def solve(mu: float) -> np.ndarray:
    # The smallest gradient within the ball: (H^2 + mu I) theta = H^2 m.
    weight = eigenvalues**2
    return weight * minimizer / (weight + mu)

  mu = _multiplier(lambda mu: float(np.linalg.norm(solve(mu))), radius)
  least = float(np.linalg.norm(eigenvalues * (solve(mu) - minimizer)))
  if least > bound:
    raise ValueError(
      'The constraint set is empty: within the radius, the norm of the public '
      f'gradient is at least {least:.4g}. public_gradient_norm must be at '
      f'least that, or radius larger. Found {bound!r} and {radius!r}.'
    )
