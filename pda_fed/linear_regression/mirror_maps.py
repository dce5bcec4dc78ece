"""Mirror maps Psi for Algorithm 1.

A mirror map of "Public Data-Assisted Mirror Descent for Private Model Training"
(Amid et al., ICML 2022, arXiv:2112.00193) is smooth and strictly convex.
Algorithm 1 needs its minimizer over C and the step

  argmin over C of eta <g, theta> + B_Psi(theta, theta_t).

`QuadraticMirrorMap` has a closed form of the step. With `EuclideanMirrorMap`,
Algorithm 1 is DP-SGD. For another Psi, write a class like `MirrorMap`.
"""

from typing import Optional, Protocol

import numpy as np
from numpy import typing as npt
from pda_fed.linear_regression import constraints


class MirrorMap(Protocol):
  """The interface of mirror maps for `mirror_descent`.

  Thetas and gradients are vectors of p numbers, or blocks of shape (p, columns)
  whose columns are runs side by side.

  Example:

    >>> from pda_fed import linear_regression
    >>> class Halved:  # Any class with these two methods works.
    ...   def minimizer(self, constraint=None):
    ...     return np.zeros(2)
    ...   def step(self, theta, gradient, rate, constraint=None):
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
  ) -> np.ndarray:
    """Returns argmin over C of eta <g + b, .> + B_Psi(., theta).

    Args:
      theta: theta_t.
      noisy_gradient: g_t + b_t.
      learning_rate: eta_t; for a block, optionally one for each column.
      constraint: C; by default there is none.
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
  ) -> np.ndarray:
    moved = np.asarray(theta) - learning_rate * np.asarray(noisy_gradient)
    return _project_euclidean(moved, constraint)


def _project_euclidean(
  theta: np.ndarray, constraint: Optional[constraints.ConstraintSet]
) -> np.ndarray:
  if constraint is None:
    return theta
  if constraint.public_gradient_norm is not None:
    raise ValueError(
      'public_gradient_norm must be None unless the mirror map is a public'
      ' quadratic: otherwise the set may not be convex. Found'
      f' {constraint.public_gradient_norm!r}.'
    )
  return constraints.project_onto_ball(theta, constraint.radius)
