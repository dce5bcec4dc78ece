"""Privacy of a hyperparameter search that releases its best run.

Training K times and publishing the best run leaks more than one run: the choice
itself depends on private data. If K is random and secret, the leak is bounded
and grows only slowly with the number of runs. The search draws K, makes K
independent runs with settings drawn from the same grid, and releases only the
best run. The bounds are Theorems 2 and 6 of "Hyperparameter Tuning with Renyi
Differential Privacy" (Papernot and Steinke, ICLR 2022, arXiv:2110.03620), which
extends "Private Selection from Private Candidates" (Liu and Talwar, STOC 2019,
arXiv:1811.07971).
"""

import dataclasses
import functools
import math
from typing import get_args, Literal

from dp_accounting.rdp import rdp_privacy_accountant
import numpy as np
from pda_fed.common import validate
from pda_fed.privacy import accounting
from pda_fed.privacy import plan as plan_lib
from scipy import optimize

Distribution = Literal['negative_binomial', 'poisson']
DISTRIBUTIONS = get_args(Distribution)

# The largest log(1/gamma) for which all values are finite floats.
_LARGEST_LOG = 700.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateSearch:
  """The distribution of K, the number of runs of a private search.

  Example:

    >>> import numpy as np
    >>> search = PrivateSearch(distribution='poisson', expected_runs=20)
    >>> search.draw(np.random.default_rng(0))
    22

  Attributes:
    distribution: 'negative_binomial', truncated so that K is at least 1; or
      'poisson', whose K is concentrated around its mean and may be 0. Then the
      search releases nothing.
    expected_runs: The mean of K: above 1 for 'negative_binomial', at least 1
      for 'poisson'.
    eta: The shape of 'negative_binomial', above -1: 1 is the geometric
      distribution, 0 the logarithmic one. A smaller eta costs less privacy and
      spreads K more widely. Must be 0 for 'poisson', which has no shape.
  """

  distribution: Distribution = 'negative_binomial'
  expected_runs: float
  eta: float = 0.0

  def __post_init__(self):
    validate.one_of(DISTRIBUTIONS, distribution=self.distribution)
    validate.positive(expected_runs=self.expected_runs)
    validate.between(-1, math.inf, eta=self.eta)
    if self.distribution == 'poisson':
      validate.in_range(1, math.inf, expected_runs=self.expected_runs)
      if self.eta != 0:
        raise ValueError(
          f"eta must be 0 with distribution='poisson'. Found {self.eta!r}."
        )
      return
    validate.between(1, math.inf, expected_runs=self.expected_runs)
    if self._log_mean(_LARGEST_LOG) < math.log(self.expected_runs):
      raise ValueError(
        f'expected_runs must be at most'
        f' {math.exp(self._log_mean(_LARGEST_LOG)):.4g} with eta={self.eta:g}.'
        f' Found {self.expected_runs!r}.'
      )

  def _log_mean(self, log_inverse_gamma: float) -> float:
    """Returns the logarithm of the mean of K, given log(1/gamma)."""
    # eta (1 - gamma) / (gamma (1 - gamma^eta)), or its limit at eta = 0.
    exponent = self.eta * log_inverse_gamma
    share = -math.expm1(-exponent) / exponent if exponent else 1.0
    numerator = log_inverse_gamma + math.log(-math.expm1(-log_inverse_gamma))
    return numerator - math.log(log_inverse_gamma) - math.log(share)

  @property
  def log_inverse_gamma(self) -> float:
    """log(1/gamma) of the negative binomial with mean `expected_runs`.

    Raises:
      ValueError: If the distribution is 'poisson', which has no gamma.
    """
    if self.distribution == 'poisson':
      raise ValueError(
        "distribution must be 'negative_binomial' for a gamma. Found 'poisson'."
      )
    target = math.log(self.expected_runs)
    return optimize.brentq(
      lambda x: self._log_mean(x) - target, 1e-300, _LARGEST_LOG, xtol=1e-300
    )

  def draw(self, rng: np.random.Generator) -> int:
    """Draws K, the number of runs.

    Keep K secret: the bounds hold only against an adversary who does not know
    it.

    Args:
      rng: A generator with a secret, unpredictable seed, such as
        `np.random.default_rng()`.

    Returns:
      K; 0 is possible only with 'poisson'.
    """
    if self.distribution == 'poisson':
      return int(rng.poisson(self.expected_runs))
    log_inverse_gamma = self.log_inverse_gamma
    decay = -math.expm1(-log_inverse_gamma)  # 1 - gamma.
    exponent = self.eta * log_inverse_gamma
    # P(1) = eta (1 - gamma) / (gamma^-eta - 1), or its limit at eta = 0.
    share = exponent / math.expm1(exponent) if exponent else 1.0
    probability = decay * share / log_inverse_gamma
    left, runs = rng.random() - probability, 1
    while left >= 0 and probability > 0:
      probability *= decay * (runs + self.eta) / (runs + 1)
      left -= probability
      runs += 1
    return runs


