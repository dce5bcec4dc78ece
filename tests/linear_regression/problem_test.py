"""Tests for pda_fed.linear_regression.problem."""

import dataclasses

import numpy as np
from pda_fed import linear_regression
from pda_fed.linear_regression import problem
import pytest


def _arrays(regression_problem):
  for field in dataclasses.fields(regression_problem):
    value = getattr(regression_problem, field.name)
    yield value if isinstance(value, np.ndarray) else value.toarray()


# 203 and 504 are no multiples of 5: the first "fifth" is rounded down.
@pytest.mark.parametrize('p', [200, 203, 504, 1000])
def test_features(p):
  result = problem.simulate(p, 50, 30, seed=0)
  assert result.private_features.shape == (50, p)
  assert result.public_features.shape == (30, p)
  for features in (result.private_features, result.public_features):
    assert features.has_sorted_indices and features.has_canonical_format
    dense = features.toarray()
    assert set(np.unique(dense)) == {0.0, 0.05}
    nonzero = dense != 0
    np.testing.assert_array_equal(nonzero[:, : p // 5].sum(axis=1), 40)
    np.testing.assert_array_equal(nonzero[:, p // 5 :].sum(axis=1), 80)
  assert result.theta_star.shape == (p,)
  assert result.private_responses.shape == (50,)
  assert result.public_responses.shape == (30,)


def test_every_feature_is_equally_likely_within_its_group():
  num_samples = 40_000
  features = problem.simulate(250, num_samples, 1, seed=0).private_features
  frequency = np.asarray((features != 0).mean(axis=0)).ravel()
  for group, chance in ((frequency[:50], 40 / 50), (frequency[50:], 80 / 200)):
    deviation = np.sqrt(chance * (1 - chance) / num_samples)
    assert np.abs(group - chance).max() < 5 * deviation


def test_pairs_of_features_are_equally_likely():
  # Catches subsets that are right one feature at a time, such as intervals.
  num_samples = 40_000
  rng = np.random.default_rng(0)
  subsets = problem._draw_subsets(rng, num_samples, 6, 3)
  member = np.zeros((num_samples, 6))
  np.put_along_axis(member, subsets, 1.0, axis=1)
  together = member.T @ member / num_samples
  # 3 of 6: each with chance 1/2, each pair with chance 1/2 * 2/5.
  expected = np.where(np.eye(6, dtype=bool), 1 / 2, 1 / 5)
  np.testing.assert_allclose(together, expected, atol=0.0125)


def test_theta_star_and_responses_are_normal():
  theta_star = problem.simulate(20_000, 1, 1, seed=0).theta_star
  assert abs(theta_star.mean()) < 5 / np.sqrt(20_000)
  assert abs(theta_star.var() - 1) < 5 * np.sqrt(2 / 20_000)
  result = problem.simulate(500, 20_000, 20_000, seed=0)
  for features, responses in (
    (result.private_features, result.private_responses),
    (result.public_features, result.public_responses),
  ):
    noise = responses - features @ result.theta_star
    assert abs(noise.mean()) < 5 * 0.1 / np.sqrt(20_000)
    assert abs(noise.var() / 0.01 - 1) < 5 * np.sqrt(2 / 20_000)


def test_a_seed_means_one_problem():
  first, again, other = (
    problem.simulate(300, 20, 30, seed=s) for s in (3, 3, 4)
  )
  arrays = zip(_arrays(first), _arrays(again), _arrays(other), strict=True)
  for one, same, different in arrays:
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, different)


def test_private_and_public_samples_are_independent():
  result = problem.simulate(300, 20, 20, seed=0)
  assert (result.private_features != result.public_features).nnz > 0
  more_public = problem.simulate(300, 20, 25, seed=0)
  np.testing.assert_array_equal(
    result.private_responses, more_public.private_responses
  )
  more_private = problem.simulate(300, 25, 20, seed=0)
  np.testing.assert_array_equal(
    result.public_responses, more_private.public_responses
  )


def test_hessian_is_singular_for_any_number_of_samples():
  # The module's docstring promises so; the mirror map then must say what to do.
  result = problem.simulate(200, 1, 2000, seed=0)
  direction = np.where(np.arange(200) < 40, 2.0, -1.0)
  np.testing.assert_allclose(
    result.public_features @ direction, 0.0, atol=1e-12
  )
  with pytest.raises(ValueError, match='regularization must be larger'):
    linear_regression.QuadraticMirrorMap(
      result.public_features, result.public_responses
    )


@pytest.mark.parametrize(
  ('overrides', 'error', 'message'),
  [
    ({'p': 199}, ValueError, 'p must be at least 200. Found 199'),
    ({'p': 500.0}, TypeError, 'p must be an integer. Found 500.0'),
    ({'num_private': 0}, ValueError, 'num_private .* Found 0'),
    ({'num_public': 0}, ValueError, 'num_public .* Found 0'),
    ({'seed': -1}, ValueError, 'seed .* Found -1'),
  ],
)
def test_bad_arguments(overrides, error, message):
  arguments = {'p': 500, 'num_private': 5, 'num_public': 5, 'seed': 0}
  with pytest.raises(error, match=message):
    problem.simulate(**{**arguments, **overrides})
