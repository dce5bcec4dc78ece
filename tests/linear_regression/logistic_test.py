"""Tests for pda_fed.linear_regression.logistic."""

import math

import numpy as np
from pda_fed import vectorized
from pda_fed.linear_regression import logistic
from pda_fed.linear_regression import mirror_maps
import pytest


def _samples(num_samples=15, num_features=4, num_classes=3):
  rng = np.random.default_rng(0)
  features = rng.standard_normal((num_samples, num_features))
  features[2] = 0.0
  labels = rng.integers(num_classes, size=num_samples)
  samples = logistic.LogisticRegression(features, labels, num_classes)
  return samples, features, labels, rng


def test_loss_by_hand():
  samples = logistic.LogisticRegression([[1.0], [2.0]], [0, 1], 2)
  # Equal logits: log 2 each. Logits (1, 0) and (2, 0) with labels 0 and 1.
  assert samples.loss(np.zeros(2)) == pytest.approx(math.log(2))
  expected = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(2))) / 2
  assert samples.loss(np.array([1.0, 0.0])) == pytest.approx(expected)
  assert samples.accuracy(np.array([1.0, 0.0])) == 0.5


def test_gradient():
  samples, *_, rng = _samples()
  theta = rng.standard_normal(samples.num_coefficients)
  mirror_maps.check_gradient(samples.loss, samples.gradient, theta)
  psi = samples.mirror_map(0.3, debug=True)
  mirror_maps.check_gradient(psi.value, psi.gradient, theta)
  # Debug mode checks the minimizer's start, too.
  np.testing.assert_allclose(psi.gradient(psi.minimizer()), 0.0, atol=1e-8)


def test_equals_clipped_gradients_of_single_samples():
  samples, features, labels, rng = _samples()
  thetas = rng.standard_normal((12, 3))
  clip_norms = np.array([0.05, 0.8, 100.0])
  found = samples.clipped_gradient(thetas, clip_norms)
  for i, clip_norm in enumerate(clip_norms):
    gradients = np.stack(
      [
        logistic.LogisticRegression(x[None], y[None], 3).gradient(thetas[:, i])
        for x, y in zip(features, labels, strict=True)
      ]
    )
    clipped = vectorized.clip_by_norm({'theta': gradients}, clip_norm)
    expected = np.asarray(clipped.updates['theta']).sum(axis=0)
    np.testing.assert_allclose(found[:, i], expected, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(found[:, 2] / 15, samples.gradient(thetas[:, 2]))
  np.testing.assert_allclose(
    samples.full_batch()(thetas, 0, clip_norms), found / 15
  )


def test_exact_step_by_inner_iterations():
  samples, *_, rng = _samples()
  psi = samples.mirror_map(0.1, tolerance=1e-10)
  theta, gradient = rng.standard_normal((2, 12))
  step = psi.step(theta, gradient, 0.2)
  # grad Psi(theta_{t+1}) = grad Psi(theta_t) - eta g.
  np.testing.assert_allclose(
    psi.gradient(step), psi.gradient(theta) - 0.2 * gradient, atol=1e-9
  )
  assert psi.num_evaluations > 3
  few = samples.mirror_map(0.1, tolerance=1e-10, max_iterations=1)
  few.step(theta, gradient, 0.2)
  assert few.num_evaluations < psi.num_evaluations


@pytest.mark.parametrize(
  ('features', 'labels', 'message'),
  [
    ([[1.0]], [0, 1], r'shapes \(1, 1\) and \(2,\)'),
    ([1.0], [0], r'shapes \(1,\)'),
    ([[np.nan]], [0], 'features must be finite'),
    ([[1.0]], [2], 'labels must be integers from 0 to 1'),
    ([[1.0]], [0.5], 'labels must be integers'),
  ],
)
def test_bad_samples(features, labels, message):
  with pytest.raises(ValueError, match=message):
    logistic.LogisticRegression(features, labels, 2)


def test_psi_must_be_strictly_convex():
  samples, *_ = _samples()
  with pytest.raises(ValueError, match='regularization must be positive'):
    samples.mirror_map(0.0)