def _check_plan(plan: plan_lib.PrivacyPlan) -> None:
  """Raises if a search with this plan has no meaningful guarantee."""
  if plan.noise_multiplier == 0:
    raise ValueError(
      'noise_multiplier must be above 0 for a private search: without noise,'
      f' epsilon is infinite. Found {plan.noise_multiplier!r}.'
    )
  if plan.delta > 1 / plan.population:
    raise ValueError(
      'delta must be at most 1/population for a private search,'
      f' {1 / plan.population:.3g}. Found {plan.delta!r}: use a smaller delta.'
    )


@functools.lru_cache(maxsize=16)
def _run_deltas(plan: plan_lib.PrivacyPlan) -> np.ndarray:
  """Returns the delta of one run at Theorem 6's epsilon of each RDP order."""
  orders, rdp = accounting.run_rdp(plan, plan.rounds)
  epsilons = np.log1p(1 / (orders - 1))
  by_rdp = np.array(
    [rdp_privacy_accountant.compute_delta(orders, rdp, e)[0] for e in epsilons]
  )
  rough = accounting._rdp_epsilon(plan, plan.rounds, plan.delta)
  is_large = rough > accounting._PLD_LARGEST_EPSILON
  if plan.accountant != 'pld' or is_large:
    return by_rdp
  _, interval = accounting._pld_epsilon_and_interval(
    plan, plan.rounds, plan.delta
  )
  pld = accounting._round_pld(
    plan.noise_multiplier, plan.sampling_rate, interval
  ).self_compose(plan.rounds)
  error = max(
    accounting._FFT_ERROR_LEAST, plan.rounds * accounting._FFT_ERROR_PER_ROUND
  )
  order = np.argsort(epsilons)  # PLD needs sorted epsilons.
  by_pld = np.empty(len(epsilons))
  by_pld[order] = pld.get_delta_for_epsilon(list(epsilons[order]))
  return np.minimum(by_pld + error, by_rdp)


def _search_rdp(
  plan: plan_lib.PrivacyPlan, search: PrivateSearch
) -> tuple[np.ndarray, np.ndarray]:
  """Returns RDP orders and values of the best of K runs."""
  orders, rdp = accounting.run_rdp(plan, plan.rounds)
  log_mean = math.log(search.expected_runs)
  if search.distribution == 'poisson':
    # Theorem 6: a run must be (log(1 + 1 / (order - 1)), delta)-DP.
    more = search.expected_runs * _run_deltas(plan)
  else:
    # Theorem 2, at the best second order. Order 1 adds no RDP of the run.
    log_inverse_gamma = search.log_inverse_gamma
    seconds = (1 - 1 / orders) * rdp + log_inverse_gamma / orders
    more = (1 + search.eta) * min(log_inverse_gamma, np.min(seconds))
  return orders, rdp + more + log_mean / (orders - 1)


def search_epsilon(
  plan: plan_lib.PrivacyPlan, search: PrivateSearch, num_searches: int = 1
) -> float:
  """Returns the epsilon of a whole search that releases its best run.

  Every run of the search must follow the plan. Clipping norm and learning rates
  may vary between runs, as they do not change epsilon. Rounds, cohort and noise
  must not vary.

  Example:

    >>> from pda_fed import privacy
    >>> plan = privacy.PrivacyPlan(
    ...   population=342_477, expected_cohort=100, rounds=1600, delta=1e-6,
    ...   noise_multiplier=0.6, clip_norm=0.3,
    ... )
    >>> search = PrivateSearch(distribution='poisson', expected_runs=20)
    >>> round(plan.epsilon(), 2), round(search_epsilon(plan, search), 2)
    (0.94, 3.02)

  Args:
    plan: The plan of each run.
    search: The distribution of the number of runs.
    num_searches: Number of independent searches that are released together, for
      example one for each method in a comparison.

  Returns:
    The epsilon of everything that is released, at the plan's delta.

  Raises:
    ValueError: If the plan has no noise, its delta is above 1/population, or
      `num_searches` is below 1.
  """
  validate.instances(PrivateSearch, search=search)
  validate.integers(1, num_searches=num_searches)
  _check_plan(plan)
  orders, rdp = _search_rdp(plan, search)
  found, _ = rdp_privacy_accountant.compute_epsilon(
    orders, num_searches * rdp, plan.delta
  )
  return float(found)
