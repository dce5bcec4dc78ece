"""What the trials of a simulation come to: the best setting of each method."""

import dataclasses
import math

import numpy as np
from pda_fed.linear_regression import simulation
from scipy import stats


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
  """The best setting of a method for one p.

  Example: see `summarize`.

  Attributes:
    p: The number of coefficients.
    method: One of `simulation.METHODS`.
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
  best: simulation.Outcome
  losses: tuple[float, ...]


def summarize(trials: list[simulation.Trial]) -> list[Summary]:
  """Picks, for each p and method, the setting with the least mean loss.

  Example:

    >>> from pda_fed import linear_regression
    >>> config = linear_regression.SimulationConfig(
    ...   dimensions=(200,), num_trials=2, num_private=100, epochs=(2,),
    ...   learning_rates=(10.0,), mirror_learning_rates=(300.0,),
    ...   num_condition_numbers=0, methods=('warm', 'pda'),
    ... )
    >>> trials = [linear_regression.run_trial(config, 200, i) for i in range(2)]
    >>> warm, pda = summarize(trials)
    >>> mean, half_width = paired_difference(warm, pda)
    >>> warm.method, pda.num_trials, abs(mean - (warm.loss - pda.loss)) < 1e-9
    ('warm', 2, True)

  Args:
    trials: Finished ones, in any order; all of a p with the same settings.

  Returns:
    A summary for each p and method, in the order of p and of
    `simulation.METHODS`.
  """
  groups = {}
  for trial in sorted(trials, key=lambda t: (t.p, t.trial)):
    for outcome in trial.outcomes:
      key = outcome.p, simulation.METHODS.index(outcome.method)
      settings = groups.setdefault(key, {})
      settings.setdefault(outcome.setting, []).append(outcome)
  return [
    _summarize_setting(
      min(settings.values(), key=lambda o: np.mean([x.loss for x in o]))
    )
    for _, settings in sorted(groups.items())
  ]


def _summarize_setting(outcomes: list[simulation.Outcome]) -> Summary:
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

  Example: see `summarize`.

  Args:
    first: Of one method.
    second: Of another, for the same trials.

  Returns:
    The mean, and half of the interval's width; NaN for a single trial.

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
