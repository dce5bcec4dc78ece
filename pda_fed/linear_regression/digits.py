"""Compares exact and first-order mirror steps on handwritten digits.

This goes beyond the paper (arXiv:2112.00193), which uses the exact step for
linear regression and the first-order step, equation (3), for everything else.
Logistic regression on scikit-learn's 1,797 digits is small enough for both. The
exact step is solved by inner iterations, each of which costs a public gradient.
Methods are compared at *equal cost*, the same number of per-sample gradients:
the first-order method and DP-SGD take more steps, with more noise accordingly.

The exact step's Psi has a larger ridge than the warm start: 100 public samples
leave most of the 650 directions flat, and along these only the ridge limits the
noise. Learning rates are multiplied by that ridge, so that the largest
eigenvalue of H^{-1} is 1, as in the paper.
"""

import dataclasses
import itertools
import math

import numpy as np
from pda_fed import errors
from pda_fed import schedules
from pda_fed.common import validate
from pda_fed.linear_regression import algorithm_1
from pda_fed.linear_regression import baselines
from pda_fed.linear_regression import logistic
from pda_fed.linear_regression import mirror_maps
from scipy import stats

_NUM_CLASSES = 10
_NUM_DIGITS = 1797


class MissingDataError(errors.PdaFedError):
  """scikit-learn, which ships the digits, is not installed.

  Example:

    >>> issubclass(MissingDataError, errors.PdaFedError)
    True
  """


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitsConfig:
  """Settings of the comparison.

  Example:

    >>> DigitsConfig(num_trials=1).num_trials
    1

  Attributes:
    num_trials: Number of random splits of the digits.
    num_public: Number of public digits in each split.
    num_test: Number of held-out digits in each split; the rest are private.
    epsilon: Epsilon of each run.
    delta: Delta of each run.
    noise: 'algorithm_1' or 'tight'; see `baselines.noise_stddev`.
    exact_steps: T of the exact method; its cost is the budget of all methods.
    learning_rates: Learning rates to try, for all methods.
    clip_norms: L, the clipping norms to try.
    start_ridge: Ridge of the public loss whose minimizer is the warm start.
    mirror_ridges: Ridges to try for Psi of the exact steps.
    schedule_factors: K / T of the first-order step's cosine schedules.
    inner_tolerance: Tolerance of the exact steps' inner iterations.
    seed: Seed of all random numbers.
  """

  num_trials: int = 10
  num_public: int = 100
  num_test: int = 400
  epsilon: float = 1.0
  delta: float = 1e-4
  noise: baselines.Noise = 'algorithm_1'
  exact_steps: tuple[int, ...] = (10, 30)
  learning_rates: tuple[float, ...] = (30.0, 100.0, 300.0)
  clip_norms: tuple[float, ...] = (0.1, 0.3)
  start_ridge: float = 1e-5
  mirror_ridges: tuple[float, ...] = (1e-3, 1e-2)
  schedule_factors: tuple[float, ...] = (1.0, 2.0)
  inner_tolerance: float = 1e-6
  seed: int = 0

  def __post_init__(self):
    validate.integers(
      1,
      num_trials=self.num_trials,
      num_public=self.num_public,
      num_test=self.num_test,
    )
    if self.num_public + self.num_test >= _NUM_DIGITS:
      raise ValueError(
        f'num_public + num_test must be less than {_NUM_DIGITS}. Found'
        f' {self.num_public} + {self.num_test}.'
      )
    validate.positive(
      start_ridge=self.start_ridge, inner_tolerance=self.inner_tolerance
    )
    baselines.check_target(self.noise, self.epsilon, self.delta)
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if isinstance(value, tuple) and not 0 < len(set(value)) == len(value):
        raise ValueError(
          f'{field.name} must be non-empty and have no duplicates. Found'
          f' {value!r}.'
        )
    validate.integers(0, seed=self.seed)
    for steps in self.exact_steps:
      validate.integers(1, exact_steps=steps)
    for name in (
      'learning_rates',
      'clip_norms',
      'mirror_ridges',
      'schedule_factors',
    ):
      for value in getattr(self, name):
        validate.positive(**{name: value})


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitsOutcome:
  """The result of one setting of one method in one trial.

  Example: see `run_digits_trial`.

  Attributes:
    trial: Index of the trial, from 0.
    method: 'public', 'warm', 'first-order' or 'exact'.
    budget: T of the exact method whose cost is the budget of this run.
    steps: T of this run.
    cost: Number of per-sample gradients of this run.
    learning_rate: eta, before it is multiplied by a ridge.
    clip_norm: L.
    variant: K / T of 'first-order', the ridge of 'exact'; otherwise 0.
    private_loss: Cross-entropy of the averaged iterate on the private digits.
    test_loss: Cross-entropy on held-out digits.
    test_accuracy: Accuracy on held-out digits.
  """

  trial: int
  method: str
  budget: int
  steps: int
  cost: float
  learning_rate: float
  clip_norm: float
  variant: float
  private_loss: float
  test_loss: float
  test_accuracy: float

  @property
  def setting(self) -> tuple[float, ...]:
    """The values that the grid varies."""
    return self.learning_rate, self.clip_norm, self.variant


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitsSummary:
  """The best setting of a method for one budget, averaged over trials.

  Example: see `run_digits_trial`.

  Attributes:
    method: See `DigitsOutcome`.
    budget: See `DigitsOutcome`.
    steps: Mean of T.
    cost: Mean number of per-sample gradients.
    private_loss: Mean private loss, the lowest of all settings.
    test_loss: Mean test loss.
    test_accuracy: Mean test accuracy.
    half_width: Half-width of the 95 % interval of `test_accuracy`.
    setting: Learning rate, clipping norm and variant.
  """

  method: str
  budget: int
  steps: float
  cost: float
  private_loss: float
  test_loss: float
  test_accuracy: float
  half_width: float
  setting: tuple[float, ...]


