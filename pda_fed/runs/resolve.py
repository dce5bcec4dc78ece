"""From a spec to a run: opens the data, and settles what depends on them.

run = resolve(RunSpec.for_data(data_dir='data/laptop'))
run.plan, run.model, run.method
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any, ClassVar, Optional
import warnings

import numpy as np
from pda_fed import methods
from pda_fed import models
from pda_fed import privacy
from pda_fed.common import settings
from pda_fed.runs import building
from pda_fed.runs import data as data_lib
from pda_fed.runs import spec as spec_lib
from pda_fed.runs import tasks

# About as many rows as a curve needs.
_EVALUATIONS = 20


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Run:
  """A run whose settings fit its data.

  Example: see `resolve`.

  Attributes:
    spec: What the user asked for.
    plan: Population, cohort, rounds, clip and noise.
    method: The public-data method.
    model: The model's specification.
    dataset: The data set's name in results.
    data_hash: sha256 of the data. The data is a setting of the run; the folder
      that holds it is not.
    about: More fields of config.json: sizes of groups, caveats.
  """

  # Version of the map from seed and round to noise and sums. A round repeated
  # after a kill must be the same round, so a run of another version cannot be
  # resumed. Version 4 rounds noised sums to a grid. Version 5 gives TFF's noise
  # a seed of 128 bits for each draw.
  noise_version: ClassVar[int] = 5

  spec: spec_lib.RunSpec
  plan: privacy.PrivacyPlan
  method: methods.Method
  model: models.ModelSpec
  dataset: str
  data_hash: str
  about: Mapping[str, Any]

  @property
  def rounds_per_evaluation(self) -> int:
    """Rounds between evaluations on validation data."""
    given = self.spec.evaluation.rounds_per_evaluation
    if given is not None or self.spec.data.has_users:
      return given or 20
    epoch = self.plan.rounds_per_epoch
    epochs = self.plan.rounds * self.plan.sampling_rate
    return max(1, round(epochs / _EVALUATIONS)) * epoch

  @property
  def rounds_per_dispatch(self) -> int:
    """Maximum number of rounds per call of the engine."""
    given = self.spec.execution.rounds_per_dispatch
    if given is not None or self.spec.data.has_users:
      return given or 1
    return self.plan.rounds_per_epoch

  def epochs(self, rounds: range) -> np.ndarray:
    """Returns the schedules' t at sample level: the whole epochs done."""
    q = self.plan.sampling_rate
    # Absorbs rounding: 96 steps of 500 out of 48,000 are exactly one epoch.
    return np.array([math.floor(t * q + 1e-9) for t in rounds], np.int32)

  def schedules(self, rounds: range) -> dict[str, np.ndarray]:
    """Returns the values of the method's schedules in some rounds."""
    users = self.spec.data.has_users
    times = list(rounds) if users else self.epochs(rounds).tolist()
    return {
      name: np.array([schedule(t) for t in times], np.float32)
      for name, schedule in self.method.schedules.items()
    }

  def learning_rates(self, rounds: range) -> np.ndarray:
    """Returns the server's learning rate in some rounds."""
    done = np.asarray(rounds, np.float64) / self.plan.rounds
    factors = {
      'none': np.ones_like(done),
      'linear': 1 - done,
      'cosine': 0.5 * (1 + np.cos(np.pi * done)),
    }
    server = self.spec.server
    return (server.learning_rate * factors[server.decay]).astype(np.float32)

  def bound(self, clip: float | str | None) -> Optional[float]:
    """Returns a bound on a norm: a number, or None.

    Args:
      clip: A number, 'private' for the clip norm of private updates, or None.
    """
    return self.plan.clip_norm if clip == 'private' else clip

  def settings(self) -> dict[str, Any]:
    """Returns every setting that affects results, as JSON values."""
    spec = self.spec.as_json(only_results=True)
    return {
      **spec,
      # What the data and the solved noise made of it.
      'plan': settings.as_json(self.plan),
      'model': _named(self.model),
      'method': {'name': self.method.name, **_values(self.method)},
      'dataset': self.dataset,
      'data_hash': self.data_hash,
      'noise_version': self.noise_version,
    }

  def pretraining_settings(self) -> dict[str, Any]:
    """Returns the settings that determine the warm-start model.

    Runs with the same settings share the model.
    """
    return {
      **settings.as_json(self.spec.pretraining),
      'seed': self.spec.pretraining_seed,
      # It covers the public examples. A search, which holds out private
      # examples, and the final run share a warm start.
      'data_hash': self.data_hash,
      'engine': self.spec.execution.engine,
      'compute_dtype': self.spec.execution.compute_dtype,
      'model': _named(self.model),
    }


