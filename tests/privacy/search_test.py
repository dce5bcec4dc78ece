"""Epsilon of searches, against the theorems written out by hand."""

import dataclasses
import math

import numpy as np
from pda_fed import privacy
import pytest
from scipy import special
from scipy import stats

from tests.privacy import plans

# All users in every round: the Gaussian mechanism, T times.
_SIGMA, _ROUNDS, _DELTA = 8.0, 4, 1e-5
_GAUSSIAN = privacy.PrivacyPlan(
  population=1000,
  expected_cohort=1000,
  rounds=_ROUNDS,
  delta=_DELTA,
  noise_multiplier=_SIGMA,
  clip_norm=1.0,
)
# Those of dp_accounting, of which every bound takes the best.
_ORDERS = np.array(
  [1 + x / 10 for x in range(1, 100)] + [*range(11, 64), 128, 256, 512, 1024]
)
_RDP = _ROUNDS * _ORDERS / (2 * _SIGMA**2)


def _search(distribution, expected_runs, eta=0.0):
  return privacy.PrivateSearch(
    distribution=distribution, expected_runs=expected_runs, eta=eta
  )


def _to_epsilon(rdp, delta=_DELTA):
  """Proposition 12 of arXiv:2004.00010."""
  a = _ORDERS
  return np.min(rdp + np.log1p(-1 / a) - np.log(delta * a) / (a - 1))


def _mean(eta, gamma):
  if eta == 0:
    return (1 / gamma - 1) / math.log(1 / gamma)
  return eta * (1 - gamma) / (gamma * (1 - gamma**eta))


@pytest.mark.parametrize('eta', [-0.5, 0.0, 1.0, 3.0])
@pytest.mark.parametrize('gamma', [0.9, 0.1, 0.01])
@pytest.mark.parametrize('num_searches', [1, 3])
def test_negative_binomial_is_theorem_2(eta, gamma, num_searches):
  search = _search('negative_binomial', _mean(eta, gamma), eta)
  assert math.exp(-search.log_inverse_gamma) == pytest.approx(gamma, rel=1e-9)
  second = min(
    math.log(1 / gamma),  # Order 1.
    np.min((1 - 1 / _ORDERS) * _RDP + math.log(1 / gamma) / _ORDERS),
  )
  expected = (
    _RDP + (1 + eta) * second + math.log(_mean(eta, gamma)) / (_ORDERS - 1)
  )
  assert privacy.search_epsilon(
    _GAUSSIAN, search, num_searches
  ) == pytest.approx(_to_epsilon(num_searches * expected), rel=1e-6)


def _gaussian_delta(epsilon, sigma):
  """Exact, arXiv:1805.06530: sensitivity 1."""
  a, b = 1 / (2 * sigma), epsilon * sigma
  return stats.norm.cdf(a - b) - math.exp(epsilon) * stats.norm.cdf(-a - b)


@pytest.mark.parametrize('mu', [1.0, 5.0, 50.0])
@pytest.mark.parametrize('num_searches', [1, 3])
def test_poisson_is_theorem_6(mu, num_searches):
  total = _SIGMA / math.sqrt(_ROUNDS)  # One mechanism for all rounds.
  deltas = [_gaussian_delta(math.log(a / (a - 1)), total) for a in _ORDERS]
  expected = _RDP + mu * np.array(deltas) + math.log(mu) / (_ORDERS - 1)
  found = privacy.search_epsilon(
    _GAUSSIAN, _search('poisson', mu), num_searches
  )
  # PLD is on a grid, whose error is on the safe side.
  exact = _to_epsilon(num_searches * expected)
  assert exact * (1 - 1e-9) <= found <= 1.002 * exact


def test_one_run_costs_one_run():
  of_run = plans.PLAN.epsilon(accountant='rdp')
  found = privacy.search_epsilon(
    plans.PLAN, _search('negative_binomial', 1 + 1e-6)
  )
  assert of_run <= found <= 1.0001 * of_run


