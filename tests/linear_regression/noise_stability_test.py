"""Tests for pda_fed.linear_regression.noise_stability."""

import math

import numpy as np
from pda_fed.linear_regression import mirror_maps
from pda_fed.linear_regression import noise_stability
from pda_fed.linear_regression import quadratic
import pytest

_SETTINGS = dict(learning_rate=0.3, noise_stddev=2.0)


def _directions(p, basis, rng):
  """Eigenvectors, then random unit vectors."""
  random = rng.standard_normal((p, 5))
  return np.concatenate(
    [basis, random / np.linalg.norm(random, axis=0)], axis=1
  )


def test_theorem_within_two_percent():
  p = 6
  rng = np.random.default_rng(0)
  features = rng.standard_normal((40, p)) * np.geomspace(1, 4, p)
  psi = quadratic.QuadraticMirrorMap(
    features, rng.standard_normal(40), regularization=0.1
  )
  eigenvalues, basis = np.linalg.eigh(psi.hessian())
  directions = _directions(p, basis, rng)
  theta, gradient = rng.standard_normal((2, p))
  # The standard error of a mean of half-normals is 0.75 / sqrt(samples): 0.2 %.
  found = noise_stability.simulated_displacement(
    psi, theta, gradient, directions, num_samples=150_000, rng=rng, **_SETTINGS
  )
  expected = [
    noise_stability.expected_displacement(eigenvalues, a, **_SETTINGS)
    for a in (basis.T @ directions).T
  ]
  np.testing.assert_allclose(found, expected, rtol=0.02)
  # In an eigen-direction: proportional to 1 / lambda.
  np.testing.assert_allclose(
    expected[:p], 0.3 * 2.0 * math.sqrt(2 / math.pi) / eigenvalues
  )
  assert max(expected[:p]) > 5 * min(expected[:p])


def test_dp_sgd_moves_equally_in_every_direction():
  rng = np.random.default_rng(0)
  found = noise_stability.simulated_displacement(
    mirror_maps.EuclideanMirrorMap(np.zeros(3)),
    np.ones(3),
    np.ones(3),
    _directions(3, np.eye(3), rng),
    num_samples=150_000,
    rng=rng,
    **_SETTINGS,
  )
  np.testing.assert_allclose(found, 0.6 * math.sqrt(2 / math.pi), rtol=0.02)


def test_bad_arguments():
  with pytest.raises(ValueError, match='eigenvalues must be positive'):
    noise_stability.expected_displacement([1.0, 0.0], [1.0, 0.0], **_SETTINGS)
  with pytest.raises(ValueError, match='learning_rate must be positive'):
    noise_stability.expected_displacement(
      [1.0], [1.0], learning_rate=0, noise_stddev=1.0
    )
