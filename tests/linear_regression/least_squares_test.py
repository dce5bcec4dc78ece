"""Tests for pda_fed.linear_regression.least_squares."""

import numpy as np
from pda_fed import jax as pda_jax
from pda_fed.linear_regression import least_squares
import pytest
from scipy import sparse


def _samples(num_samples=20, p=4, density=1.0):
  rng = np.random.default_rng(0)
  features = rng.standard_normal((num_samples, p))
  features *= rng.random((num_samples, p)) < density
  features[3] = 0.0  # Has no gradient.
  return features, rng.standard_normal(num_samples), rng


# One in twenty non-zeros keeps the matrix sparse inside, all make it dense.
@pytest.mark.parametrize(('p', 'density'), [(4, 1.0), (200, 0.05)])
@pytest.mark.parametrize('as_sparse', [False, True])
def test_equals_clipped_gradients_of_single_samples(p, density, as_sparse):
  features, responses, rng = _samples(p=p, density=density)
  thetas = rng.standard_normal((p, 3))
  clip_norms = np.array([0.1, 1.0, 100.0])
  samples = least_squares.LeastSquares(
    sparse.csc_matrix(features) if as_sparse else features, responses
  )
  found = samples.clipped_gradient(thetas, clip_norms)
  for i, clip_norm in enumerate(clip_norms):
    residuals = features @ thetas[:, i] - responses
    gradients = residuals[:, None] * features
    # The one clipping of the project, on gradients that exist.
    clipped = pda_jax.clip_by_norm({'theta': gradients}, clip_norm)
    expected = np.asarray(clipped.updates['theta']).sum(axis=0)
    np.testing.assert_allclose(found[:, i], expected, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
    samples.full_batch()(thetas, 7, clip_norms), found / 20
  )


@pytest.mark.parametrize('clip_norm', [0.01, 1.0])
def test_a_sample_changes_the_sum_by_at_most_the_clip_norm(clip_norm):
  features, responses, rng = _samples()
  features[5] *= 1e4
  theta = rng.standard_normal((4, 1))
  whole = least_squares.LeastSquares(features, responses)
  for i in range(20):
    rest = least_squares.LeastSquares(
      np.delete(features, i, axis=0), np.delete(responses, i)
    )
    change = whole.clipped_gradient(theta, clip_norm) - rest.clipped_gradient(
      theta, clip_norm
    )
    assert np.linalg.norm(change) <= clip_norm * (1 + 1e-9)


def test_float32():
  features, responses, rng = _samples()
  thetas = rng.standard_normal((4, 2))
  exact = least_squares.LeastSquares(features, responses)
  rounded = least_squares.LeastSquares(features, responses, dtype=np.float32)
  for function in (
    lambda s: s.clipped_gradient(thetas, 1.0),
    lambda s: s.mean_squared_error(thetas),
  ):
    assert function(rounded).dtype == np.float64
    np.testing.assert_allclose(function(rounded), function(exact), rtol=1e-5)


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
@pytest.mark.parametrize('size', [4.5e-23, 1e-40, 1e-160, 2.5e-162, 0.0, 1e18])
def test_features_of_any_size_are_clipped(size, dtype):
  # Squares of these features have few digits or none, in one type or the other.
  response = 1e38 if dtype == np.float32 else 1e300
  samples = least_squares.LeastSquares([[size] * 4], [response], dtype=dtype)
  gradient = samples.clipped_gradient(np.zeros((4, 1)), 1.0)
  assert np.linalg.norm(gradient) <= 1 + 1e-6


@pytest.mark.parametrize(
  ('row', 'response', 'dtype'),
  [
    ([1.5e308, 1.5e308], 0.0, np.float64),
    ([3e38, 3e38], 0.0, np.float32),
    ([1e-39, 0.0], 3e38, np.float32),
    ([1e-320, 0.0], 1e300, np.float64),
  ],
)
def test_a_finite_sample_spoils_no_sum(row, response, dtype):
  features, responses, _ = _samples(p=2)
  thetas = np.array([[2.0], [-2.0]])  # Infinity minus infinity.
  rest = least_squares.LeastSquares(features, responses, dtype=dtype)
  whole = least_squares.LeastSquares(
    np.vstack([features, row]), np.append(responses, response), dtype=dtype
  )
  change = whole.clipped_gradient(thetas, 0.03) - rest.clipped_gradient(
    thetas, 0.03
  )
  assert np.linalg.norm(change) <= 0.03 * (1 + 1e-4)


def test_mean_squared_error():
  samples = least_squares.LeastSquares([[1.0, 0.0], [0.0, 2.0]], [1.0, 1.0])
  thetas = np.array([[1.0, 0.0], [0.5, 0.0]])
  np.testing.assert_allclose(samples.mean_squared_error(thetas), [0.0, 1.0])


def test_bad_data():
  with pytest.raises(ValueError, match=r'responses .*\(2,\).* Found \(3,\)'):
    least_squares.LeastSquares(np.eye(2), np.ones(3))
  with pytest.raises(ValueError, match='features must be finite'):
    least_squares.LeastSquares([[np.nan]], [1.0])
  with pytest.raises(ValueError, match='responses must be finite'):
    least_squares.LeastSquares([[1.0]], [np.inf])
  with pytest.raises(ValueError, match=r'at least one row.* Found .*\(0, 2\)'):
    least_squares.LeastSquares(np.zeros((0, 2)), [])
  with pytest.raises(ValueError, match=r'must be a matrix .* Found .*\(3,\)'):
    least_squares.LeastSquares(np.ones(3), np.ones(3))
