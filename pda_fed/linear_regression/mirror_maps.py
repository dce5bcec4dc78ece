"""Mirror maps Psi for Algorithm 1.

A mirror map of "Public Data-Assisted Mirror Descent for Private Model Training"
(Amid et al., ICML 2022, arXiv:2112.00193) is smooth and strictly convex.
Algorithm 1 needs its minimizer over C and the step

  argmin over C of eta <g, theta> + B_Psi(theta, theta_t).

`QuadraticMirrorMap` has a closed form of the step. With `EuclideanMirrorMap`,
Algorithm 1 is DP-SGD. `SmoothMirrorMap` takes any Psi and its gradient, and
solves for the step. `FirstOrderMirrorMap` is the paper's approximation,
equation (3).
"""

from collections.abc import Callable
from typing import Optional, Protocol

import numpy as np
from numpy import typing as npt
from pda_fed import schedules
from pda_fed.common import validate
from pda_fed.linear_regression import constraints
from scipy import optimize

# A strictly convex Psi never needs a ball multiplier this large.
_MAX_MULTIPLIER = 1e30


class MirrorMap(Protocol):
  """The interface of mirror maps for `mirror_descent`.

  Thetas and gradients are vectors of p numbers, or blocks of shape (p, columns)
  whose columns are runs side by side.

  Example:

    >>> from pda_fed import linear_regression
    >>> class Halved:  # Any class with these two methods works.
    ...   def minimizer(self, constraint=None):
    ...     return np.zeros(2)
    ...   def step(self, theta, gradient, rate, constraint=None, t=0):
    ...     return theta - rate * gradient / 2
    >>> problem = linear_regression.LeastSquares(np.eye(2), np.ones(2))
    >>> setting = linear_regression.Setting(
    ...   learning_rate=1.0, clip_norm=9.0, num_steps=1, noise_stddev=0.0
    ... )
    >>> linear_regression.mirror_descent(
    ...   Halved(), problem.full_batch(), [setting], np.random.default_rng(0)
    ... ).last.ravel()
    array([0.25, 0.25])
  """

  def minimizer(
    self, constraint: Optional[constraints.ConstraintSet] = None
  ) -> np.ndarray:
    """Returns argmin Psi over C, the start of Algorithm 1."""

  def step(
    self,
    theta: npt.ArrayLike,
    noisy_gradient: npt.ArrayLike,
    learning_rate: npt.ArrayLike,
    constraint: Optional[constraints.ConstraintSet] = None,
    t: int = 0,
  ) -> np.ndarray:
    """Returns argmin over C of eta <g + b, .> + B_Psi(., theta).

    Args:
      theta: theta_t.
      noisy_gradient: g_t + b_t.
      learning_rate: eta_t; for a block, optionally one for each column.
      constraint: C; by default there is none.
      t: Index of the step, from 0, for maps that depend on it.
    """


class EuclideanMirrorMap:
  """Psi(theta) = |theta - start|^2 / 2, with which Algorithm 1 is DP-SGD.

  A random start gives DP-SGD with a cold start, the public minimizer DP-SGD
  with a warm start.

  Example:

    >>> psi = EuclideanMirrorMap([1.0, 2.0])
    >>> psi.step(psi.minimizer(), np.array([1.0, -1.0]), learning_rate=0.5)
    array([0.5, 2.5])
  """

  def __init__(self, start: npt.ArrayLike):
    """Initializes the map with the minimizer of Psi.

    Args:
      start: The vector at which runs start.

    Raises:
      ValueError: If `start` is not a vector of finite numbers.
    """
    self._start = np.array(start, dtype=np.float64)
    if self._start.ndim != 1 or not np.isfinite(self._start).all():
      raise ValueError(
        f'start must be a vector of finite numbers. Found {start!r}.'
      )

  def value(self, theta: npt.ArrayLike) -> float:
    """Returns Psi(theta)."""
    return float(np.sum((np.asarray(theta) - self._start) ** 2)) / 2

  def gradient(self, theta: npt.ArrayLike) -> np.ndarray:
    """Returns the gradient of Psi at theta."""
    return np.asarray(theta) - self._start

  def minimizer(
    self, constraint: Optional[constraints.ConstraintSet] = None
  ) -> np.ndarray:
    return _project_euclidean(self._start.copy(), constraint)

  def step(
    self,
    theta: npt.ArrayLike,
    noisy_gradient: npt.ArrayLike,
    learning_rate: npt.ArrayLike,
    constraint: Optional[constraints.ConstraintSet] = None,
    t: int = 0,
  ) -> np.ndarray:
    del t
    moved = np.asarray(theta) - learning_rate * np.asarray(noisy_gradient)
    return _project_euclidean(moved, constraint)


