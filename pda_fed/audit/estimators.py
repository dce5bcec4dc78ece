"""Estimates epsilon from the scores of canaries.

A canary that took part should have a higher score. There are three estimators:

*   The one-shot estimate: "One-shot Empirical Privacy Estimation for Federated
    Learning" (Andrew et al., ICLR 2024, arXiv:2302.03098). Normal distributions
    are fitted to the scores of canaries that took part and of those that did
    not; epsilon is that of distinguishing the two. It is an estimate, which may
    be too small or too large.
*   The bound by error rates: "Tight Auditing of Differentially Private Machine
    Learning" (Nasr et al., USENIX Security 2023, arXiv:2302.07956). It uses the
    error rates of thresholds, with confidence limits. It assumes that canaries
    are independent.
*   The one-run bound: "Privacy Auditing with One (1) Training Run" (Steinke et
    al., NeurIPS 2023, arXiv:2305.08846), Theorem 5.2. A fair coin decided
    whether each canary took part; many correct guesses disprove a small
    epsilon. It holds with its confidence whatever the scores are.
"""

from collections.abc import Sequence
import math
from typing import NamedTuple, Optional

import numpy as np
import numpy.typing as npt
from pda_fed.common import validate
from scipy import optimize
from scipy import stats

# Upper end of the search for an epsilon.
_LARGEST = 200.0
_BISECTIONS = 60
_RESAMPLES = 400


# Fractions of canaries above each threshold. They must not depend on the
# scores.
_SHARES = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 64, 1 / 256)
# Fractions of canaries with the highest scores, guessed to have taken part, and
# with the lowest, guessed not to. They must not depend on the scores. If few
# rounds sample a canary, only the highest scores are informative; if every
# round does, both ends are.
GUESSES = (
  *((share, 0) for share in (1 / 256, 1 / 128, 1 / 64, 1 / 32, 1 / 16, 1 / 8)),
  *((share, share) for share in (1 / 16, 1 / 4, 1 / 2)),
)


def one_run_bound(
  num_canaries: int,
  num_guesses: int,
  num_right: int,
  delta: float,
  significance: float = 0.05,
) -> float:
  """Returns the largest epsilon disproved by a number of correct guesses.

  Theorem 5.2 of Steinke et al.: with q = e^eps / (1 + e^eps), an (eps,
  delta)-DP run gives v or more correct guesses with probability at most

      P[Bin(r, q) >= v] + 2 m delta max_{1<=i<=v} P[v - i <= Bin(r, q) < v] / i.

  Example:

    >>> round(one_run_bound(1000, 100, 95, delta=1e-5), 3)
    2.165

  Args:
    num_canaries: m, the number of canaries.
    num_guesses: r, the number of guesses.
    num_right: v, the number of correct guesses.
    delta: The delta of (epsilon, delta).
    significance: The probability that the bound is wrong.

  Returns:
    The bound, at least 0.

  Raises:
    ValueError: If a number is out of range.
  """
  validate.integers(1, num_canaries=num_canaries, num_guesses=num_guesses)
  validate.integers(0, num_right=num_right)
  validate.in_range(0, num_canaries, num_guesses=num_guesses)
  validate.in_range(0, num_guesses, num_right=num_right)
  validate.in_range(0, 1, delta=delta)
  validate.between(0, 1, significance=significance)
  widths = np.arange(1, num_right + 1)

  def probability(epsilon: float) -> float:
    right = stats.binom(num_guesses, 1 / (1 + np.exp(-epsilon)))
    at_least = right.sf(num_right - 1)
    if not delta or not num_right:
      return at_least
    below = right.cdf(num_right - 1) - right.cdf(num_right - 1 - widths)
    return at_least + 2 * num_canaries * delta * (below / widths).max()

  if probability(0.0) > significance:
    return 0.0
  if probability(_LARGEST) <= significance:
    return _LARGEST
  return optimize.brentq(lambda e: probability(e) - significance, 0, _LARGEST)


def best_one_run_bound(
  scores: Sequence[np.ndarray],
  took_part: np.ndarray,
  delta: float,
  significance: float = 0.05,
) -> float:
  """Returns the best `one_run_bound` of several scores, as `rates_bound` does.

  The significance is divided among all bounds tried.
  """
  took_part = np.asarray(took_part, bool)
  num_canaries = len(took_part)
  share = significance / (len(scores) * len(GUESSES))
  found = 0.0
  for score in scores:
    order = np.argsort(score, kind='stable')
    for guessed_in, guessed_out in GUESSES:
      top = int(guessed_in * num_canaries)
      bottom = int(guessed_out * num_canaries)
      if not top + bottom:
        continue
      right = took_part[order[num_canaries - top :]].sum()
      right += (~took_part[order[:bottom]]).sum()
      bound = one_run_bound(
        num_canaries, top + bottom, int(right), delta, share
      )
      found = max(found, bound)
  return found


