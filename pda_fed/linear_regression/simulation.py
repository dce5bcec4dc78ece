"""The simulation of the paper's figure 1, one trial at a time.

"Simulation Results" in section "Case Study: Linear Regression" of "Public
Data-Assisted Mirror Descent for Private Model Training" (Amid et al., ICML
2022, arXiv:2112.00193): DP-SGD from a cold start, from a warm start, and
PDA-DPMD, each with a grid over the learning rate, the clip norm and the number
of epochs (full-batch steps), for problems of p coefficients.

The paper reports the best empirical loss of the grid, which is selected on
private data without noise. So the figure compares methods at their best; a
private search would not find these losses.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import itertools
import math
import time
from typing import Any

import numpy as np
from pda_fed import privacy
from pda_fed.common import settings
from pda_fed.common import validate
from pda_fed.linear_regression import algorithm_1
from pda_fed.linear_regression import least_squares
from pda_fed.linear_regression import mirror_maps
from pda_fed.linear_regression import problem as problem_lib
from pda_fed.linear_regression import quadratic

METHODS = ('cold', 'warm', 'pda', 'public')


def _each(check: Callable[..., None], *arguments: Any) -> Callable[..., None]:
  """Returns a check of every value of a list."""

  def check_all(**named: Sequence[Any]) -> None:
    ((name, values),) = named.items()
    if not values:
      raise ValueError(f'{name} must not be empty. Found ().')
    # A repeated setting or trial would be counted twice.
    if len(set(values)) < len(values):
      raise ValueError(f'{name} must not repeat a value. Found {values!r}.')
    for value in values:
      check(*arguments, **{name: value})

  return check_all


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulationConfig(settings.Group):
  """Settings of the simulation.

  Example:

    >>> config = SimulationConfig(dimensions=(300,), num_trials=3)
    >>> config.num_public(300)
    450
  """

  dimensions: tuple[int, ...] = settings.setting(
    (500, 1000, 2000, 3000, 4000, 5000, 6000),
    'Values of p, the number of coefficients, each at least 200.',
    check=_each(validate.integers, 200),
  )
  num_trials: int = settings.setting(
    20,
    'Number of trials, or problems, for each p.',
    check=functools.partial(validate.integers, 2),
  )
  num_private: int = settings.setting(
    10_000,
    'n_priv, the number of private samples.',
    check=functools.partial(validate.integers, 1),
  )
  public_factor: float = settings.setting(
    1.5,
    'n_pub / p: the number of public samples divided by p.',
    check=validate.positive,
  )
  epsilon: float = settings.setting(
    1.0, 'The epsilon of each run.', check=validate.positive
  )
  delta: float = settings.setting(
    1e-5,
    'The delta of each run.',
    check=functools.partial(validate.between, 0, 1),
  )
  noise: str = settings.setting(
    'algorithm_1',
    'algorithm_1: the formula of Algorithm 1. tight: the least noise that PLD'
    ' accounting allows.',
    choices=('algorithm_1', 'tight'),
  )
  learning_rates: tuple[float, ...] = settings.setting(
    (10.0, 30.0, 100.0, 300.0),
    'Learning rates of DP-SGD, with cold and warm start.',
    check=_each(validate.positive),
  )
  mirror_learning_rates: tuple[float, ...] = settings.setting(
    (300.0, 1000.0, 3000.0, 10_000.0),
    'Learning rates of PDA-DPMD. They are larger, because no eigenvalue of'
    ' H^{-1} is above 1 and most are far below.',
    check=_each(validate.positive),
  )
  clip_norms: tuple[float, ...] = settings.setting(
    (0.03, 0.1),
    "Values of L, the bound on a gradient's norm.",
    check=_each(validate.positive),
  )
  epochs: tuple[int, ...] = settings.setting(
    (30, 300),
    'Values of T, the number of full-batch steps.',
    check=_each(validate.integers, 1),
  )
  regularizations: tuple[float, ...] = settings.setting(
    (0.01,),
    'Values to add to the diagonal of X^T X of the public data. They are not'
    ' divided by n_pub, as its eigenvalues hardly depend on p.',
    check=_each(validate.positive),
  )
  cold_stddev: float = settings.setting(
    0.1,
    'Standard deviation of the random initial point. 0 starts at the origin.',
    check=validate.non_negative,
  )
  methods: tuple[str, ...] = settings.setting(
    METHODS,
    "The methods to run. 'public' is ridge regression on the public data.",
    check=_each(validate.one_of, METHODS),
  )
  num_condition_numbers: int = settings.setting(
    3,
    'Number of trials for which the condition number of the public Hessian is'
    ' computed.',
    check=functools.partial(validate.integers, 0),
  )
  seed: int = settings.setting(
    0,
    'Seed of all random choices.',
    check=functools.partial(validate.integers, 0),
  )

  def __post_init__(self):
    super().__post_init__()
    if self.noise == 'algorithm_1':
      self.unit_noise(1)  # Raises if the formula does not hold for epsilon.

  def num_public(self, p: int) -> int:
    """Returns n_pub for p coefficients."""
    return max(1, round(self.public_factor * p))

  def unit_noise(self, rounds: int) -> float:
    """Returns the noise on the mean of gradients of norm at most 1."""
    return privacy.algorithm_1_noise_stddev(
      lipschitz=1.0,
      rounds=rounds,
      epsilon=self.epsilon,
      delta=self.delta,
      population=self.num_private,
      tight=self.noise == 'tight',
    )


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The result of one setting of one method in one trial, or on average.

  Example: see `run_trial`.

  Attributes:
    method: One of `METHODS`.
    regularization: The value added to the diagonal of X^T X; NaN for 'cold'.
    learning_rate: eta; NaN for a method without steps.
    clip_norm: L; NaN for a method without steps.
    epochs: T; 0 for a method without steps.
    loss: Mean squared error of the averaged iterate on the private samples.
    population_loss: Expected mean squared error of the averaged iterate on new
      samples, exact.
    last_loss: Mean squared error of the last iterate on the private samples.
  """

  method: str
  regularization: float
  learning_rate: float
  clip_norm: float
  epochs: int
  loss: float
  population_loss: float
  last_loss: float

  @property
  def setting(self) -> tuple[float, ...]:
    """The values that the grid varies, with -1 for NaN."""
    values = self.regularization, self.learning_rate, self.clip_norm
    return (*(-1.0 if math.isnan(v) else v for v in values), self.epochs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
  """The results of one trial.

  Example: see `run_trial`.

  Attributes:
    p: The number of coefficients.
    trial: Index of the trial, from 0.
    condition_number: Condition number of the public Hessian, without its null
      space; NaN if not computed.
    seconds: Duration of the trial.
    outcomes: One outcome for each method and setting.
  """

  p: int
  trial: int
  condition_number: float
  seconds: float
  outcomes: tuple[Outcome, ...]


def run_trial(config: SimulationConfig, p: int, trial: int) -> Trial:
  """Draws a problem and runs every method with every setting on it.

  Example:

    >>> config = SimulationConfig(
    ...   dimensions=(200,), num_trials=2, num_private=100, epochs=(2,),
    ...   learning_rates=(10.0,), mirror_learning_rates=(300.0,),
    ...   num_condition_numbers=0,
    ... )
    >>> trial = run_trial(config, p=200, trial=0)
    >>> sorted({outcome.method for outcome in trial.outcomes})
    ['cold', 'pda', 'public', 'warm']

  Args:
    config: The settings.
    p: The number of coefficients.
    trial: Index of the trial, from 0. With `config.seed`, it determines all
      random numbers.

  Returns:
    The `Trial`.

  Raises:
    ValueError: If `p` is less than 200, or `trial` is negative.
  """
  started = time.monotonic()
  validate.integers(0, trial=trial)
  runner = _Runner(config, p, trial)
  # Methods of one regularisation run side by side, the cold start with the
  # first.
  groups = [runner.cold()] if 'cold' in config.methods else []
  condition_number = math.nan
  outcomes: list[Outcome] = []
  needs_public = set(config.methods) - {'cold'}
  for regularization in config.regularizations if needs_public else ():
    psi = runner.public_map(regularization)
    if trial < config.num_condition_numbers and math.isnan(condition_number):
      condition_number = psi.condition_number()
    theta_0 = psi.minimizer()
    if 'public' in config.methods:
      column = theta_0[:, None]
      alone = algorithm_1.Result(average=column, last=column)
      outcomes += runner.outcomes('public', regularization, [_NO_STEPS], alone)
    for method, mirror_map, rates in (
      ('warm', mirror_maps.EuclideanMirrorMap(theta_0), config.learning_rates),
      ('pda', psi, config.mirror_learning_rates),
    ):
      if method in config.methods:
        groups.append((method, mirror_map, regularization, rates))
    # Run now: a factor takes 8 p^2 bytes, so keep only one at a time.
    outcomes += runner.run(groups)
    groups = []
  outcomes += runner.run(groups)
  return Trial(
    p=p,
    trial=trial,
    condition_number=condition_number,
    seconds=time.monotonic() - started,
    outcomes=tuple(outcomes),
  )


# A method's name, its mirror map, regularisation and learning rates.
_Group = tuple[str, mirror_maps.MirrorMap, float, tuple[float, ...]]
# Learning rate, clip norm and steps.
_GridPoint = tuple[float, float, int]
_NO_STEPS = math.nan, math.nan, 0


class _Runner:
  """The problem of a trial, and the runs on it."""

  def __init__(self, config: SimulationConfig, p: int, trial: int):
    self._config, self._p = config, p
    seeds = np.random.SeedSequence(config.seed, spawn_key=(p, trial))
    problem_seed, *self._seeds = seeds.generate_state(3, np.uint64).tolist()
    self._data = problem_lib.simulate(
      p, config.num_private, config.num_public(p), problem_seed
    )
    self._private = least_squares.LeastSquares(
      self._data.private_features,
      self._data.private_responses,
      dtype=np.float32,
    )

  def cold(self) -> _Group:
    """Returns DP-SGD from a random start."""
    rng = np.random.default_rng(self._seeds[0])
    start = self._config.cold_stddev * rng.standard_normal(self._p)
    mirror_map = mirror_maps.EuclideanMirrorMap(start)
    return 'cold', mirror_map, math.nan, self._config.learning_rates

  def public_map(self, regularization: float) -> quadratic.QuadraticMirrorMap:
    """Returns the public mirror map of a regularisation."""
    return quadratic.QuadraticMirrorMap(
      self._data.public_features,
      self._data.public_responses,
      regularization=regularization / self._config.num_public(self._p),
    )

  def run(self, groups: list[_Group]) -> list[Outcome]:
    """Runs the grids of methods side by side."""
    if not groups:
      return []
    config = self._config
    # The noise is proportional to the clipping norm: call the accountant once.
    unit_noise = {rounds: config.unit_noise(rounds) for rounds in config.epochs}
    grids = [
      list(itertools.product(rates, config.clip_norms, config.epochs))
      for *_, rates in groups
    ]
    results = algorithm_1.side_by_side(
      [
        (
          mirror_map,
          [
            algorithm_1.Setting(
              learning_rate=rate,
              clip_norm=clip_norm,
              num_steps=rounds,
              noise_stddev=clip_norm * unit_noise[rounds],
            )
            for rate, clip_norm, rounds in grid
          ],
        )
        for (_, mirror_map, *_), grid in zip(groups, grids, strict=True)
      ],
      self._private.full_batch(),
      # All methods have the same noise, so that they can be compared.
      np.random.default_rng(self._seeds[1]),
    )
    return [
      outcome
      for group, grid, result in zip(groups, grids, results, strict=True)
      for outcome in self.outcomes(group[0], group[2], grid, result)
    ]

  def outcomes(
    self,
    method: str,
    regularization: float,
    grid: list[_GridPoint],
    result: algorithm_1.Result,
  ) -> list[Outcome]:
    """Returns an outcome for each point of a grid."""
    losses = (
      self._private.mean_squared_error(result.average),
      problem_lib.population_mse(result.average, self._data.theta_star),
      self._private.mean_squared_error(result.last),
    )
    return [
      Outcome(method, regularization, *point, *found)
      for point, found in zip(grid, np.transpose(losses).tolist(), strict=True)
    ]
