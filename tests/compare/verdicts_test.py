"""Intervals and verdicts: by hand, and how often they are right."""

import math

import numpy as np
from pda_fed.compare import verdicts
import pytest


def _by_seed(values):
  return dict(enumerate(map(float, values)))


def test_a_paired_interval_by_hand():
  # Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t of 2 degrees 4.303.
  found = verdicts.difference(_by_seed([11, 22, 33]), _by_seed([10, 20, 30]))
  assert (found.mean, found.num_seeds, found.paired) == (2.0, 3, True)
  half = 4.302653 / math.sqrt(3)
  assert found.low == pytest.approx(2 - half, rel=1e-6)
  assert found.high == pytest.approx(2 + half, rel=1e-6)
  assert not found.is_clear


def test_common_seeds_alone_count():
  a, b = {0: 1.0, 1: 2.0, 7: 99.0}, {1: 1.5, 0: 0.0, 8: -50.0}
  found = verdicts.difference(a, b)
  assert (found.mean, found.num_seeds, found.paired) == (0.75, 2, True)


def test_runs_without_common_seeds_have_welchs_interval():
  # Variances 1 and 4, three seeds each: error sqrt(5/3), and by Satterthwaite
  # (5/3)^2 / ((1/3)^2 / 2 + (4/3)^2 / 2) = 50/17 degrees of freedom.
  a, b = {0: 1.0, 1: 2.0, 2: 3.0}, {3: 10.0, 4: 12.0, 5: 14.0}
  found = verdicts.difference(a, b)
  assert (found.mean, found.num_seeds, found.paired) == (-10.0, 3, False)
  assert (found.high - found.low) / 2 == pytest.approx(
    3.219 * math.sqrt(5 / 3), rel=1e-3
  )
  assert found.high < 0 and not found.is_clear  # Clearly worse.


def test_one_seed_has_no_interval():
  for b in ({0: 2.0}, {1: 2.0}, {0: 2.0, 1: 3.0}):
    found = verdicts.difference({0: 5.0}, b)
    assert (found.low, found.high, found.num_seeds) == (None, None, 1)
    assert not found.is_clear
  assert verdicts.difference({0: 5.0}, {0: 2.0, 1: 3.0}).mean == 3.0


def test_what_does_not_vary():
  same = verdicts.difference(_by_seed([1, 2]), _by_seed([1, 2]))
  assert (same.mean, same.low, same.is_clear) == (0.0, 0.0, False)
  apart = verdicts.difference({0: 1.0, 1: 1.0}, {2: 0.5, 3: 0.5})
  assert (apart.mean, apart.low, apart.is_clear) == (0.5, 0.5, True)


@pytest.mark.parametrize('bad', [{}, {0: math.nan}, {0: 1.0, 1: math.inf}])
def test_values_must_be_finite(bad):
  with pytest.raises(ValueError, match='a must have at least one value'):
    verdicts.difference(bad, {0: 1.0})
  with pytest.raises(ValueError, match='b must have at least one value'):
    verdicts.difference({0: 1.0}, bad)


@pytest.mark.parametrize(
  ('num_seeds', 'errors'), [(3, 4.303), (4, 3.182), (5, 2.776), (10, 2.262)]
)
def test_how_many_standard_errors_are_clear(num_seeds, errors):
  # Values of mean 0 and standard error 1, shifted.
  values = np.linspace(-1, 1, num_seeds)
  values *= math.sqrt(num_seeds) / values.std(ddof=1)
  nothing = dict.fromkeys(range(num_seeds), 0.0)
  for shift, is_clear in ((errors - 0.01, False), (errors + 0.01, True)):
    found = verdicts.difference(_by_seed(values + shift), nothing)
    assert found.is_clear == is_clear
  # Three are clear from five seeds on.
  found = verdicts.difference(_by_seed(values + 3), nothing)
  assert found.is_clear == (num_seeds >= 5)


def _share_clear(num_seeds, shift, deviations=(1.0, 1.0), num_trials=4000):
  """How often an interval leaves out 0; both methods share effects of seeds."""
  rng = np.random.default_rng(20)
  shape = (num_trials, num_seeds)
  effect = 2 * rng.normal(size=shape)
  a, b = (effect + d * rng.normal(size=shape) for d in deviations)
  error = math.hypot(*deviations) / math.sqrt(num_seeds)
  found = [
    verdicts.difference(_by_seed(x + shift * error), _by_seed(y))
    for x, y in zip(a, b, strict=True)
  ]
  return np.mean([d.low > 0 or d.high < 0 for d in found])


@pytest.mark.parametrize('deviations', [(1, 1), (5, 1), (1, 0)])
def test_intervals_hold_whatever_the_variances(deviations):
  # The standard deviation of the share is 0.0034.
  assert _share_clear(3, 0, deviations) == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize(
  ('num_seeds', 'share'), [(3, 0.39), (4, 0.53), (5, 0.62), (10, 0.76)]
)
def test_how_often_three_standard_errors_are_found(num_seeds, share):
  # As docs/training.md says.
  assert _share_clear(num_seeds, 3, num_trials=1500) == pytest.approx(
    share, abs=0.04
  )


def test_a_winner_is_better_than_each_other():
  verdict = verdicts.decide(
    'accuracy',
    {
      'a': _by_seed([10, 11, 12]),
      'noisy': _by_seed([0, 9, 18]),
      'b': _by_seed([9.5, 10.5, 11.4]),
    },
  )
  assert verdict.best == 'a'
  assert list(verdict.leads) == ['b', 'noisy']
  assert verdict.leads['b'].is_clear and not verdict.leads['noisy'].is_clear
  # The sentence is about what keeps it from winning.
  assert not verdict.is_clear and verdict.rival == 'noisy'


def test_a_mean_over_other_seeds_makes_no_winner():
  # Over the seeds that both have, b is better.
  values = {'a': _by_seed([0.1, 0.101, 0.9]), 'b': _by_seed([0.2, 0.201])}
  verdict = verdicts.decide('accuracy', values)
  assert verdict.best == 'a' and verdict.leads['b'].high < 0
  assert not verdict.is_clear


def _simulated(rng, num_methods, num_seeds=3):
  effect = 2 * rng.normal(size=num_seeds)
  return {
    f'm{i}': _by_seed(effect + rng.normal(size=num_seeds))
    for i in range(num_methods)
  }


@pytest.mark.parametrize('num_methods', [2, 3, 4])
def test_equal_methods_have_no_clear_winner(num_methods):
  rng = np.random.default_rng(5)
  found = [
    verdicts.decide('loss', _simulated(rng, num_methods)) for _ in range(1000)
  ]
  hundreds = np.reshape([verdict.is_clear for verdict in found], (10, 100))
  assert np.mean(hundreds) < 0.065
  assert hundreds[0].sum() <= 7