def rates_bound(
  scores: Sequence[np.ndarray],
  took_part: np.ndarray,
  delta: float,
  significance: float = 0.05,
  *,
  is_gaussian: bool,
) -> float:
  """Returns the largest epsilon disproved by error rates of thresholds.

  A threshold on the score has a true and a false positive rate, for which
  Clopper-Pearson limits are used. Every (eps, delta)-DP run has
  TPR <= e^eps FPR + delta. If noise and trade-off are Gaussian, the rates imply
  more: they determine a Gaussian mechanism with shift
  Phi^-1(TPR) - Phi^-1(FPR), and its epsilon. Both assume that canaries are
  independent trials, which holds for nearly orthogonal directions.

  Example:

    >>> rng = np.random.default_rng(0)
    >>> took_part = rng.random(1000) < 0.5
    >>> scores = rng.normal(size=1000) + 2 * took_part
    >>> rates_bound([scores], took_part, 1e-5, is_gaussian=True) > 4
    True

  Args:
    scores: Several scores, [canaries] each. A higher score suggests that the
      canary took part.
    took_part: Whether each canary took part.
    delta: The delta of (epsilon, delta).
    significance: The probability that the result is wrong. It is divided among
      all bounds tried.
    is_gaussian: Whether the run is close to a Gaussian mechanism: everybody is
      in every round, or there are many rounds.

  Returns:
    The bound, at least 0.
  """
  took_part = np.asarray(took_part, bool)
  # Each threshold has two sides, and each side two limits.
  share = significance / (len(scores) * len(_SHARES) * 4)
  bound = 0.0
  for score in scores:
    for sign, hits in ((1, took_part), (-1, ~took_part)):
      order = np.argsort(-sign * score, kind='stable')
      for part in _SHARES:
        top = hits[order[: int(part * len(hits))]]
        right = _lower_limit(int(top.sum()), int(hits.sum()), share)
        misses = int((~hits).sum())
        wrong = 1 - _lower_limit(misses - int((~top).sum()), misses, share)
        bound = max(bound, _epsilon_of(right, wrong, delta, is_gaussian))
  return bound


def _epsilon_of(
  right: float, wrong: float, delta: float, is_gaussian: bool
) -> float:
  """Returns the smallest epsilon that allows these positive rates."""
  if right <= max(wrong, delta):
    return 0.0
  if not is_gaussian:
    return math.log((right - delta) / wrong)
  shift = stats.norm.ppf(right) - stats.norm.ppf(wrong)
  return float(gaussian_epsilon(shift, delta))


def _lower_limit(successes: int, trials: int, significance: float) -> float:
  """Returns the Clopper-Pearson lower limit of a probability."""
  if not successes:
    return 0.0
  return float(stats.beta.ppf(significance, successes, trials - successes + 1))


def gaussian_epsilon(shift: npt.ArrayLike, delta: float) -> np.ndarray:
  """Returns the epsilon of distinguishing N(0, 1) from N(shift, 1).

  "Improving the Gaussian Mechanism for Differential Privacy" (Balle and Wang,
  ICML 2018, arXiv:1805.06530), Theorem 8; a Gaussian mechanism with noise
  multiplier sigma has the shift 1 / sigma.

  Example:

    >>> float(gaussian_epsilon(1 / 1.54, 1e-6).round(3))
    3.008

  Args:
    shift: The distance between the means, or an array of distances.
    delta: The delta of (epsilon, delta).
  """
  shift = np.maximum(np.abs(np.asarray(shift, np.float64)), 1e-9)
  low, high = np.zeros(shift.shape), np.full(shift.shape, _LARGEST)
  for _ in range(_BISECTIONS):
    middle = (low + high) / 2
    excess = stats.norm.cdf(shift / 2 - middle / shift) - np.exp(
      middle + stats.norm.logcdf(-shift / 2 - middle / shift)
    )
    low = np.where(excess > delta, middle, low)
    high = np.where(excess > delta, high, middle)
  return low


class Estimate(NamedTuple):
  """The result of `one_shot_estimate`.

  Attributes:
    epsilon: The estimate.
    low: The lower end of the 95 % interval.
    high: The upper end of the 95 % interval.
  """

  epsilon: float
  low: float
  high: float


def one_shot_estimate(
  scores: np.ndarray,
  took_part: np.ndarray,
  delta: float,
  rng: Optional[np.random.Generator] = None,
) -> Estimate:
  """Estimates epsilon from normal distributions fitted to scores.

  Example:

    >>> rng = np.random.default_rng(0)
    >>> took_part = rng.random(1000) < 0.5
    >>> scores = rng.normal(size=1000) + took_part
    >>> found = one_shot_estimate(scores, took_part, delta=1e-5)
    >>> found.low < gaussian_epsilon(1.0, 1e-5) < found.high
    np.True_

  Args:
    scores: The score of each canary.
    took_part: Whether each canary took part.
    delta: The delta of (epsilon, delta).
    rng: The random generator of the bootstrap for the interval.

  Returns:
    The estimate and its interval.

  Raises:
    ValueError: If fewer than two canaries took part, or fewer than two did not.
  """
  took_part = np.asarray(took_part, bool)
  inside, outside = scores[took_part], scores[~took_part]
  if min(len(inside), len(outside)) < 2:
    raise ValueError(
      'took_part must have at least two canaries of each kind. Found'
      f' {len(inside)} that took part and {len(outside)} that did not.'
    )
  rng = rng or np.random.default_rng(0)

  def resampled(values: np.ndarray) -> np.ndarray:
    drawn = rng.choice(values, (_RESAMPLES, len(values)))
    return np.concatenate([[values], drawn])  # The sample itself comes first.

  inside, outside = resampled(inside), resampled(outside)
  # Use one standard deviation for both: a chance difference would distinguish
  # the tails.
  variance = (inside.var(axis=1) + outside.var(axis=1)) / 2
  spread = np.sqrt(np.maximum(variance, 1e-12))
  shift = (inside.mean(axis=1) - outside.mean(axis=1)) / spread
  found = gaussian_epsilon(np.maximum(shift, 0), delta)
  low, high = np.quantile(found[1:], [0.025, 0.975])
  return Estimate(float(found[0]), float(low), float(high))
