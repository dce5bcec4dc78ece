"""Summarizes the trials of a simulation: the best setting of each method."""

import dataclasses
import math

import numpy as np
from numpy import typing as npt
from pda_fed.linear_regression import simulation
from scipy import stats


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
  """The best setting of a method for one p.

  Example: see `summarize`.

  Attributes:
    p: The number of coefficients.
    method: One of `simulation.METHODS`.
    num_trials: Number of trials.
    loss: Mean over trials of the mean squared error on the private samples.
    half_width: Half-width of the 95 % interval of that mean, by Student's t.
    population_loss: Mean over trials of the error on new samples.
    last_loss: Mean loss of the last iterate of the same setting.
    best: The best setting, as its outcome in the first trial.
    losses: Losses of the trials, in order.
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
  """Selects, for each p and method, the setting with the lowest mean loss.

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
    trials: Finished trials, in any order. All trials of a p have the same
      settings.

  Returns:
    A summary for each p and method, in the order of p and of
    `simulation.METHODS`.
  """
  groups: dict[tuple[int, int], dict[tuple, list[simulation.Outcome]]] = {}
  for trial in sorted(trials, key=lambda t: (t.p, t.trial)):
    for outcome in trial.outcomes:
      key = trial.p, simulation.METHODS.index(outcome.method)
      settings = groups.setdefault(key, {})
      settings.setdefault(outcome.setting, []).append(outcome)
  return [
    _summarize_setting(
      p, min(settings.values(), key=lambda o: np.mean([x.loss for x in o]))
    )
    for (p, _), settings in sorted(groups.items())
  ]


def _summarize_setting(p: int, outcomes: list[simulation.Outcome]) -> Summary:
  losses = [outcome.loss for outcome in outcomes]
  loss, half_width = _mean_and_half_width(losses)
  return Summary(
    p=p,
    method=outcomes[0].method,
    num_trials=len(losses),
    loss=loss,
    half_width=half_width,
    population_loss=float(np.mean([o.population_loss for o in outcomes])),
    last_loss=float(np.mean([o.last_loss for o in outcomes])),
    best=outcomes[0],
    losses=tuple(losses),
  )


def _mean_and_half_width(values: npt.ArrayLike) -> tuple[float, float]:
  """Returns a mean and the half-width of its 95 % interval, NaN for one."""
  values = np.asarray(values)
  if values.size < 2:
    return float(values.mean()), math.nan
  quantile = stats.t.ppf(0.975, values.size - 1)
  return float(values.mean()), float(quantile * stats.sem(values))


def paired_difference(first: Summary, second: Summary) -> tuple[float, float]:
  """Returns the mean difference over trials and its 95 % half-width.

  Methods of a trial share the problem and the noise, so their difference is
  much more precise than either loss.

  Example: see `summarize`.

  Args:
    first: The summary of one method.
    second: The summary of another method, for the same trials.

  Returns:
    The mean of first - second, and the half-width of its 95 % interval, which
    is NaN for a single trial.

  Raises:
    ValueError: If the numbers of trials differ.
  """
  if first.num_trials != second.num_trials:
    raise ValueError(
      f'second must have {first.num_trials} trials, like first. Found'
      f' {second.num_trials}.'
    )
  return _mean_and_half_width(np.subtract(first.losses, second.losses))