class SmoothMirrorMap:
  """A mirror map from callables, whose step is solved by inner iterations.

  Example:

    >>> psi = SmoothMirrorMap(
    ...   lambda theta: np.exp(theta).sum() - theta.sum(),
    ...   lambda theta: np.exp(theta) - 1,
    ...   num_coefficients=1,
    ... )
    >>> # exp(theta_1) - 1 = exp(0) - 1 + 0.5
    >>> psi.step(np.zeros(1), [-1.0], 0.5).round(4)
    array([0.4055])

  Attributes:
    num_evaluations: Number of evaluations of Psi and its gradient in steps.
  """

  def __init__(
    self,
    value: Callable[[np.ndarray], float],
    gradient: Callable[[np.ndarray], np.ndarray],
    *,
    num_coefficients: int,
    bregman_step: Optional[
      Callable[[np.ndarray, np.ndarray, float], np.ndarray]
    ] = None,
    tolerance: float = 1e-9,
    max_iterations: int = 1000,
    debug: bool = False,
  ):
    """Initializes the map.

    Args:
      value: Psi, a function of a vector.
      gradient: The gradient of Psi, a function of a vector.
      num_coefficients: p, the number of coefficients.
      bregman_step: A closed form of the step without constraints, if there is
        one: a function of theta_t, g and eta that returns theta_{t+1}. By
        default L-BFGS finds it.
      tolerance: Tolerance of the largest component of the gradient of the
        step's objective.
      max_iterations: Maximum number of L-BFGS iterations in a step. There is no
        warning when they are used up, so that a small number gives an inexact
        step of known cost.
      debug: Whether to check the gradient against finite differences at each
        step.

    Raises:
      ValueError: If a number is out of range.
    """
    validate.integers(1, num_coefficients=num_coefficients)
    validate.integers(1, max_iterations=max_iterations)
    validate.positive(tolerance=tolerance)
    self._value = value
    self._gradient = gradient
    self._bregman_step = bregman_step
    self._num_coefficients = num_coefficients
    self._tolerance = tolerance
    self._max_iterations = max_iterations
    self._debug = debug
    self.num_evaluations = 0

  def value(self, theta: npt.ArrayLike) -> float:
    """Returns Psi(theta)."""
    return float(self._value(np.asarray(theta, np.float64)))

  def gradient(self, theta: npt.ArrayLike) -> np.ndarray:
    """Returns the gradient of Psi at theta."""
    return np.asarray(self._gradient(np.asarray(theta, np.float64)))

  def minimizer(
    self, constraint: Optional[constraints.ConstraintSet] = None
  ) -> np.ndarray:
    start = np.zeros(self._num_coefficients)
    if self._debug:
      check_gradient(self.value, self.gradient, start)
    # argmin Psi is the step that cancels the gradient of Psi.
    target = np.zeros(self._num_coefficients)
    return self._solve(start, target, constraint, self._max_iterations * 10)

  def step(
    self,
    theta: npt.ArrayLike,
    noisy_gradient: npt.ArrayLike,
    learning_rate: npt.ArrayLike,
    constraint: Optional[constraints.ConstraintSet] = None,
    t: int = 0,
  ) -> np.ndarray:
    del t
    theta = np.asarray(theta, np.float64)
    noisy_gradient = np.asarray(noisy_gradient, np.float64)
    if theta.ndim == 2:
      rates = np.broadcast_to(learning_rate, theta.shape[1])
      columns = zip(theta.T, noisy_gradient.T, rates, strict=True)
      return np.stack([self.step(*c, constraint) for c in columns], axis=1)
    learning_rate = float(np.asarray(learning_rate))
    validate.positive(learning_rate=learning_rate)
    if self._debug:
      check_gradient(self.value, self.gradient, theta)
    if self._bregman_step is not None and constraint is None:
      return self._bregman_step(theta, noisy_gradient, learning_rate)
    target = self.gradient(theta) - learning_rate * noisy_gradient
    self.num_evaluations += 1
    return self._solve(theta, target, constraint, self._max_iterations)

  def _solve(
    self,
    start: np.ndarray,
    target: np.ndarray,
    constraint: Optional[constraints.ConstraintSet],
    max_iterations: int,
  ) -> np.ndarray:
    """Returns the theta of C that minimizes Psi(theta) - <target, theta>."""
    if constraint is None:
      return self._minimize(start, target, 0.0, max_iterations)
    _check_ball(constraint)
    theta = self._minimize(start, target, 0.0, max_iterations)
    radius = constraint.radius
    if np.linalg.norm(theta) <= radius:
      return theta

    def excess(multiplier: float) -> float:
      solution = self._minimize(theta, target, multiplier, max_iterations)
      return float(np.linalg.norm(solution)) - radius

    high = 1.0
    while not excess(high) <= 0:
      high *= 4.0
      if high > _MAX_MULTIPLIER:
        raise ValueError(
          'value must be strictly convex and gradient must be its gradient: no'
          f' step within the radius was found. Found {radius!r} for radius.'
        )
    multiplier = optimize.brentq(excess, 0.0, high, xtol=1e-14)
    theta = self._minimize(theta, target, multiplier, max_iterations)
    return constraints.project_onto_ball(theta, radius)

  def _minimize(
    self,
    start: np.ndarray,
    target: np.ndarray,
    multiplier: float,
    max_iterations: int,
  ) -> np.ndarray:
    """Minimizes Psi(theta) - <target, theta> + multiplier |theta|^2 / 2."""

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
      self.num_evaluations += 1
      value = self.value(theta) - target @ theta
      gradient = self.gradient(theta) - target
      if multiplier:
        value += multiplier * (theta @ theta) / 2
        gradient = gradient + multiplier * theta
      return value, gradient

    found = optimize.minimize(
      objective,
      start,
      jac=True,
      method='L-BFGS-B',
      options={
        'gtol': self._tolerance,
        'ftol': 0.0,
        'maxiter': max_iterations,
        'maxfun': 20 * max_iterations,
      },
    )
    return found.x


