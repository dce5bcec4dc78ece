"""Algorithm 1: public data-assisted differentially private mirror descent.

"Public Data-Assisted Mirror Descent for Private Model Training" (Amid et al.,
ICML 2022, arXiv:2112.00193), Algorithm 1, as written:

  theta_0     = argmin Psi(theta),
  theta_{t+1} = argmin eta_t <g_t + b_t, theta> + B_Psi(theta, theta_t)

over C for t = 0, ..., T-1, where g_t is the clipped mean gradient and b_t ~
N(0, sigma^2 I); the result is the mean of theta_1, ..., theta_T. Public data
enters only through Psi and C; after b_t everything is post-processing.

With `EuclideanMirrorMap` this is DP-SGD that starts at the map's minimizer.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Optional, Union

import numpy as np
from pda_fed.common import validate
from pda_fed.linear_regression import constraints
from pda_fed.linear_regression import least_squares
from pda_fed.linear_regression import mirror_maps
from pda_fed.privacy import rounding

LearningRate = Union[float, Callable[[int], float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """The parameters of one run of Algorithm 1.

  Example: see `mirror_descent`.

  Attributes:
    learning_rate: eta, or a function of t.
    clip_norm: L, the clipping norm of a gradient.
    num_steps: T, the number of steps.
    noise_stddev: sigma, the standard deviation of the noise on each coordinate
      of the mean gradient; from `privacy.algorithm_1_noise_stddev`.
  """

  learning_rate: LearningRate
  clip_norm: float
  num_steps: int
  noise_stddev: float

  def __post_init__(self):
    if not callable(self.learning_rate):
      validate.positive(learning_rate=self.learning_rate)
    validate.positive(clip_norm=self.clip_norm)
    validate.integers(1, num_steps=self.num_steps)
    validate.non_negative(noise_stddev=self.noise_stddev)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Result:
  """The result of `mirror_descent`, with a column for each setting.

  Example: see `mirror_descent`.

  Attributes:
    average: The mean of theta_1, ..., theta_T, the result of Algorithm 1.
    last: The last iterate, theta_T.
  """

  average: np.ndarray
  last: np.ndarray


def mirror_descent(
  mirror_map: mirror_maps.MirrorMap,
  gradient_fn: least_squares.GradientFn,
  settings: Sequence[Setting],
  rng: np.random.Generator,
  *,
  constraint: Optional[constraints.ConstraintSet] = None,
) -> Result:
  """Runs Algorithm 1 for all settings side by side.

  The settings share the noise samples, each scaled by its own sigma. This makes
  comparisons less noisy. Each run alone has the privacy of its sigma, but its
  epsilon does not cover releasing more than one of them.

  Example:

    >>> from pda_fed import linear_regression
    >>> private = linear_regression.LeastSquares(np.eye(2), np.ones(2))
    >>> setting = Setting(
    ...   learning_rate=1.0, clip_norm=9.0, num_steps=20, noise_stddev=0.0
    ... )
    >>> found = mirror_descent(
    ...   linear_regression.EuclideanMirrorMap(np.zeros(2)),
    ...   private.full_batch(), [setting], np.random.default_rng(0),
    ... )
    >>> found.last.round(2).ravel()
    array([1., 1.])

  Args:
    mirror_map: Psi.
    gradient_fn: A function of thetas (p, columns), the step t and clipping
      norms (columns,). It returns the clipped mean gradients, without noise.
    settings: The settings, one for each run.
    rng: The random generator of the noise. A private run needs a fresh, secret
      one.
    constraint: C; by default there is none.

  Returns:
    The `Result`, with columns in the order of `settings`.

  Raises:
    ValueError: If there are no settings, or if a learning rate is not positive.
  """
  (result,) = mirror_descent_side_by_side(
    [(mirror_map, settings)], gradient_fn, rng, constraint=constraint
  )
  return result


def mirror_descent_side_by_side(
  groups: Sequence[tuple[mirror_maps.MirrorMap, Sequence[Setting]]],
  gradient_fn: least_squares.GradientFn,
  rng: np.random.Generator,
  *,
  constraint: Optional[constraints.ConstraintSet] = None,
) -> list[Result]:
  """Runs `mirror_descent` for several mirror maps in one loop.

  The gradients of all runs are computed together, with one pass over the
  samples instead of one for each map.

  Example: see `mirror_descent`.

  Args:
    groups: Mirror maps, and the settings to run with each.
    gradient_fn: See `mirror_descent`.
    rng: See `mirror_descent`. All runs share its samples.
    constraint: See `mirror_descent`.

  Returns:
    A `Result` for each mirror map.

  Raises:
    ValueError: See `mirror_descent`.
  """
  if not groups or not all(settings for _, settings in groups):
    raise ValueError('settings must not be empty. Found [].')
  runs = [run for _, settings in groups for run in settings]
  num_steps = np.array([run.num_steps for run in runs])
  clip_norms = np.array([run.clip_norm for run in runs])
  stddevs = np.array([run.noise_stddev for run in runs])
  owners = np.repeat(
    np.arange(len(groups)), [len(settings) for _, settings in groups]
  )
  starts = [psi.minimizer(constraint) for psi, _ in groups]
  thetas = np.stack([starts[owner] for owner in owners], axis=1)
  sums = np.zeros_like(thetas)
  for t in range(num_steps.max()):
    (active,) = np.nonzero(num_steps > t)
    current = np.ascontiguousarray(thetas[:, active])
    noisy = gradient_fn(current, t, clip_norms[active])
    noisy = noisy + rng.standard_normal((len(thetas), 1)) * stddevs[active]
    noisy = rounding.round_noised(noisy, stddevs[active])
    rates = np.array([_rate(runs[i].learning_rate, t) for i in active])
    for owner, (psi, _) in enumerate(groups):
      mine = owners[active] == owner
      if mine.any():
        current[:, mine] = psi.step(
          current[:, mine], noisy[:, mine], rates[mine], constraint
        )
    thetas[:, active] = current
    sums[:, active] += current
  averages = sums / num_steps
  return [
    Result(average=averages[:, owners == i], last=thetas[:, owners == i])
    for i in range(len(groups))
  ]


def _rate(learning_rate: LearningRate, t: int) -> float:
  if not callable(learning_rate):
    return learning_rate
  rate = learning_rate(t)
  validate.positive(**{f'learning_rate({t})': rate})
  return rate
