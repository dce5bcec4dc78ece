"""The excess-risk bounds of the linear-regression theorem, as functions.

Section "Case Study: Linear Regression" of "Public Data-Assisted Mirror Descent
for Private Model Training" (Amid et al., ICML 2022, arXiv:2112.00193). For
features of norm at most 1, whose second moments have the eigenvalues lambda_i,

  chi = max{1 / lambda_min, lambda_max n_pub}
        * sum_i min{1, log(1/delta) / (lambda_i^2 n_pub)},

and the excess population risk is at most, without constants and logarithms,

  PDA-DPMD: chi log(1/delta) / (epsilon n)^2 + 1 / (lambda_min n),
  DP-SGD:   p / lambda_min log(1/delta) / (epsilon n)^2 + 1 / (lambda_min n).

Constants in the theorem's O() are set to 1: values can be compared with each
other, but are not the error of a model.
"""

from collections.abc import Callable
import dataclasses
import math
from typing import Optional

import numpy as np
from numpy import typing as npt
from pda_fed.common import validate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
  """A bound on the excess population risk.

  Attributes:
    privacy: The cost of privacy.
    sampling: The cost of a finite number of private samples.
  """

  privacy: float
  sampling: float


def chi(eigenvalues: npt.ArrayLike, num_public: float, delta: float) -> float:
  """Returns chi of the theorem.

  Args:
    eigenvalues: lambda_i, in (0, 1].
    num_public: n_pub; need not be an integer.
    delta: The delta of (epsilon, delta).

  Raises:
    ValueError: If an argument is out of range.
  """
  eigenvalues = _check_eigenvalues(eigenvalues)
  validate.positive(num_public=num_public)
  validate.between(0, 1, delta=delta)
  convexity = max(1 / eigenvalues.min(), eigenvalues.max() * num_public)
  axes = math.log(1 / delta) / (eigenvalues**2 * num_public)
  return float(convexity * np.minimum(1.0, axes).sum())


def excess_risk(
  eigenvalues: npt.ArrayLike,
  *,
  num_private: float,
  epsilon: float,
  delta: float,
  num_public: Optional[float] = None,
) -> Bound:
  """Returns the theorem's bound for PDA-DPMD, or the one of DP-SGD.

  Args:
    eigenvalues: lambda_i, in (0, 1].
    num_private: n_priv.
    epsilon: Epsilon of the run.
    delta: Delta of the run.
    num_public: n_pub of PDA-DPMD, at most n_priv; None is DP-SGD, whose bound
      is for lambda_min-strongly convex losses.

  Raises:
    ValueError: If an argument is out of range.
  """
  eigenvalues = _check_eigenvalues(eigenvalues)
  validate.positive(num_private=num_private, epsilon=epsilon)
  validate.between(0, 1, delta=delta)
  if num_public is None:
    size = eigenvalues.size / eigenvalues.min()
  elif num_public > num_private:
    raise ValueError(
      f'num_public must be at most num_private, {num_private!r}. Found'
      f' {num_public!r}.'
    )
  else:
    size = chi(eigenvalues, num_public, delta)
  return Bound(
    privacy=float(size * math.log(1 / delta) / (epsilon * num_private) ** 2),
    sampling=float(1 / (eigenvalues.min() * num_private)),
  )


def isotropic(p: int) -> np.ndarray:
  """Returns the paper's first example: all eigenvalues are 1/p."""
  validate.integers(1, p=p)
  return np.full(p, 1 / p)


def one_flat_direction(p: int) -> np.ndarray:
  """Returns the paper's second example: one eigenvalue p^-1.5, the rest 1/p."""
  eigenvalues = isotropic(p)
  eigenvalues[0] = p**-1.5
  return eigenvalues


def growth_exponent(
  function: Callable[[int], float], low: int = 10_000, high: int = 1_000_000
) -> float:
  """Returns e if a function of p grows like p^e between two values of p.

  Example:

    >>> round(growth_exponent(lambda p: 3 * p**2), 6)
    2.0
  """
  return math.log(function(high) / function(low)) / math.log(high / low)


def _check_eigenvalues(eigenvalues: npt.ArrayLike) -> np.ndarray:
  eigenvalues = np.asarray(eigenvalues, np.float64)
  if eigenvalues.ndim != 1 or not eigenvalues.size:
    raise ValueError(
      f'eigenvalues must be a vector. Found shape {eigenvalues.shape}.'
    )
  low, high = float(eigenvalues.min()), float(eigenvalues.max())
  if not 0 < low <= high <= 1:
    raise ValueError(
      'eigenvalues must be in (0, 1], because features have norm at most 1.'
      f' Found values from {low!r} to {high!r}.'
    )
  return eigenvalues
