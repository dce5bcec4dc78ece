"""Measures a run's leak with canaries and compares it with the proven one."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math
from typing import Any, Optional

import numpy as np
from pda_fed.audit import canaries as canaries_lib
from pda_fed.audit import estimators
from pda_fed.audit import words

# All bounds of a report hold jointly with 95 % confidence.
SIGNIFICANCE = 0.05
_BOUNDS_OF_A_VIEW = 2
_VIEWS = ('every noised mean', 'the final model alone')
_ARRAYS = ('likelihood', 'total', 'changes', 'previous', 'start')
# Standard deviation of a normal distribution over its median deviation.
_MEDIAN_DEVIATION = 1.4826
_LEAST_SPREAD = 1e-6
# Fewer scores cannot estimate a spread; small groups are merged.
_LEAST_GROUP = 50
# After this many participations of a canary, on average, the sum of its scores
# is close to normal.
_MANY_PARTICIPATIONS = 3
# Large enough for certainty, but too small for one canary to decide a mean.
_LARGEST_RATIO = 50.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
  """The leak to an adversary who sees a part of a run.

  Example: see `Auditor`.

  Attributes:
    estimate: The one-shot estimate of epsilon.
    interval: The 95 % interval of the estimate.
    one_run_bound: The lower bound without assumptions.
    rates_bound: The lower bound by error rates. It assumes that canaries are
      independent and, after many rounds, that the run is a Gaussian mechanism.
      All bounds of a report hold jointly with 95 % confidence.
  """

  estimate: float
  interval: tuple[float, float]
  one_run_bound: float
  rates_bound: float

  @property
  def lower_bound(self) -> float:
    """The larger of the two bounds."""
    return max(self.one_run_bound, self.rates_bound)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditReport:
  """The result of an audit.

  Example: see `Auditor`.

  Attributes:
    canaries: Number of canaries.
    delta: The delta of all epsilons.
    proven: The epsilon of the accountant; None if it was not computed.
    added_noise: See `Canaries.added_noise`.
    most: The largest lower bound that this many canaries can show.
    resolution: Estimates below this are not significantly different from 0.
    views: Results by what an adversary sees: every noised mean, or only the
      final model.
  """

  canaries: int
  delta: float
  proven: Optional[float]
  added_noise: float
  most: float
  resolution: float
  views: Mapping[str, View]

  @property
  def lower_bound(self) -> float:
    """The largest lower bound of all views."""
    return max(view.lower_bound for view in self.views.values())

  @property
  def is_violated(self) -> bool:
    """Whether a lower bound is above the proven epsilon."""
    return words.is_violated(self.as_dict())

  def as_dict(self) -> dict[str, Any]:
    """Returns the report as JSON values."""
    return {**dataclasses.asdict(self), 'lower_bound': self.lower_bound}


class Auditor:
  """Follows a run round by round.

  Example:

  ```
  auditor = Auditor(canaries)
  auditor.start(weights)
  for round_num in range(plan.rounds):
    auditor.add_round(canaries.scores(noised_mean) / S)
  report = auditor.report(final_weights, epsilon)
  ```

  Attributes:
    canaries: The canaries.
  """

  def __init__(self, canaries: canaries_lib.Canaries):
    """Initializes the auditor before the first round.

    Args:
      canaries: The canaries of the run.
    """
    self.canaries = canaries
    zeros = np.zeros(len(canaries))
    self._state = {name: zeros.copy() for name in _ARRAYS}
    self._rounds = 0

  def start(self, weights: Sequence[np.ndarray]) -> None:
    """Records the weights before the first round; the adversary knows them."""
    self._state['start'] = np.array(self.canaries.scores(weights), np.float64)

  def add_round(self, scores: np.ndarray) -> None:
    """Adds the scores of a round.

    Args:
      scores: The inner product of each direction with the noised sum, in units
        of the clipping norm. A canary of the round adds 1; the noise has
        standard deviation sigma.
    """
    state, scores = self._state, np.array(scores, np.float64)
    q = self.canaries.plan.sampling_rate
    spread = self._per_group(_spread, scores)
    ratio = (scores - 0.5) / np.square(spread)
    ratio = np.clip(ratio, -_LARGEST_RATIO, _LARGEST_RATIO)
    # The likelihood ratio of "in the round with probability q" to "not in the
    # round".
    with np.errstate(divide='ignore'):
      state['likelihood'] += np.logaddexp(
        np.log1p(-q) if q < 1 else -math.inf, math.log(q) + ratio
      )
    state['total'] += scores
    # Noise that repeats between rounds cancels in differences.
    if self._rounds:
      state['changes'] += np.square(scores - state['previous'])
    state['previous'] = scores
    self._rounds += 1

  def _per_group(self, function, scores: np.ndarray) -> np.ndarray:
    """Applies a function to the scores of each group."""
    found = np.empty_like(scores)
    for members in self._groups:
      found[members] = function(scores[members])
    return found

  @functools.cached_property
  def _groups(self) -> list[np.ndarray]:
    """Indices of canaries by group; small groups are merged."""
    counts = [group.count for group in self.canaries.directions.groups]
    every = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
    large = [group for group in every if len(group) >= _LEAST_GROUP]
    small = [group for group in every if len(group) < _LEAST_GROUP]
    if not small:
      return large
    merged = np.concatenate(small)
    if len(merged) < _LEAST_GROUP and large:
      return [np.concatenate([large[0], merged]), *large[1:]]
    return [*large, merged]

  def to_arrays(self) -> dict[str, np.ndarray]:
    """Returns the arrays that a checkpoint saves."""
    return {**self._state, 'rounds': np.array(self._rounds, np.int64)}

  def from_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Restores the state that `to_arrays` returned.

    Args:
      arrays: Arrays by name.
    """
    self._state = {name: np.array(arrays[name]) for name in _ARRAYS}
    self._rounds = int(arrays['rounds'])

  def report(
    self, weights: Sequence[np.ndarray], proven: Optional[float]
  ) -> AuditReport:
    """Returns the report of the run.

    Args:
      weights: The weights of the final model.
      proven: The epsilon of the accountant, or None if it was not computed.
    """
    state = self._state
    final = self.canaries.scores(weights) - state['start']
    # Arrays of a model move by different amounts, so standardize. Likelihoods
    # already account for the noise.
    total, changes, final = (
      self._per_group(_standardized, score)
      for score in (state['total'], state['changes'], final)
    )
    views = {
      # The estimate uses the first score of a view.
      _VIEWS[0]: [state['likelihood'], total, changes],
      _VIEWS[1]: [-final],  # The model moves against the updates.
    }
    delta = self.canaries.plan.delta
    count = len(self.canaries)
    perfect = [self.canaries.took_part * 1.0]
    most = self._view(perfect * len(views[_VIEWS[0]])).lower_bound
    return AuditReport(
      canaries=count,
      delta=delta,
      proven=proven,
      added_noise=self.canaries.added_noise,
      most=most,
      # Two standard errors of the difference of two means.
      resolution=float(
        estimators.gaussian_epsilon(4 / math.sqrt(count), delta)
      ),
      views={name: self._view(scores) for name, scores in views.items()},
    )

  @property
  def _is_gaussian(self) -> bool:
    """Whether the run is close to a Gaussian mechanism."""
    q = self.canaries.plan.sampling_rate
    return q == 1 or q * self._rounds >= _MANY_PARTICIPATIONS

  def _view(self, scores: Sequence[np.ndarray]) -> View:
    took_part = self.canaries.took_part
    delta = self.canaries.plan.delta
    estimate = estimators.one_shot_estimate(scores[0], took_part, delta)
    bounds_of = scores, took_part, delta
    significance = SIGNIFICANCE / (len(_VIEWS) * _BOUNDS_OF_A_VIEW)
    return View(
      estimate=estimate.epsilon,
      interval=(estimate.low, estimate.high),
      one_run_bound=estimators.best_one_run_bound(*bounds_of, significance),
      rates_bound=estimators.rates_bound(
        *bounds_of, significance, is_gaussian=self._is_gaussian
      ),
    )


def _spread(scores: np.ndarray) -> np.ndarray:
  """Returns a standard deviation that is robust to a few canaries."""
  deviations = np.abs(scores - np.median(scores))
  return np.maximum(_MEDIAN_DEVIATION * np.median(deviations), _LEAST_SPREAD)


def _standardized(scores: np.ndarray) -> np.ndarray:
  return (scores - np.median(scores)) / _spread(scores)