def _named(model: models.ModelSpec) -> dict[str, Any]:
  """Returns a model's sizes, and the class of a user's model."""
  values, kind = settings.as_json(model), type(model)
  if not kind.__module__.startswith(models.__name__):
    # Two models defined by users may have the same fields.
    values['kind'] = f'{kind.__module__}.{kind.__qualname__}'
  return values


def _values(method: methods.Method) -> dict[str, Any]:
  """Returns a method's settings; a schedule has its kind."""
  found = {}
  for field in dataclasses.fields(method):
    value = getattr(method, field.name)
    found[field.name] = settings.as_json(value)
    if field.name in method.schedules:
      kind = type(value).__name__.strip('_').lower()
      found[field.name] = {**settings.as_json(value), 'kind': kind}
  return found


def build_plan(
  spec: spec_lib.PlanSpec, population: int, unit: str
) -> privacy.PrivacyPlan:
  """Returns the privacy plan of a population, with the noise solved for.

  Args:
    spec: What the user asked for.
    population: Number of private users or examples.
    unit: Name of one record.

  Raises:
    ValueError: If the settings do not fit the population, or no noise reaches
      the epsilon.
  """
  cohort = spec.expected_cohort
  if cohort > population:
    raise ValueError(
      f'expected_cohort must be at most {population}, the number of private'
      f' {unit}s. Found {cohort:g}.'
    )
  rounds = spec.rounds
  if rounds is None:
    rounds = max(1, int(spec.epochs * population // cohort))
  adaptive = None
  if spec.adaptive_clipping:
    given = {
      'target_quantile': spec.clip_quantile,
      'learning_rate': spec.clip_learning_rate,
      'count_stddev': spec.clip_count_stddev,
    }
    adaptive = privacy.AdaptiveClipping(
      **{name: value for name, value in given.items() if value is not None}
    )
  plan: dict[str, Any] = {
    'population': population,
    'expected_cohort': cohort,
    'rounds': rounds,
    'delta': spec.delta,
    'clip_norm': spec.clip_norm,
    'mechanism': spec.mechanism,
    'sampling': spec.sampling,
    'unit': unit,
  }
  noise = spec.noise_multiplier
  if noise is None:
    noise = _solved(plan, spec.target_epsilon)
  return privacy.PrivacyPlan(
    **plan, noise_multiplier=noise, adaptive_clipping=adaptive
  )


def _solved(plan: Mapping[str, Any], target: float) -> float:
  """Returns the smallest noise for an epsilon."""
  try:
    with warnings.catch_warnings():  # The final plan warns of delta.
      warnings.simplefilter('ignore')
      # Adaptive clipping has the same epsilon, but rejects large noise.
      start = privacy.PrivacyPlan(**plan, noise_multiplier=1.0)
      accountant = privacy.tightest_accountant(start)
      return privacy.calibrate(start, target, accountant).noise_multiplier
  except ModuleNotFoundError as e:
    raise ValueError(
      f'target_epsilon needs {e.name}, which is not installed. Solve for the'
      ' noise with scripts.privacy on another machine, and give'
      ' noise_multiplier.'
    ) from e


def resolve(spec: spec_lib.RunSpec, *, trust_code: bool = False) -> Run:
  """Opens the data of a spec and returns its run.

  Example:

    >>> from pda_fed.runs import spec
    >>> resolve(spec.RunSpec.for_data(dataset='digits')).plan.rounds
    359

  Args:
    spec: The settings.
    trust_code: Whether modules that the spec names may be imported.

  Raises:
    PdaFedError: If the data are missing or damaged, or a module is not trusted.
    ValueError: If the settings do not fit the data.
  """
  opened = data_lib.open_data(spec.data)
  plan = build_plan(spec.plan, opened.population, opened.unit)
  users = spec.data.has_users
  T = plan.rounds if users else plan.rounds * plan.sampling_rate
  if not users and spec.plan.epochs is not None:
    T = spec.plan.epochs
  method = building.build_method(
    spec.method,
    T,
    building.default_alpha(spec.data.dataset, T, tasks.ALPHA_K),
    trust_code=trust_code,
  )
  model = opened.build_model(spec.model, trust_code)
  run = Run(
    spec=spec,
    plan=plan,
    method=method,
    model=model,
    dataset=opened.name,
    data_hash=opened.sha256,
    about={'data': opened.about, 'caveats': opened.caveats},
  )
  opened.check(run)
  return run
