"""From a spec to a run: opens the data, and settles what depends on them.

run = resolve(RunSpec.for_data(data_dir='data/laptop'))
run.plan, run.model, run.method
"""

import dataclasses
import math
from typing import Any, ClassVar, Optional, Union

import numpy as np
from pda_fed import methods
from pda_fed import models
from pda_fed import privacy
from pda_fed import schedules
from pda_fed.common import typed
from pda_fed.runs import building
from pda_fed.runs import data as data_lib
from pda_fed.runs import groups
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
    data: The data, opened and verified. Their hash is a setting of the run; the
      folder that holds them is not.
  """

  # Version of the map from seed and round to noise and sums. A round repeated
  # after a kill must be the same round, so a run of another version cannot be
  # resumed. Version 4 rounds noised sums to a grid. Version 5 gives TFF's noise
  # a seed of 128 bits for each draw. Version 6 has the optimizers of optax, and
  # JAX draws noise in the order of the weights' names.
  noise_version: ClassVar[int] = 6

  spec: spec_lib.RunSpec
  plan: privacy.PrivacyPlan
  method: methods.Method
  model: models.ModelSpec
  data: data_lib.OpenedData

  def __post_init__(self):
    self.spec.check_scope()
    if self.spec.audit.audit and not self.plan.noise_multiplier:
      raise ValueError(
        'audit must be off if noise_multiplier is 0: epsilon is infinite, and'
        ' no leak can contradict it. Add noise, or drop --audit.'
      )
    self.data.check(self)

  @property
  def engine(self) -> str:
    """The engine's name."""
    return self.spec.execution.engine

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

  def bound(self, clip: Union[float, str, None]) -> Optional[float]:
    """Returns a bound on a norm: a number, or None.

    Args:
      clip: A number, 'private' for the clip norm of private updates, or None.
    """
    return self.plan.clip_norm if isinstance(clip, str) else clip

  def settings(self) -> dict[str, Any]:
    """Returns every setting that affects results, as JSON values."""
    return {
      **self.spec.as_json(only_results=True),
      # What the data and the solved noise made of it.
      'plan': typed.as_json(self.plan),
      'model': building.model_as_json(self.model),
      'method': building.method_as_json(self.method),
      'dataset': self.data.name,
      'data_hash': self.data.sha256,
      'noise_version': self.noise_version,
    }

  def pretraining_settings(self) -> dict[str, Any]:
    """Returns the settings that determine the warm-start model.

    Runs with the same settings share the model.
    """
    return {
      **typed.as_json(self.spec.pretraining),
      'seed': self.spec.pretraining_seed,
      # It covers the public examples. A search, which holds out private
      # examples, and the final run share a warm start.
      'data_hash': self.data.sha256,
      'engine': self.engine,
      'compute_dtype': self.spec.execution.compute_dtype,
      'model': building.model_as_json(self.model),
    }


def build_plan(
  spec: groups.PlanSpec,
  population: int,
  unit: str,
  accountant: Any = None,
) -> privacy.PrivacyPlan:
  """Returns the privacy plan of a population, with the noise solved for.

  Args:
    spec: What the user asked for.
    population: Number of private users or examples.
    unit: Name of one record.
    accountant: Solves for the noise; None for the tightest.

  Raises:
    ValueError: If the settings do not fit the population, or no noise reaches
      the epsilon.
  """
  cohort, rounds = spec.expected_cohort, spec.rounds
  if cohort > population:
    raise ValueError(
      f'expected_cohort must be at most {population}, the number of private'
      f' {unit}s. Found {cohort:g}.'
    )
  adaptive = {
    'target_quantile': spec.clip_quantile,
    'learning_rate': spec.clip_learning_rate,
    'count_stddev': spec.clip_count_stddev,
  }
  given = {name: v for name, v in adaptive.items() if v is not None}
  clipping = privacy.AdaptiveClipping(**given)
  plan: dict[str, Any] = {
    'population': population,
    'expected_cohort': cohort,
    'rounds': rounds or max(1, int(spec.epochs * population // cohort)),
    'delta': spec.delta,
    'clip_norm': spec.clip_norm,
    'adaptive_clipping': clipping if spec.adaptive_clipping else None,
    'mechanism': spec.mechanism,
    'sampling': spec.sampling,
    'unit': unit,
  }
  if spec.target_epsilon is None:
    return privacy.PrivacyPlan(**plan, noise_multiplier=spec.noise_multiplier)
  try:
    return privacy.PrivacyPlan.for_epsilon(
      spec.target_epsilon, **plan, accountant=accountant
    )
  except ModuleNotFoundError as e:
    raise ValueError(
      f'target_epsilon needs {e.name}, which is not installed. Solve for the'
      ' noise with scripts.privacy on another machine, and give'
      ' noise_multiplier.'
    ) from e


def resolve(spec: spec_lib.RunSpec, *, trust_code: bool = False) -> Run:
  """Returns the run of a spec, with its data opened.

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
  spec.check_scope()  # Before data are read.
  data = data_lib.open_data(spec.data)
  plan = build_plan(spec.plan, data.population, data.unit)
  # The default of alpha is the paper's.
  if spec.data.has_users:
    T = float(plan.rounds)
    alpha = schedules.for_stackoverflow(5, plan.rounds)
  else:
    T = spec.plan.epochs or plan.rounds * plan.sampling_rate
    alpha = schedules.cosine(tasks.ALPHA_K[data.name])
  return Run(
    spec=spec,
    plan=plan,
    method=building.build_method(spec.method, T, alpha, trust_code=trust_code),
    model=data.build_model(spec.model, trust_code),
    data=data,
  )
