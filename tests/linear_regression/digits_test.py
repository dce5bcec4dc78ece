"""Tests for pda_fed.linear_regression.digits and FirstOrderMirrorMap."""

import dataclasses
import sys

import numpy as np
from pda_fed import linear_regression
from pda_fed import schedules
from pda_fed.linear_regression import digits
import pytest

_CONFIG = linear_regression.DigitsConfig(
  num_trials=2,
  exact_steps=(3,),
  learning_rates=(30.0,),
  clip_norms=(0.1, 0.3),
  mirror_ridges=(1e-2,),
  schedule_factors=(2.0,),
)


@pytest.fixture(scope='module')
def outcomes():
  return [
    outcome
    for trial in range(2)
    for outcome in linear_regression.run_digits_trial(_CONFIG, trial)
  ]


def test_equal_cost(outcomes):
  for trial in range(2):
    costs = {
      o.method: o.cost for o in outcomes if o.trial == trial and o.steps > 0
    }
    assert set(costs) == {'exact', 'warm', 'first-order'}
    # Others are never given less, nor more than one step of theirs.
    assert 0 <= costs['warm'] - costs['exact'] <= 1297
    assert 0 <= costs['first-order'] - costs['exact'] <= 1397
    steps = {o.method: o.steps for o in outcomes if o.trial == trial}
    assert steps['exact'] == 3
    assert steps['warm'] >= steps['first-order'] > 3


def test_private_digits_help(outcomes):
  summaries = {
    s.method: s for s in linear_regression.summarize_digits(outcomes)
  }
  public = summaries.pop('public')
  assert public.test_accuracy > 0.8
  for summary in summaries.values():
    assert summary.private_loss < public.private_loss
    assert summary.half_width > 0


def test_trials_repeat(outcomes):
  again = linear_regression.run_digits_trial(_CONFIG, 1)
  assert again == [o for o in outcomes if o.trial == 1]


def test_features_have_norm_at_most_one():
  features, labels = digits.load_digits()
  assert features.shape == (1797, 65) and labels.shape == (1797,)
  assert np.linalg.norm(features, axis=1).max() <= 1


def test_without_scikit_learn(monkeypatch):
  monkeypatch.setitem(sys.modules, 'sklearn', None)
  with pytest.raises(linear_regression.MissingDataError, match='pip install'):
    linear_regression.run_digits_trial(_CONFIG, 0)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'num_trials': 0}, 'num_trials must be at least 1'),
    ({'num_public': 1500}, r'num_public \+ num_test must be less than 1797'),
    ({'epsilon': -1.0}, 'epsilon must be positive'),
    ({'epsilon': 80.0}, r'epsilon must be in \[0, 73\.6'),
    ({'delta': 0.0}, 'delta must be in'),
    ({'exact_steps': ()}, 'exact_steps must be non-empty'),
    ({'clip_norms': (0.1, 0.1)}, 'clip_norms must .* no duplicates'),
    ({'noise': 'none'}, 'noise must be one of'),
    ({'mirror_ridges': (0.0,)}, 'mirror_ridges must be positive'),
    ({'exact_steps': (0,)}, 'exact_steps must be at least 1'),
  ],
)
def test_bad_config(changes, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(_CONFIG, **changes)


def _psi():
  return linear_regression.SmoothMirrorMap(
    lambda theta: np.sum(theta**2) / 2, lambda theta: theta, num_coefficients=2
  )


def test_first_order_step_is_equation_3():
  # alpha = 1, 1/sqrt(2), 0.
  psi = linear_regression.FirstOrderMirrorMap(
    _psi(), np.ones(2), schedules.cosine(2)
  )
  theta, gradient = np.array([1.0, -2.0]), np.array([3.0, 5.0])
  np.testing.assert_array_equal(psi.minimizer(), np.ones(2))
  root = np.sqrt(0.5)
  for t, mixed in (
    (0, gradient),
    (1, root * gradient + (1 - root) * theta),
    (2, theta),
  ):
    np.testing.assert_allclose(
      psi.step(theta, gradient, 0.1, None, t), theta - 0.1 * mixed
    )
  assert psi.num_evaluations == 3


def test_first_order_with_alpha_1_is_dp_sgd():
  settings = [
    linear_regression.Setting(
      learning_rate=0.1, clip_norm=1.0, num_steps=4, noise_stddev=0.3
    )
  ] * 2
  private = linear_regression.LeastSquares(np.eye(2), np.ones(2))
  results = [
    linear_regression.mirror_descent(
      psi, private.full_batch(), settings, np.random.default_rng(0)
    ).average
    for psi in (
      linear_regression.FirstOrderMirrorMap(
        _psi(), np.ones(2), schedules.constant(1.0)
      ),
      linear_regression.EuclideanMirrorMap(np.ones(2)),
    )
  ]
  np.testing.assert_array_equal(*results)