def load_digits() -> tuple[np.ndarray, np.ndarray]:
  """Returns features of norm at most 1, with a constant, and labels.

  Raises:
    MissingDataError: If scikit-learn is not installed.
  """
  try:
    from sklearn import datasets
  except ImportError as e:
    raise MissingDataError(
      'The digits are part of scikit-learn, which is not installed: pip install'
      ' scikit-learn.'
    ) from e
  data = datasets.load_digits()
  features = np.concatenate(
    [data.data / 16.0, np.ones((data.data.shape[0], 1))], axis=1
  )
  # 65 numbers in [0, 1], so the bound does not depend on the data.
  return features / math.sqrt(features.shape[1]), data.target


class _Split:
  """The digits of one trial, and the runs on them."""

  def __init__(self, config: DigitsConfig, trial: int):
    features, labels = load_digits()
    seeds = np.random.SeedSequence(config.seed, spawn_key=(trial,))
    split_seed, self._noise_seed = seeds.generate_state(2, np.uint64).tolist()
    order = np.random.default_rng(split_seed).permutation(len(labels))
    test, public, private = np.split(
      order, [config.num_test, config.num_test + config.num_public]
    )
    self.test, self.public, self.private = (
      logistic.LogisticRegression(features[rows], labels[rows], _NUM_CLASSES)
      for rows in (test, public, private)
    )
    self._config = config
    self._trial = trial
    start_map = self.public.mirror_map(config.start_ridge)
    self.start = start_map.minimizer()
    self.start_map = start_map

  def run(
    self,
    method: str,
    mirror_map: mirror_maps.MirrorMap,
    budget: int,
    steps: int,
    variant: float = 0.0,
    rate_factor: float = 1.0,
  ) -> list[DigitsOutcome]:
    """Runs the grid; outcomes report the mean cost of its runs."""
    config = self._config
    unit_noise = baselines.noise_stddev(
      config.noise,
      clip_norm=1.0,
      rounds=steps,
      epsilon=config.epsilon,
      delta=config.delta,
      population=self.private.num_samples,
    )
    settings = [
      algorithm_1.Setting(
        learning_rate=rate * rate_factor,
        clip_norm=clip_norm,
        num_steps=steps,
        noise_stddev=clip_norm * unit_noise,
      )
      for rate, clip_norm in itertools.product(
        config.learning_rates, config.clip_norms
      )
    ]
    before = getattr(mirror_map, 'num_evaluations', 0)
    found = algorithm_1.mirror_descent(
      mirror_map,
      self.private.full_batch(),
      settings,
      np.random.default_rng(self._noise_seed),
    )
    evaluations = getattr(mirror_map, 'num_evaluations', 0) - before
    cost = steps * self.private.num_samples
    cost += evaluations * self.public.num_samples / len(settings)
    return [
      self.outcome(
        method,
        theta,
        budget=budget,
        steps=steps,
        cost=cost,
        learning_rate=setting.learning_rate / rate_factor,  # type: ignore[operator]
        clip_norm=setting.clip_norm,
        variant=variant,
      )
      for setting, theta in zip(settings, found.average.T, strict=True)
    ]

  def outcome(self, method: str, theta: np.ndarray, **fields) -> DigitsOutcome:
    """Returns the outcome of a run's coefficients."""
    return DigitsOutcome(
      trial=self._trial,
      method=method,
      private_loss=self.private.loss(theta),
      test_loss=self.test.loss(theta),
      test_accuracy=self.test.accuracy(theta),
      **fields,
    )


