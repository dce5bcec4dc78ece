import dataclasses
import math

import numpy as np
from pda_fed import privacy
import pytest
from scipy import stats

from tests.privacy.plans import PLAN as _PLAN


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


@pytest.mark.parametrize(
  'sampling, mechanism, expected',
  [
    ('poisson', 'gaussian', [471, 563, 880, 951]),
    ('fixed_size', 'gaussian', [411, 471, 563, 880, 951]),
    ('epochs', 'tree', [37, 153, 365, 600, 910]),
  ],
)
def test_a_seed_means_the_same_cohort_everywhere(sampling, mechanism, expected):
  # Both engines, and every version of numpy, must draw these.
  plan = dataclasses.replace(
    _PLAN, expected_cohort=5, sampling=sampling, mechanism=mechanism
  )
  assert plan.cohort(3, seed=1).tolist() == expected


def test_large_seeds_do_not_run_into_rounds():
  # As one list of 32-bit words, (seed 7 + 5 * 2^32, round 0) is (7, 5).
  assert not np.array_equal(
    _PLAN.cohort(5, seed=7), _PLAN.cohort(0, seed=7 + (5 << 32))
  )


def test_an_empty_cohort_is_a_cohort():
  plan = dataclasses.replace(_PLAN, population=3, expected_cohort=0.01)
  assert len(plan.cohort(0, seed=0)) == 0


def test_poisson_cohort_sizes_are_binomial():
  plan = dataclasses.replace(_PLAN, population=40, expected_cohort=8)
  sizes = [len(plan.cohort(t, seed=5)) for t in range(4000)]
  law = stats.binom(40, 0.2)
  # Bins of at least 40 expected; the tails are taken together.
  edges = [-1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 40]
  observed = np.histogram(sizes, np.array(edges) + 0.5)[0]
  expected = 4000 * np.diff(law.cdf(edges))
  assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_users_are_drawn_alike():
  plan = dataclasses.replace(_PLAN, population=50, expected_cohort=10)
  counts = np.zeros(50)
  for t in range(4000):
    counts[plan.cohort(t, seed=2)] += 1
  expected = 4000 * 0.2
  chi2 = np.sum((counts - expected) ** 2) / (expected * 0.8)
  assert stats.chi2(50).sf(chi2) > 1e-3


@pytest.mark.parametrize('sampling', ['fixed_size', 'fixed_size_as_poisson'])
def test_fixed_size_cohorts(sampling):
  plan = dataclasses.replace(_PLAN, sampling=sampling)
  for t in range(5):
    cohort = plan.cohort(t, seed=1)
    assert len(set(cohort)) == len(cohort) == 50
  assert not np.array_equal(plan.cohort(0, 1), plan.cohort(1, 1))
  assert plan.approximate == (sampling == 'fixed_size_as_poisson')


def test_epochs_take_every_user_once():
  plan = dataclasses.replace(
    _PLAN,
    population=25,
    expected_cohort=10,
    sampling='epochs',
    mechanism='tree',
    delta=1e-2,
  )
  assert plan.rounds_per_epoch == 3
  epochs = [
    [plan.cohort(t, seed=1) for t in range(start, start + 3)]
    for start in (0, 3)
  ]
  for cohorts in epochs:
    assert [len(c) for c in cohorts] == [10, 10, 5]
    assert sorted(np.concatenate(cohorts)) == list(range(25))
  assert not np.array_equal(epochs[0][0], epochs[1][0])


def test_adaptive_clipping_shares_the_noise():
  plan = dataclasses.replace(
    _PLAN, adaptive_clipping=privacy.AdaptiveClipping(count_stddev=2.0)
  )
  # Two Gaussian queries of multipliers a and b cost 1/sqrt(1/a^2 + 1/b^2); the
  # count's sensitivity is a half, so its multiplier is 4.
  a, b = plan.update_noise_multiplier, 4.0
  assert (a**-2 + b**-2) ** -0.5 == pytest.approx(1.0)
  assert a > 1.0
  default = dataclasses.replace(
    _PLAN, adaptive_clipping=privacy.AdaptiveClipping()
  )
  assert default.count_stddev == 2.5
  assert _PLAN.update_noise_multiplier == 1.0


def test_statement():
  assert _PLAN.statement(1.23401) == (
    'User-level DP, add or remove one user: (epsilon, delta) = (1.235, 1e-05)'
    ' by PLD; Poisson cohorts of 50 out of 1,000 users, noise multiplier 1.'
  )
  approximate = dataclasses.replace(_PLAN, sampling='fixed_size_as_poisson')
  assert 'approximate' in approximate.statement(1.0)
  bare = dataclasses.replace(_PLAN, noise_multiplier=0.0)
  assert bare.statement(float('inf')).startswith('No user-level DP: epsilon is')
  replaced = dataclasses.replace(_PLAN, sampling='fixed_size', unit='example')
  assert 'replace one example' in replaced.statement(1.0)


def test_a_large_delta_is_warned_of():
  with pytest.warns(UserWarning, match='delta=0.01 is above 1/population'):
    dataclasses.replace(_PLAN, delta=0.01)


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
    (dict(clip_norm=1e60), r'clip_norm must be in \[1e-18, 1e\+18\]'),
    (dict(clip_norm=1e-30), r'clip_norm must be in \[1e-18, 1e\+18\]'),
    (dict(sampling='shuffle'), 'sampling must be one of'),
    (dict(mechanism='laplace'), 'mechanism must be one of'),
    (dict(mechanism='tree'), "mechanism must be 'tree' exactly when"),
    (dict(sampling='epochs'), "mechanism must be 'tree' exactly when"),
    (
      dict(sampling='fixed_size', expected_cohort=2.5),
      'expected_cohort must be an integer',
    ),
    (
      dict(
        mechanism='tree',
        sampling='epochs',
        adaptive_clipping=privacy.AdaptiveClipping(),
      ),
      'adaptive_clipping must be None',
    ),
    (
      dict(adaptive_clipping=privacy.AdaptiveClipping(count_stddev=0.4)),
      'noise_multiplier must be below twice the count_stddev',
    ),
  ],
)
def test_bad_plans(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(_PLAN, **change)


def test_bad_rounds():
  with pytest.raises(ValueError, match='round_num must be at least 0'):
    _PLAN.cohort(-1, seed=0)


@pytest.mark.parametrize(
  'change, message',
  [
    (dict(target_quantile=1.5), 'target_quantile'),
    (dict(learning_rate=0.0), 'learning_rate'),
    (dict(count_stddev=-1.0), 'count_stddev'),
  ],
)
def test_bad_adaptive_clipping(change, message):
  with pytest.raises(ValueError, match=message):
    privacy.AdaptiveClipping(**change)


@pytest.mark.parametrize(
  'value, digits, text',
  [
    (6.05321, 4, '6.054'),
    (6.05, 4, '6.05'),
    (1e-5, 4, '1e-05'),
    (0.0012341, 4, '0.001235'),
    (12345.6, 4, '1.235e+04'),
    (9.99951, 4, '10'),
    (0.6767381, 6, '0.676739'),
    (0.0, 4, '0'),
    (math.inf, 4, 'inf'),
  ],
)
def test_printed_numbers_are_never_too_small(value, digits, text):
  assert privacy.round_up(value, digits) == text
