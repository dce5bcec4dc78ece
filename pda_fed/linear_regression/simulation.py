"""The simulation of the paper's figure 1, by trial.

"Simulation Results" in section "Case Study: Linear Regression" of "Public
Data-Assisted Mirror Descent for Private Model Training" (Amid et al., ICML
2022, arXiv:2112.00193): DP-SGD from a cold start, from a warm start, and
PDA-DPMD, each with a grid over the learning rate, the clip norm and the number
of epochs (full-batch steps), for problems of p coefficients.

The paper reports the best empirical loss of the grid, which looks at the
private data without noise: the figure compares methods at their best, it is not
what a private search would find.
"""

import dataclasses
import itertools
import math
import time
from typing import Literal

import numpy as np
from pda_fed import _validate
from pda_fed.linear_regression import algorithm_1
from pda_fed.linear_regression import baselines
from pda_fed.linear_regression import least_squares
from pda_fed.linear_regression import mirror_maps
from pda_fed.linear_regression import problem as problem_lib
from pda_fed.linear_regression import quadratic
from scipy import stats

Method = Literal['cold', 'warm', 'pda', 'public', 'statistics']
METHODS = ('cold', 'warm', 'pda', 'public', 'statistics')


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulationConfig:
  """What is simulated.

  Attributes:
    dimensions: p, each at least 200.
    num_trials: Problems for each p.
    num_private: n_priv.
    public_factor: n_pub / p.
    epsilon: Of each run.
    delta: Of each run.
    noise: 'algorithm_1' or 'tight', as for `baselines.noise_stddev`.
    learning_rates: Of DP-SGD, cold and warm.
    mirror_learning_rates: Of PDA-DPMD. Its H^{-1} has no eigenvalue above 1 and
      most of them far below, so its rates are larger.
    clip_norms: L.
    epochs: T, the numbers of full-batch steps.
    regularizations: The small constants that are added to the diagonal of X^T
      X, not divided by n_pub: eigenvalues of X^T X hardly depend on p.
    cold_stddev: Of the coordinates of the random start; 0 starts at 0.
    methods: A subset of `METHODS`. 'public' is ridge regression on the public
      data, 'statistics' are DP sufficient statistics with a ridge towards it.
    num_condition_numbers: Trials for which the condition number of the public
      Hessian is computed, too.
    seed: Of everything.
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
      if isinstance(value, tuple) and not value:
        raise ValueError(f'{field.name} must not be empty. Found ().')
    for p in self.dimensions:
      _validate.integers(200, dimensions=p)
    _validate.integers(2, num_trials=self.num_trials)
    _validate.integers(1, num_private=self.num_private)
    _validate.positive(public_factor=self.public_factor, epsilon=self.epsilon)
    _validate.between(0, 1, delta=self.delta)
    _validate.one_of(('algorithm_1', 'tight'), noise=self.noise)
    for name in (
      'learning_rates',
      'mirror_learning_rates',
      'clip_norms',
      'regularizations',
    ):
      for value in getattr(self, name):
        _validate.positive(**{name: value})
    for value in self.epochs:
      _validate.integers(1, epochs=value)
    _validate.non_negative(cold_stddev=self.cold_stddev)
    for value in self.methods:
      _validate.one_of(METHODS, methods=value)
    _validate.integers(
      0, num_condition_numbers=self.num_condition_numbers, seed=self.seed
    )

  def num_public(self, p: int) -> int:
    """n_pub for p coefficients."""
    return max(1, round(self.public_factor * p))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """What one setting of one method gave in one trial, or on average.

  Attributes:
    p: The number of coefficients.
    trial: From 0.
    method: One of `METHODS`.
    regularization: What was added to the diagonal of X^T X; NaN for 'cold'.
    learning_rate: eta; NaN where there are no steps, as for the next two.
    clip_norm: L.
    epochs: T; 0 where there are no steps.
    loss: The mean squared error on the private samples of the averaged iterate.
    population_loss: The same on samples that were never seen, exact.
    last_loss: The mean squared error on the private samples of the last
      iterate.
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
    """What the grid varies; NaN, which differs from itself, is -1."""
    values = self.regularization, self.learning_rate, self.clip_norm
    return (*(-1.0 if math.isnan(v) else v for v in values), self.epochs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
  """What one trial left.

  Attributes:
    p: The number of coefficients.
    trial: From 0.
    condition_number: Of the public Hessian, without its null space; NaN where
      it was not asked for.
    seconds: The trial took.
    outcomes: One for each method and setting.
  """

  p: int
  trial: int
  condition_number: float
  seconds: float
  outcomes: tuple[Outcome, ...]


def run_trial(config: SimulationConfig, p: int, trial: int) -> Trial:
  """Draws a problem and runs every method with every setting on it.

  Args:
    config: What is simulated.
    p: The number of coefficients.
    trial: From 0; with `config.seed` it decides on all random numbers.

  Returns:
    The `Trial`.

  Raises:
    ValueError: If `p` is less than 200, or `trial` negative.
  """
  started = time.monotonic()
  _validate.integers(0, trial=trial)
  seeds = np.random.SeedSequence(config.seed, spawn_key=(p, trial))
  problem_seed, cold_seed, noise_seed, statistics_seed = (
    int(word) for word in seeds.generate_state(4, np.uint64)
  )
  num_public = config.num_public(p)
  data = problem_lib.simulate(p, config.num_private, num_public, problem_seed)
  private = least_squares.LeastSquares(
    data.private_features, data.private_responses, dtype=np.float32
  )

  def run(groups):
    """Runs methods, given as (name, map, regularisation, rates), together."""
    settings = [_settings(config, rates) for *_, rates in groups]
    results = algorithm_1.mirror_descent_side_by_side(
      [(group[1], s) for group, s in zip(groups, settings, strict=True)],
      private.full_batch(),
      # The same noise for every method: they differ by what they do with it.
      np.random.default_rng(noise_seed),
    )
    found = []
    for group, grid, result in zip(groups, settings, results, strict=True):
      found += _outcomes(
        p,
        trial,
        group[0],
        group[2],
        grid,
        losses=private.mean_squared_error(result.average),
        population_losses=problem_lib.population_mse(
          result.average, data.theta_star
        ),
        last_losses=private.mean_squared_error(result.last),
      )
    return found

  def evaluate(method, regularization, theta):
    theta = theta[:, None]
    loss = private.mean_squared_error(theta)
    population = problem_lib.population_mse(theta, data.theta_star)
    return _outcomes(
      p, trial, method, regularization, [None], loss, population, loss
    )

  outcomes = []
  groups = []  # That wait for their gradients.
  if 'cold' in config.methods:
    start = np.random.default_rng(cold_seed).standard_normal(p)
    cold = mirror_maps.EuclideanMirrorMap(config.cold_stddev * start)
    groups.append(('cold', cold, math.nan, config.learning_rates))
  condition_number = math.nan
  maps = quadratic.quadratic_mirror_maps(
    data.public_features,
    data.public_responses,
    [r / num_public for r in config.regularizations],
  )
  if not set(config.methods) - {'cold'}:
    maps = []
  for regularization, psi in zip(config.regularizations, maps, strict=False):
    theta_0 = psi.minimizer()
    if trial < config.num_condition_numbers and math.isnan(condition_number):
      condition_number = psi.condition_number()
    if 'public' in config.methods:
      outcomes += evaluate('public', regularization, theta_0)
    if 'warm' in config.methods:
      warm = mirror_maps.EuclideanMirrorMap(theta_0)
      groups.append(('warm', warm, regularization, config.learning_rates))
    if 'pda' in config.methods:
      rates = config.mirror_learning_rates
      groups.append(('pda', psi, regularization, rates))
    if 'statistics' in config.methods:
      theta = baselines.dp_sufficient_statistics(
        data.private_features,
        data.private_responses,
        np.random.default_rng(statistics_seed),
        epsilon=config.epsilon,
        delta=config.delta,
        noise=config.noise,
        # Known of the simulation without its samples: |x|^2 is 0.3, and y is
        # N(0, 0.31) over problems.
        feature_norm=math.sqrt(0.3),
        response_bound=2.0,
        center=theta_0,
      )
      outcomes += evaluate('statistics', regularization, theta)
    # Now, since a factor takes 8 p^2 bytes: no two of them at a time.
    outcomes += run(groups) if groups else []
    groups = []
  outcomes += run(groups) if groups else []
  return Trial(
    p=p,
    trial=trial,
    condition_number=condition_number,
    seconds=time.monotonic() - started,
    outcomes=tuple(outcomes),
  )


def _settings(
  config: SimulationConfig, learning_rates: tuple[float, ...]
) -> list[algorithm_1.Setting]:
  """The grid of a method."""
  # The noise is proportional to the clip norm: the accountant is asked once.
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


def _outcomes(
  p,
  trial,
  method,
  regularization,
  settings,
  losses,
  population_losses,
  last_losses,
) -> list[Outcome]:
  """One outcome for each setting; None is a method without steps."""
  return [
    Outcome(
      p=p,
      trial=trial,
      method=method,
      regularization=regularization,
      learning_rate=math.nan if setting is None else setting.learning_rate,
      clip_norm=math.nan if setting is None else setting.clip_norm,
      epochs=0 if setting is None else setting.num_steps,
      loss=float(loss),
      population_loss=float(population_loss),
      last_loss=float(last_loss),
    )
    for setting, loss, population_loss, last_loss in zip(
      settings, losses, population_losses, last_losses, strict=True
    )
  ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
  """The best setting of a method for one p.

  Attributes:
    p: The number of coefficients.
    method: One of `METHODS`.
    num_trials: Trials the means are over.
    loss: The mean over trials of the mean squared error on the private samples.
    half_width: Half of the 95 % interval of that mean, by Student's t.
    population_loss: The mean over trials on samples that were never seen.
    last_loss: The mean for the last iterate of the same setting.
    best: The setting; its losses are those of the first trial.
    losses: Those of the trials, in their order.
  """

  p: int
  method: str
  num_trials: int
  loss: float
  half_width: float
  population_loss: float
  last_loss: float
  best: Outcome
  losses: tuple[float, ...]


def summarize(trials: list[Trial]) -> list[Summary]:
  """Picks, for each p and method, the setting with the least mean loss.

  Args:
    trials: Finished ones, in any order; all of a p with the same settings.

  Returns:
    A summary for each p and method, by p and in the order of `METHODS`.
  """
  groups = {}
  for trial in sorted(trials, key=lambda t: (t.p, t.trial)):
    for outcome in trial.outcomes:
      key = outcome.p, outcome.method
      settings = groups.setdefault(key, {})
      settings.setdefault(outcome.setting, []).append(outcome)
  return [
    _summarize_setting(
      min(settings.values(), key=lambda o: np.mean([x.loss for x in o]))
    )
    for _, settings in sorted(
      groups.items(), key=lambda item: (item[0][0], METHODS.index(item[0][1]))
    )
  ]


def _summarize_setting(outcomes: list[Outcome]) -> Summary:
  losses = [outcome.loss for outcome in outcomes]
  half_width = math.nan
  if len(losses) > 1:
    quantile = stats.t.ppf(0.975, len(losses) - 1)
    half_width = float(quantile * stats.sem(losses))
  return Summary(
    p=outcomes[0].p,
    method=outcomes[0].method,
    num_trials=len(losses),
    loss=float(np.mean(losses)),
    half_width=half_width,
    population_loss=float(np.mean([o.population_loss for o in outcomes])),
    last_loss=float(np.mean([o.last_loss for o in outcomes])),
    best=outcomes[0],
    losses=tuple(losses),
  )


def paired_difference(first: Summary, second: Summary) -> tuple[float, float]:
  """The mean of first - second over trials, and half of its 95 % interval.

  Methods of a trial share the problem and the noise, so that their difference
  is known far better than either loss.

  Raises:
    ValueError: If they have not the same number of trials.
  """
  if first.num_trials != second.num_trials:
    raise ValueError(
      f'second must have {first.num_trials} trials, as first. Found'
      f' {second.num_trials}.'
    )
  differences = np.subtract(first.losses, second.losses)
  if differences.size < 2:
    return float(differences.mean()), math.nan
  quantile = stats.t.ppf(0.975, differences.size - 1)
  return float(differences.mean()), float(quantile * stats.sem(differences))
