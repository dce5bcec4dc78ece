"""Tests for pda_fed.linear_regression.algorithm_1."""

import math

import numpy as np
from pda_fed import linear_regression
from pda_fed.linear_regression import algorithm_1
import pytest


def _private(p=4, seed=0):
  rng = np.random.default_rng(seed)
  features = rng.standard_normal((50, p))
  return linear_regression.LeastSquares(features, rng.standard_normal(50))


def _setting(**changes):
  settings = dict(
    learning_rate=0.1, clip_norm=1.0, num_steps=5, noise_stddev=0.2
  )
  return linear_regression.Setting(**{**settings, **changes})


def _run(psi, settings, seed=0, private=None, **kwargs):
  private = _private() if private is None else private
  return linear_regression.mirror_descent(
    psi, private.full_batch(), settings, np.random.default_rng(seed), **kwargs
  )


def _public(p=4, **kwargs):
  rng = np.random.default_rng(9)
  features = rng.standard_normal((20, p)) * np.geomspace(1, 3, p)
  return linear_regression.QuadraticMirrorMap(
    features, rng.standard_normal(20), **kwargs
  )


def test_equals_algorithm_1_written_out():
  psi, private = _public(), _private()
  rng = np.random.default_rng(5)
  theta = psi.minimizer()
  iterates = []
  for _ in range(5):
    gradient = private.clipped_gradient(theta[:, None], 1.0)[:, 0] / 50
    noisy = gradient + 0.2 * rng.standard_normal(4)
    noisy = np.round(noisy * 2**15) / 2**15  # 2^-15 is below 0.2 * 2^-12.
    theta = psi.step(theta, noisy, 0.1)
    iterates.append(theta)
  found = _run(psi, [_setting()], seed=5)
  np.testing.assert_allclose(found.average[:, 0], np.mean(iterates, axis=0))
  np.testing.assert_allclose(found.last[:, 0], theta)


def test_side_by_side_equals_one_by_one():
  warm = linear_regression.EuclideanMirrorMap(_public().minimizer())
  groups = [
    (
      _public(),
      [
        _setting(num_steps=2),
        _setting(num_steps=7, clip_norm=0.1, noise_stddev=0.02),
        _setting(num_steps=4, learning_rate=lambda t: 0.3 / (1 + t)),
        _setting(num_steps=7, noise_stddev=0.0),
      ],
    ),
    (warm, [_setting(num_steps=8)]),
  ]
  together = algorithm_1.side_by_side(
    groups, _private().full_batch(), np.random.default_rng(0)
  )
  for (psi, settings), result in zip(groups, together, strict=True):
    for i, setting in enumerate(settings):
      alone = _run(psi, [setting])
      np.testing.assert_allclose(result.average[:, i], alone.average[:, 0])
      np.testing.assert_allclose(result.last[:, i], alone.last[:, 0])


def test_pda_is_warm_dp_sgd_where_the_hessian_is_a_multiple_of_the_identity():
  features = 3.0 * np.eye(4)
  responses = np.arange(4.0)
  for regularization in (0.0, 0.5):
    psi = linear_regression.QuadraticMirrorMap(
      features, responses, regularization=regularization
    )
    warm = linear_regression.EuclideanMirrorMap(psi.minimizer())
    settings = [_setting(num_steps=50), _setting(learning_rate=0.5)]
    pda, sgd = _run(psi, settings), _run(warm, settings)
    np.testing.assert_allclose(pda.average, sgd.average, rtol=0, atol=1e-14)
    np.testing.assert_allclose(pda.last, sgd.last, rtol=0, atol=1e-14)


def test_without_noise_it_finds_least_squares():
  rng = np.random.default_rng(0)
  features, responses = rng.standard_normal((50, 4)), rng.standard_normal(50)
  private = linear_regression.LeastSquares(features, responses)
  expected, *_ = np.linalg.lstsq(features, responses, rcond=None)
  setting = _setting(
    noise_stddev=0.0, clip_norm=1e6, num_steps=3000, learning_rate=0.5
  )
  for psi in (
    _public(regularization=0.1),
    linear_regression.EuclideanMirrorMap(np.zeros(4)),
  ):
    found = _run(psi, [setting], private=private)
    np.testing.assert_allclose(found.last[:, 0], expected, atol=1e-8)


def test_noise_has_its_standard_deviation():
  # No private gradient, one step of rate 1: what moves theta is the noise.
  p = 20_000
  psi = linear_regression.EuclideanMirrorMap(np.zeros(p))
  found = linear_regression.mirror_descent(
    psi,
    lambda thetas, step, clip_norms: np.zeros_like(thetas),
    [_setting(num_steps=1, learning_rate=1.0, noise_stddev=0.3)],
    np.random.default_rng(0),
  )
  assert abs(found.last.std() / 0.3 - 1) < 5 / math.sqrt(2 * p)


@pytest.mark.parametrize(
  'constraint',
  [
    linear_regression.ConstraintSet(radius=0.2),
    linear_regression.ConstraintSet(public_gradient_norm=0.3),
    linear_regression.ConstraintSet(radius=0.4, public_gradient_norm=0.3),
  ],
)
def test_every_iterate_is_in_the_constraint_set(constraint):
  psi = _public()
  seen = []
  private = _private().full_batch()

  def gradient_fn(thetas, step, clip_norms):
    seen.extend(thetas.T)
    return private(thetas, step, clip_norms)

  setting = _setting(noise_stddev=5.0, num_steps=10)
  found = linear_regression.mirror_descent(
    psi, gradient_fn, [setting], np.random.default_rng(0), constraint=constraint
  )
  # C is convex: the average is in it, too.
  for theta in [*seen, found.last[:, 0], found.average[:, 0]]:
    if constraint.radius is not None:
      assert np.linalg.norm(theta) <= constraint.radius * (1 + 1e-9)
    if constraint.public_gradient_norm is not None:
      norm = np.linalg.norm(psi.gradient(theta)) / psi.scale
      assert norm <= constraint.public_gradient_norm * (1 + 1e-9)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'learning_rate': 0.0}, 'learning_rate must be positive'),
    ({'clip_norm': -1.0}, 'clip_norm must be positive'),
    ({'num_steps': 0}, 'num_steps must be at least 1'),
    ({'noise_stddev': -0.1}, 'noise_stddev must be non-negative'),
  ],
)
def test_bad_settings(changes, message):
  with pytest.raises(ValueError, match=message):
    _setting(**changes)


def test_bad_arguments():
  with pytest.raises(ValueError, match='settings must not be empty'):
    _run(_public(), [])
  with pytest.raises(ValueError, match=r'learning_rate\(2\) must be positive'):
    _run(_public(), [_setting(learning_rate=lambda t: 2.0 - t)])