@pytest.mark.parametrize('distribution', ['negative_binomial', 'poisson'])
class TestBoth:
  def test_more_runs_and_more_searches_cost_more(self, distribution):
    runs = [2, 5, 20, 100, 1000]
    found = [
      privacy.search_epsilon(plans.PLAN, _search(distribution, n)) for n in runs
    ]
    assert found == sorted(set(found))
    search = _search(distribution, 20)
    several = [
      privacy.search_epsilon(plans.PLAN, search, n) for n in (1, 2, 3, 6)
    ]
    assert several == sorted(set(several))
    assert several[1] < 2 * several[0]  # Composition beats addition.

  @pytest.mark.parametrize(
    'changes',
    [
      {'sampling': 'fixed_size', 'noise_multiplier': 4.0},
      {'sampling': 'epochs', 'mechanism': 'tree', 'noise_multiplier': 8.0},
      {
        'adaptive_clipping': privacy.AdaptiveClipping(),
        'noise_multiplier': 2.0,
      },
      {'noise_multiplier': 0.05},  # An epsilon that PLD does not compute.
    ],
  )
  def test_every_plan_has_an_epsilon(self, distribution, changes):
    plan = dataclasses.replace(plans.PLAN, **changes)
    of_run = plan.epsilon(accountant='rdp')
    found = privacy.search_epsilon(plan, _search(distribution, 10))
    assert of_run < found < math.inf

  def test_the_clip_changes_nothing(self, distribution):
    search = _search(distribution, 10)
    other = dataclasses.replace(plans.PLAN, clip_norm=3.0)
    assert privacy.search_epsilon(other, search) == privacy.search_epsilon(
      plans.PLAN, search
    )

  @pytest.mark.parametrize(
    'changes, words',
    [
      ({'noise_multiplier': 0.0}, 'noise_multiplier must be above 0'),
      ({'delta': 2e-3}, 'delta must be at most 1/population'),
    ],
  )
  @pytest.mark.filterwarnings('ignore:delta=')
  def test_plans_without_a_guarantee(self, distribution, changes, words):
    plan = dataclasses.replace(plans.PLAN, **changes)
    with pytest.raises(ValueError, match=words):
      privacy.search_epsilon(plan, _search(distribution, 10))
    with pytest.raises(ValueError, match='num_searches must be at least 1'):
      privacy.search_epsilon(plans.PLAN, _search(distribution, 10), 0)


def _probabilities(eta, gamma, most):
  """Definition 1 of arXiv:2110.03620, by logarithms."""
  k = np.arange(1, most + 1)
  if eta == 0:
    return (1 - gamma) ** k / (k * math.log(1 / gamma))
  logs = special.gammaln(k + eta) - special.gammaln(k + 1)
  scale = (gamma**-eta - 1) * special.gamma(eta)
  return np.exp(k * math.log(1 - gamma) + logs) / scale


@pytest.mark.parametrize('eta', [-0.5, 0.0, 1.0, 3.0])
def test_draws_of_the_negative_binomial(eta):
  search = _search('negative_binomial', 6.0, eta)
  rng = np.random.default_rng(0)
  draws = np.array([search.draw(rng) for _ in range(20_000)])
  assert draws.min() == 1
  probabilities = _probabilities(eta, math.exp(-search.log_inverse_gamma), 3000)
  assert probabilities.sum() == pytest.approx(1, abs=1e-6)
  assert np.arange(1, 3001) @ probabilities == pytest.approx(6.0, rel=1e-3)
  standard_error = draws.std() / math.sqrt(len(draws))
  assert draws.mean() == pytest.approx(6.0, abs=5 * standard_error)
  for k in (1, 2, 3, 5, 10):
    share, p = np.mean(draws == k), probabilities[k - 1]
    assert share == pytest.approx(p, abs=5 * math.sqrt(p / len(draws)))


def test_eta_of_1_is_geometric():
  search = _search('negative_binomial', 4.0, 1.0)
  assert math.exp(-search.log_inverse_gamma) == pytest.approx(1 / 4)


def test_draws_of_poisson():
  search = _search('poisson', 3.0)
  rng = np.random.default_rng(0)
  draws = np.array([search.draw(rng) for _ in range(20_000)])
  assert draws.mean() == pytest.approx(3.0, abs=0.07)
  assert draws.var() == pytest.approx(3.0, abs=0.2)
  assert np.mean(draws == 0) == pytest.approx(math.exp(-3), abs=0.01)
  with pytest.raises(ValueError, match="must be 'negative_binomial'"):
    search.log_inverse_gamma  # noqa: B018


@pytest.mark.parametrize(
  'settings, words',
  [
    ({'distribution': 'uniform'}, 'distribution must be one of'),
    ({'expected_runs': 1.0}, r'expected_runs must be in \(1, inf\). Found 1.0'),
    ({'expected_runs': 0.0}, 'expected_runs must be positive'),
    ({'expected_runs': math.inf}, 'expected_runs must be positive and finite'),
    ({'eta': -1.0}, r'eta must be in \(-1, inf\). Found -1.0'),
    ({'eta': math.nan}, r'eta must be in \(-1, inf\)'),
    ({'eta': -0.9999, 'expected_runs': 1e9}, 'expected_runs must be at most'),
    ({'distribution': 'poisson', 'expected_runs': 0.5}, 'Found 0.5'),
    ({'distribution': 'poisson', 'eta': 1.0}, 'eta must be 0'),
  ],
)
def test_bad_searches(settings, words):
  fields = {'distribution': 'negative_binomial', 'expected_runs': 10.0}
  with pytest.raises(ValueError, match=words):
    privacy.PrivateSearch(**(fields | settings))
