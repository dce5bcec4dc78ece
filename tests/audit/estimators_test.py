"""Estimators of an audit against published numbers and known mechanisms."""

import functools

import numpy as np
from pda_fed import audit
from pda_fed import privacy
from pda_fed.audit import estimators
import pytest
from scipy import stats


@pytest.mark.parametrize(
  'canaries, guesses, right, delta, bound',
  [
    (1000, 1000, 1000, 0, 5.809),
    (1000, 100, 100, 0, 3.493),
    (1000, 100, 100, 1e-5, 3.465),
    (1000, 100, 95, 1e-5, 2.165),
    (500, 100, 60, 1e-5, 0.0507),
    (500, 35, 23, 1e-5, 0.0145),
  ],
)
def test_one_run_bound_is_the_published_one(
  canaries, guesses, right, delta, bound
):
  found = audit.one_run_bound(canaries, guesses, right, delta)
  assert found == pytest.approx(bound, rel=5e-3)


@pytest.mark.parametrize(
  'sigma, epsilon', [(4.22, 1.001), (1.54, 3.008), (0.541, 10.002)]
)
def test_epsilon_of_the_gaussian_mechanism(sigma, epsilon):
  found = audit.gaussian_epsilon(1 / sigma, 1e-6)
  assert found == pytest.approx(epsilon, abs=5e-4)


def test_one_run_bound_by_hand():
  # All of r guesses right: q^r = 0.05 without a delta.
  q = 0.05 ** (1 / 20)
  assert audit.one_run_bound(20, 20, 20, 0) == pytest.approx(
    np.log(q / (1 - q))
  )


@pytest.mark.parametrize('right', [0, 50])
def test_guessing_shows_nothing(right):
  assert audit.one_run_bound(100, 100, right, 1e-5) == 0


def _scores(shift, count, seed=0):
  rng = np.random.default_rng(seed)
  took_part = rng.random(count) < 0.5
  return rng.normal(size=count) + shift * took_part, took_part


@pytest.mark.parametrize('shift', [0.5, 1.0, 2.0])
def test_estimate_of_the_gaussian_mechanism_is_close(shift):
  scores, took_part = _scores(shift, 4000)
  truth = float(audit.gaussian_epsilon(shift, 1e-6))
  found = audit.one_shot_estimate(scores, took_part, 1e-6)
  assert found.epsilon == pytest.approx(truth, rel=0.15)
  assert found.low < found.epsilon < found.high
  assert found.low < truth < found.high


# Bounds of another implementation (ANCHORS: jax_privacy) for as many scores are
# 1.133, 2.312 and 4.396, with all guesses; choosing guesses shows more.
@pytest.mark.parametrize('shift, other', [(1, 1.133), (2, 2.312), (4, 4.396)])
def test_bounds_of_shifted_scores(shift, other):
  scores, took_part = _scores(shift, 20_000)
  truth = float(audit.gaussian_epsilon(shift, 1e-6))
  one_run = estimators.best_one_run_bound([scores], took_part, 1e-6)
  rates = [
    estimators.rates_bound([scores], took_part, 1e-6, is_gaussian=g)
    for g in (False, True)
  ]
  assert other < one_run < rates[1] < truth
  assert 0 < rates[0] < rates[1]


@pytest.mark.slow
def test_bounds_are_rarely_above_the_truth():
  truth = float(audit.gaussian_epsilon(1.0, 1e-3))
  wrong = 0
  for seed in range(60):
    scores, took_part = _scores(1.0, 400, seed)
    rates_bound = functools.partial(estimators.rates_bound, is_gaussian=True)
    for bound in (estimators.best_one_run_bound, rates_bound):
      wrong += bound([scores], took_part, 1e-3) > truth
  assert wrong <= 3


def test_scores_that_tell_nothing_show_nothing():
  scores, took_part = _scores(0.0, 1000, seed=3)
  assert estimators.best_one_run_bound([scores], took_part, 1e-5) == 0
  for is_gaussian in (False, True):
    assert not estimators.rates_bound(
      [scores], took_part, 1e-5, is_gaussian=is_gaussian
    )
  assert audit.one_shot_estimate(scores, took_part, 1e-5).epsilon < 0.5


def test_clopper_pearson_limit():
  found = estimators._lower_limit(37, 100, 0.01)
  assert stats.binom.sf(36, 100, found) == pytest.approx(0.01)
  assert estimators._lower_limit(0, 100, 0.01) == 0


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'num_guesses': 101}, 'num_guesses'),
    ({'num_right': 11}, 'num_right'),
    ({'delta': 2.0}, 'delta'),
    ({'significance': 0.0}, 'significance'),
  ],
)
def test_bad_numbers(changes, message):
  numbers = dict(num_canaries=100, num_guesses=10, num_right=5, delta=0.0)
  with pytest.raises(ValueError, match=message):
    audit.one_run_bound(**(numbers | changes))


def test_an_estimate_needs_both_kinds():
  with pytest.raises(ValueError, match='took_part'):
    audit.one_shot_estimate(np.zeros(5), np.ones(5, bool), 1e-5)


def test_few_rounds_of_few_users_raise_no_alarm():
  # One round that samples 1 %: taken for a Gaussian mechanism, error rates show
  # more than the run's epsilon at a delta this large.
  rng = np.random.default_rng(0)
  took_part = rng.random(60_000) < 0.5
  present = took_part & (rng.random(60_000) < 0.01)
  scores = 0.3 * rng.normal(size=60_000) + present
  plan = privacy.PrivacyPlan(
    population=100,
    expected_cohort=1,
    rounds=1,
    delta=1e-2,
    noise_multiplier=0.3,
    clip_norm=1.0,
  )
  proven = plan.epsilon()
  bounds = [
    estimators.rates_bound([scores], took_part, 1e-2, is_gaussian=g)
    for g in (False, True)
  ]
  assert bounds[0] <= proven < bounds[1]