class FirstOrderMirrorMap:
  """The first-order step, equation (3) of the paper.

  theta_{t+1} = theta_t - eta (alpha_t (g_t + b_t) + (1 - alpha_t) grad Psi):
  one public gradient per step, where the exact step needs many.

  Example:

    >>> psi = SmoothMirrorMap(
    ...   lambda t: t @ t / 2, lambda t: t, num_coefficients=2
    ... )
    >>> first_order = FirstOrderMirrorMap(
    ...   psi, psi.minimizer(), schedules.constant(0.5)
    ... )
    >>> first_order.step(np.ones([2, 1]), np.zeros([2, 1]), 1.0).ravel()
    array([0.5, 0.5])

  Attributes:
    num_evaluations: Number of evaluations of the gradient of Psi in steps.
  """

  def __init__(
    self,
    mirror_map: SmoothMirrorMap,
    start: npt.ArrayLike,
    alpha: schedules.Schedule,
  ):
    """Initializes the map.

    Args:
      mirror_map: Psi, whose gradient is mixed in.
      start: The start of runs, such as `mirror_map.minimizer()`.
      alpha: The weight of the private gradient at step t.
    """
    self._mirror_map = mirror_map
    self._start = np.asarray(start, np.float64)
    self._alpha = alpha
    self.num_evaluations = 0

  def minimizer(
    self, constraint: Optional[constraints.ConstraintSet] = None
  ) -> np.ndarray:
    return _project_euclidean(self._start.copy(), constraint)

  def step(
    self,
    theta: npt.ArrayLike,
    noisy_gradient: npt.ArrayLike,
    learning_rate: npt.ArrayLike,
    constraint: Optional[constraints.ConstraintSet] = None,
    t: int = 0,
  ) -> np.ndarray:
    theta = np.asarray(theta, np.float64)
    columns = theta.reshape(theta.shape[0], -1).T
    public = np.stack([self._mirror_map.gradient(c) for c in columns], axis=1)
    self.num_evaluations += len(columns)
    alpha = self._alpha(t)
    mixed = alpha * np.asarray(noisy_gradient)
    mixed = mixed + (1 - alpha) * public.reshape(theta.shape)
    return _project_euclidean(
      theta - np.asarray(learning_rate) * mixed, constraint
    )


def check_gradient(
  value: Callable[[np.ndarray], float],
  gradient: Callable[[np.ndarray], np.ndarray],
  theta: npt.ArrayLike,
  *,
  tolerance: float = 1e-4,
) -> None:
  """Raises if `gradient` is not the gradient of `value` at theta.

  It compares with central differences along up to 20 coordinates and 5 random
  directions.

  Example:

    >>> check_gradient(lambda t: t @ t / 2, lambda t: t, np.ones(3))  # Correct.

  Args:
    value: Psi.
    gradient: The supposed gradient of Psi.
    theta: The point to check.
    tolerance: Largest difference, relative to the gradient's norm (or to 1 if
      the norm is less than 1).

  Raises:
    ValueError: If they differ.
  """
  theta = np.asarray(theta, np.float64)
  rng = np.random.default_rng(0)
  directions = rng.standard_normal((5, theta.size))
  directions /= np.linalg.norm(directions, axis=1, keepdims=True)
  chosen = rng.permutation(theta.size)[:20]
  directions = np.concatenate([np.eye(theta.size)[chosen], directions])
  claimed = np.asarray(gradient(theta))
  if claimed.shape != theta.shape:
    raise ValueError(
      f'gradient must return the shape {theta.shape}. Found {claimed.shape}.'
    )
  size = 1e-5 * max(1.0, float(np.abs(theta).max()))
  for direction in directions:
    rise = value(theta + size * direction) - value(theta - size * direction)
    found = rise / (2 * size)
    error = abs(found - claimed @ direction)
    if not error <= tolerance * max(1.0, float(np.linalg.norm(claimed))):
      raise ValueError(
        'gradient must be the gradient of value: along one direction, finite '
        f'differences give {found:.6g}. Found {claimed @ direction:.6g}.'
      )


def _check_ball(constraint: constraints.ConstraintSet) -> None:
  if constraint.public_gradient_norm is not None:
    raise ValueError(
      'public_gradient_norm must be None unless the mirror map is a public'
      ' quadratic: otherwise the set may not be convex. Found'
      f' {constraint.public_gradient_norm!r}.'
    )


def _project_euclidean(
  theta: np.ndarray, constraint: Optional[constraints.ConstraintSet]
) -> np.ndarray:
  if constraint is None:
    return theta
  _check_ball(constraint)
  return constraints.project_onto_ball(theta, constraint.radius)
