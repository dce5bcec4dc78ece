"""Schedules of alpha_t, the weight of the private gradient, from 1 to 0.

"Public Data-Assisted Mirror Descent for Private Model Training" (Amid et al.,
ICML 2022, arXiv:2112.00193) mixes the noised private gradient with the gradient
of the public loss in its first-order mirror step (equation (3)):

    alpha_t * (g_t + b_t) + (1 - alpha_t) * grad Psi(theta_t),
    alpha_t = cos(pi t / (2 K)).

t counts from 0: rounds in federated training, epochs in sample-level training.
Any function from t to a weight is a schedule:

    >>> values(cosine(K=4), 6).round(3)
    array([1.   , 0.924, 0.707, 0.383, 0.   , 0.   ])
    >>> values(lambda t: 1 / (1 + t), 3).round(3)
    array([1.   , 0.5  , 0.333])

Engines call a schedule outside of compiled code, so that all have its values.
"""

from collections.abc import Sequence
import dataclasses
from typing import Protocol, runtime_checkable

import numpy as np
from pda_fed.common import validate


@runtime_checkable
class Schedule(Protocol):
  """A function from t to a weight alpha_t in [0, 1].

  A frozen dataclass with `__call__` has settings that a run can record.

  Example:

    >>> alpha = cosine(K=100)
    >>> alpha(0), round(alpha(50), 3), alpha(200)
    (1.0, 0.707, 0.0)
  """

  def __call__(self, t: float) -> float:
    """Returns alpha_t.

    Args:
      t: The round or epoch, from 0.
    """


def values(schedule: Schedule, T: int) -> np.ndarray:
  """Returns alpha_0 ... alpha_{T-1} as float64.

  Example:

    >>> values(constant(0.5), 3)
    array([0.5, 0.5, 0.5])

  Args:
    schedule: Any function of t.
    T: The number of values.

  Raises:
    ValueError: If `T` is negative.
  """
  validate.integers(0, T=T)
  return np.array([schedule(t) for t in range(T)], np.float64)


@dataclasses.dataclass(frozen=True)
class _Cosine:
  K: float

  def __post_init__(self):
    validate.positive(K=self.K)

  def __call__(self, t: float) -> float:
    validate.non_negative(t=t)
    # The clipped cosine would rise again after 3K; alpha stays at 0 from K on.
    return float(np.cos(np.pi / 2 * (t / self.K))) if t < self.K else 0.0


@dataclasses.dataclass(frozen=True)
class _Linear:
  K: float

  def __post_init__(self):
    validate.positive(K=self.K)

  def __call__(self, t: float) -> float:
    validate.non_negative(t=t)
    return max(0.0, 1.0 - t / self.K)


@dataclasses.dataclass(frozen=True)
class _Constant:
  alpha: float

  def __post_init__(self):
    validate.in_range(0.0, 1.0, alpha=self.alpha)

  def __call__(self, t: float) -> float:
    validate.non_negative(t=t)
    return self.alpha


@dataclasses.dataclass(frozen=True)
class _Listed:
  numbers: tuple[float, ...]

  def __post_init__(self):
    for number in self.numbers:
      validate.in_range(0.0, 1.0, alpha=number)

  def __call__(self, t: float) -> float:
    validate.non_negative(t=t)
    return self.numbers[min(int(t), len(self.numbers) - 1)]


def listed(alphas: Sequence[float]) -> Schedule:
  """Returns a schedule of given values; the last value repeats forever.

  Example:

    >>> values(listed([1.0, 0.5]), 4)
    array([1. , 0.5, 0.5, 0.5])

  Args:
    alphas: alpha_0, alpha_1, ...

  Raises:
    ValueError: If `alphas` is empty, or a value is outside [0, 1].
  """
  numbers = np.asarray(alphas, np.float64)
  if numbers.ndim != 1 or not numbers.size:
    raise ValueError(
      'alpha must be a list of numbers, or a schedule such as'
      f' schedules.constant(0.5). Found {alphas!r}.'
    )
  return _Listed(tuple(numbers.tolist()))


def cosine(K: float) -> Schedule:
  """Returns alpha_t = cos(pi t / (2K)), and 0 from t = K on.

  Example:

    >>> values(cosine(K=2), 4).round(3)
    array([1.   , 0.707, 0.   , 0.   ])

  Args:
    K: The t at which alpha reaches 0.

  Raises:
    ValueError: If `K` is not positive and finite.
  """
  return _Cosine(K)


def for_stackoverflow(i: float, T: int) -> Schedule:
  """Returns the paper's StackOverflow schedule, cos(pi t / (i T)).

  Example:

    >>> for_stackoverflow(i=5, T=1600) == cosine(K=4000)
    True

  Args:
    i: Scales the decay. The paper tries 2, 3, 4, 5 and 8; 5 is best.
    T: The number of rounds of the run; 1,600 in the paper.

  Raises:
    ValueError: If `i` is not positive and finite, or `T` is less than 1.
  """
  validate.positive(i=i)
  validate.integers(1, T=T)
  return _Cosine(i * T / 2)


def linear(K: float) -> Schedule:
  """Returns alpha_t = 1 - t/K, and 0 from t = K on.

  Example:

    >>> values(linear(K=4), 6)
    array([1.  , 0.75, 0.5 , 0.25, 0.  , 0.  ])

  Args:
    K: The t at which alpha reaches 0.

  Raises:
    ValueError: If `K` is not positive and finite.
  """
  return _Linear(K)


def constant(alpha: float) -> Schedule:
  """Returns alpha_t = alpha: 1 is DP-FedAvg, 0 trains on public data only.

  Example:

    >>> constant(0.5)(7)
    0.5

  Args:
    alpha: The weight of the private gradient, in [0, 1].

  Raises:
    ValueError: If `alpha` is outside [0, 1].
  """
  return _Constant(alpha)