class _StartAt:
  """A mirror map with another starting point than its minimizer."""

  def __init__(
    self, mirror_map: mirror_maps.SmoothMirrorMap, start: np.ndarray
  ):
    self._mirror_map = mirror_map
    self._start = start

  @property
  def num_evaluations(self) -> int:
    return self._mirror_map.num_evaluations

  def minimizer(self, constraint=None) -> np.ndarray:
    del constraint
    return self._start

  def step(self, *args) -> np.ndarray:
    return self._mirror_map.step(*args)


def run_digits_trial(config: DigitsConfig, trial: int) -> list[DigitsOutcome]:
  """Splits the digits and runs every method with every setting.

  Example:

  ```
  outcomes = run_digits_trial(DigitsConfig(), trial=0)
  best = summarize_digits(outcomes)
  ```

  Args:
    config: The settings.
    trial: Index of the trial, from 0.

  Returns:
    The outcomes.

  Raises:
    MissingDataError: If scikit-learn is not installed.
  """
  validate.integers(0, trial=trial)
  split = _Split(config, trial)
  outcomes = []
  for budget in config.exact_steps:
    no_steps = dict(
      budget=budget,
      steps=0,
      cost=0.0,
      learning_rate=0.0,
      clip_norm=0.0,
      variant=0.0,
    )
    outcomes.append(split.outcome('public', split.start, **no_steps))
    exact = []
    for ridge in config.mirror_ridges:
      psi = split.public.mirror_map(ridge, tolerance=config.inner_tolerance)
      exact += split.run(
        'exact', _StartAt(psi, split.start), budget, budget, ridge, ridge
      )
    outcomes += exact
    # The budget is the cost of the most expensive exact run.
    allowed = max(outcome.cost for outcome in exact)
    steps = math.ceil(allowed / split.private.num_samples)
    warm = mirror_maps.EuclideanMirrorMap(split.start)
    outcomes += split.run('warm', warm, budget, steps)
    both = split.private.num_samples + split.public.num_samples
    steps = math.ceil(allowed / both)
    for factor in config.schedule_factors:
      first_order = mirror_maps.FirstOrderMirrorMap(
        split.start_map, split.start, schedules.cosine(factor * steps)
      )
      outcomes += split.run('first-order', first_order, budget, steps, factor)
  return outcomes


def summarize_digits(outcomes: list[DigitsOutcome]) -> list[DigitsSummary]:
  """Selects the setting with the lowest mean private loss.

  As in the paper's simulation, the selection uses private data without noise:
  it compares methods at their best.

  Example: see `run_digits_trial`.

  Args:
    outcomes: The outcomes of all trials.

  Returns:
    A summary for each budget and method.
  """
  groups = {}
  for outcome in outcomes:
    key = outcome.budget, outcome.method
    settings = groups.setdefault(key, {})
    settings.setdefault(outcome.setting, []).append(outcome)

  def mean(runs: list[DigitsOutcome], name: str) -> float:
    return float(np.mean([getattr(run, name) for run in runs]))

  summaries = []
  for (budget, method), settings in groups.items():
    setting = min(settings, key=lambda s: mean(settings[s], 'private_loss'))
    runs = settings[setting]
    summaries.append(
      DigitsSummary(
        method=method,
        budget=budget,
        steps=mean(runs, 'steps'),
        cost=mean(runs, 'cost'),
        private_loss=mean(runs, 'private_loss'),
        test_loss=mean(runs, 'test_loss'),
        test_accuracy=mean(runs, 'test_accuracy'),
        half_width=_half_width([run.test_accuracy for run in runs]),
        setting=setting,
      )
    )
  return summaries


def _half_width(values: list[float]) -> float:
  if len(values) < 2:
    return math.nan
  return float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
