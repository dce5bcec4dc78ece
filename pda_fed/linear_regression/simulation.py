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

from collections.abc import Iterator
import dataclasses
import itertools
import math
import time
from typing import Literal, Optional

import numpy as np
from pda_fed.common import validate
from pda_fed.linear_regression import algorithm_1
from pda_fed.linear_regression import baselines
from pda_fed.linear_regression import least_squares
from pda_fed.linear_regression import mirror_maps
from pda_fed.linear_regression import problem as problem_lib
from pda_fed.linear_regression import quadratic

Method = Literal['cold', 'warm', 'pda', 'public', 'statistics']
METHODS = ('cold', 'warm', 'pda', 'public', 'statistics')


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulationConfig:
  """Settings of the simulation.

  Example:

    >>> config = SimulationConfig(dimensions=(300,), num_trials=3)
    >>> config.num_public(300)
    450

  Attributes:
    dimensions: Values of p, each at least 200.
    num_trials: Number of problems for each p.
    num_private: n_priv, the number of private samples.
    public_factor: n_pub / p.
    epsilon: Epsilon of each run.
    delta: Delta of each run.
    noise: 'algorithm_1' or 'tight'; see `baselines.noise_stddev`.
    learning_rates: Learning rates of DP-SGD, cold and warm.
    mirror_learning_rates: Learning rates of PDA-DPMD. They are larger, because
      no eigenvalue of H^{-1} is above 1 and most are far below.
    clip_norms: L, the clipping norms to try.
    epochs: T, the numbers of full-batch steps to try.
    regularizations: Small constants to add to the diagonal of X^T X. They are
      not divided by n_pub, as eigenvalues of X^T X hardly depend on p.
    cold_stddev: Standard deviation of the random start's coordinates; 0 starts
      at 0.
    methods: A subset of `METHODS`. 'public' is ridge regression on the public
      data; 'statistics' is DP sufficient statistics with a ridge towards it.
    num_condition_numbers: Number of trials for which the condition number of
      the public Hessian is computed.
    seed: Seed of all random numbers.
  """

  dimensions: tuple[int, ...] = (500, 1000, 2000, 3000, 4000, 5000, 6000)
  num_trials: int = 20
  num_private: int = 10_000
  public_factor: float = 1.5
  epsilon: float = 1.0
  delta: float = 1e-5
  noise: baselines.Noise = 'algorithm_1'
  learning_rates: tuple[float, ...] = (10.0, 30.0, 100.0, 300.0)
  mirror_learning_rates: tuple[float, ...] = (300.0, 1000.0, 3000.0, 10_000.0)
  clip_norms: tuple[float, ...] = (0.03, 0.1)
  epochs: tuple[int, ...] = (30, 300)
  regularizations: tuple[float, ...] = (0.01,)
  cold_stddev: float = 0.1
  methods: tuple[Method, ...] = ('cold', 'warm', 'pda', 'public')
  num_condition_numbers: int = 3
  seed: int = 0

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if isinstance(field.default, tuple):
        validate.instances(tuple, **{field.name: value})
      if isinstance(value, tuple) and not value:
        raise ValueError(f'{field.name} must not be empty. Found ().')
      # A repeated setting or trial would be counted twice.
      if isinstance(value, tuple) and len(set(value)) < len(value):
        raise ValueError(
          f'{field.name} must not repeat a value. Found {value!r}.'
        )
    for p in self.dimensions:
      validate.integers(200, dimensions=p)
    validate.integers(2, num_trials=self.num_trials)
    validate.integers(1, num_private=self.num_private)
    validate.positive(public_factor=self.public_factor)
    baselines.check_target(self.noise, self.epsilon, self.delta)
    for name in (
      'learning_rates',
      'mirror_learning_rates',
      'clip_norms',
      'regularizations',
    ):
      for value in getattr(self, name):
        validate.positive(**{name: value})
    for value in self.epochs:
      validate.integers(1, epochs=value)
    validate.non_negative(cold_stddev=self.cold_stddev)
    for value in self.methods:
      validate.one_of(METHODS, methods=value)
    validate.integers(
      0, num_condition_numbers=self.num_condition_numbers, seed=self.seed
    )

  def num_public(self, p: int) -> int:
    """Returns n_pub for p coefficients."""
    return max(1, round(self.public_factor * p))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """The result of one setting of one method in one trial, or on average.

  Example: see `run_trial`.

  Attributes:
    p: The number of coefficients.
    trial: Index of the trial, from 0.
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

  p: int
  trial: int
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
  outcomes = []
  for regularization, psi in runner.public_maps():
    if trial < config.num_condition_numbers and math.isnan(condition_number):
      condition_number = psi.condition_number()
    outcomes += runner.run_without_steps(regularization, psi)
    theta_0 = psi.minimizer()
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


class _Runner:
  """The problem of a trial, and the runs on it."""

  def __init__(self, config: SimulationConfig, p: int, trial: int):
    self._config, self._p, self._trial = config, p, trial
    seeds = np.random.SeedSequence(config.seed, spawn_key=(p, trial))
    problem_seed, *self._seeds = seeds.generate_state(4, np.uint64).tolist()
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

  def public_maps(
    self,
  ) -> Iterator[tuple[float, quadratic.QuadraticMirrorMap]]:
    """Yields the public mirror map of each regularisation, if needed."""
    if not set(self._config.methods) - {'cold'}:
      return
    num_public = self._config.num_public(self._p)
    maps = quadratic.quadratic_mirror_maps(
      self._data.public_features,
      self._data.public_responses,
      [r / num_public for r in self._config.regularizations],
    )
    yield from zip(self._config.regularizations, maps, strict=True)

  def run(self, groups: list[_Group]) -> list[Outcome]:
    """Runs the grids of methods side by side."""
    if not groups:
      return []
    grids = [_settings(self._config, rates) for *_, rates in groups]
    results = algorithm_1.mirror_descent_side_by_side(
      [(group[1], grid) for group, grid in zip(groups, grids, strict=True)],
      self._private.full_batch(),
      # All methods have the same noise, so that they can be compared.
      np.random.default_rng(self._seeds[1]),
    )
    outcomes = []
    for group, grid, result in zip(groups, grids, results, strict=True):
      method, _, regularization, _ = group
      outcomes += self._outcomes(
        method, regularization, grid, result.average, result.last
      )
    return outcomes

  def run_without_steps(
    self, regularization: float, psi: quadratic.QuadraticMirrorMap
  ) -> list[Outcome]:
    """Runs the baselines that take no steps."""
    config = self._config
    thetas = {}
    if 'public' in config.methods:
      thetas['public'] = psi.minimizer()
    if 'statistics' in config.methods:
      thetas['statistics'] = baselines.dp_sufficient_statistics(
        self._data.private_features,
        self._data.private_responses,
        np.random.default_rng(self._seeds[2]),
        epsilon=config.epsilon,
        delta=config.delta,
        noise=config.noise,
        # Known without looking at the samples: |x|^2 is 0.3, and y is
        # N(0, 0.31) over problems.
        feature_norm=math.sqrt(0.3),
        response_bound=2.0,
        center=psi.minimizer(),
      )
    outcomes = []
    for method, theta in thetas.items():
      theta = theta[:, None]
      outcomes += self._outcomes(method, regularization, [None], theta, theta)
    return outcomes

  def _outcomes(
    self,
    method: str,
    regularization: float,
    grid: list[Optional[algorithm_1.Setting]],
    averages: np.ndarray,
    lasts: np.ndarray,
  ) -> list[Outcome]:
    """Returns an outcome for each setting; None is a method without steps."""
    losses = self._private.mean_squared_error(averages).tolist()
    last_losses = self._private.mean_squared_error(lasts).tolist()
    population_losses = problem_lib.population_mse(
      averages, self._data.theta_star
    ).tolist()
    return [
      Outcome(
        p=self._p,
        trial=self._trial,
        method=method,
        regularization=regularization,
        learning_rate=math.nan if setting is None else setting.learning_rate,  # type: ignore[arg-type]
        clip_norm=math.nan if setting is None else setting.clip_norm,
        epochs=0 if setting is None else setting.num_steps,
        loss=losses[i],
        population_loss=population_losses[i],
        last_loss=last_losses[i],
      )
      for i, setting in enumerate(grid)
    ]


def _settings(
  config: SimulationConfig, learning_rates: tuple[float, ...]
) -> list[algorithm_1.Setting]:
  """Returns the grid of a method."""
  # The noise is proportional to the clipping norm, so call the accountant once.
  unit_noise = {
    rounds: baselines.noise_stddev(
      config.noise,
      clip_norm=1.0,
      rounds=rounds,
      epsilon=config.epsilon,
      delta=config.delta,
      population=config.num_private,
    )
    for rounds in config.epochs
  }
  return [
    algorithm_1.Setting(
      learning_rate=rate,
      clip_norm=clip_norm,
      num_steps=rounds,
      noise_stddev=clip_norm * unit_noise[rounds],
    )
    for rate, clip_norm, rounds in itertools.product(
      learning_rates, config.clip_norms, config.epochs
    )
  ]
