import dataclasses
import math

import numpy as np
from pda_fed import privacy
import pytest

_PLAN = privacy.PrivacyPlan(
  population=1000,
  expected_cohort=50,
  rounds=100,
  delta=1e-5,
  noise_multiplier=1.0,
  clip_norm=0.3,
)


def test_sampling_rate():
  assert _PLAN.sampling_rate == 0.05


def test_cohorts_repeat_by_seed_and_round():
  np.testing.assert_array_equal(
    _PLAN.cohort(3, seed=1), _PLAN.cohort(3, seed=1)
  )
  assert not np.array_equal(_PLAN.cohort(3, seed=1), _PLAN.cohort(4, seed=1))
  assert not np.array_equal(_PLAN.cohort(3, seed=1), _PLAN.cohort(3, seed=2))


def test_cohorts_are_independent_draws_of_users():
  sizes = [len(_PLAN.cohort(t, seed=0)) for t in range(2000)]
  # Binomial(1000, 0.05): mean 50, variance 47.5; five standard errors.
  assert abs(np.mean(sizes) - 50) < 5 * math.sqrt(47.5 / 2000)
  assert 0.85 * 47.5 < np.var(sizes) < 1.15 * 47.5
  cohort = _PLAN.cohort(0, seed=0)
  assert (np.diff(cohort) > 0).all()
  assert cohort.min() >= 0 and cohort.max() < 1000


def test_an_empty_cohort_is_a_cohort():
  plan = dataclasses.replace(_PLAN, population=3, expected_cohort=0.01)
  assert len(plan.cohort(0, seed=0)) == 0


@pytest.mark.parametrize(
  'change, message',
  [
    (dict(population=0), 'population must be at least 1'),
    (dict(expected_cohort=0), 'expected_cohort must be positive'),
    (dict(expected_cohort=1001), r'expected_cohort must be in \[0, 1000\]'),
    (dict(rounds=0), 'rounds must be at least 1'),
    (dict(delta=0), r'delta must be in \(0, 1\)'),
    (dict(delta=1.0), r'delta must be in \(0, 1\)'),
    (dict(noise_multiplier=-0.1), 'noise_multiplier must be non-negative'),
    (dict(noise_multiplier=math.nan), 'noise_multiplier must be'),
    (dict(clip_norm=0.0), 'clip_norm must be positive'),
    (dict(clip_norm=math.inf), 'clip_norm must be positive'),
  ],
)
def test_bad_plans(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(_PLAN, **change)


def test_bad_rounds():
  with pytest.raises(ValueError, match='round_num must be at least 0'):
    _PLAN.cohort(-1, seed=0)
