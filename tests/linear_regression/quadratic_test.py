"""Tests for pda_fed.linear_regression.quadratic."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
from pda_fed.linear_regression import problem
from pda_fed.linear_regression import quadratic
import pytest
from scipy import optimize
from scipy import sparse
from scipy import stats
from scipy.sparse import linalg as sparse_linalg


def _random_problem(seed, num_samples=30, p=6):
  rng = np.random.default_rng(seed)
  # Columns of different size, so that no step is a plain gradient step.
  features = rng.standard_normal((num_samples, p)) * np.geomspace(1, 5, p)
  return features, rng.standard_normal(num_samples), rng


def _inverse_eigenvalues(mirror_map):
  return np.linalg.eigvalsh(np.linalg.inv(mirror_map.hessian()))


def test_hand_computed():
  mirror_map = quadratic.QuadraticMirrorMap(
    np.diag(np.sqrt([2.0, 8.0])), np.sqrt([2.0, 2.0]), regularization=1.0
  )
  # X^T X / 2 + I = diag(1, 4) + I = diag(2, 5), whose 2 becomes 1.
  assert mirror_map.scale == pytest.approx(0.5)
  assert mirror_map.num_coefficients == 2
  np.testing.assert_allclose(mirror_map.hessian(), np.diag([1.0, 2.5]))
  # X^T y / 2 = (1, 2).
  np.testing.assert_allclose(mirror_map.minimizer(), [1 / 2, 2 / 5])
  assert mirror_map.value([0.0, 0.0]) == pytest.approx(0.5 * 4 / (2 * 2))
  np.testing.assert_allclose(mirror_map.gradient([0.0, 0.0]), [-0.5, -1.0])
  # At (1, 1) the residuals are 0 and sqrt 8 - sqrt 2 = sqrt 2.
  assert mirror_map.value([1.0, 1.0]) == pytest.approx(0.5 * (2 / 4 + 1))
  np.testing.assert_allclose(
    mirror_map.step([3.0, 4.0], [1.0, 1.0], 0.5), [2.5, 3.8]
  )


@pytest.mark.parametrize('p', [1, 5, 80])
def test_gradient_step_where_the_hessian_is_a_multiple_of_the_identity(p):
  rng = np.random.default_rng(0)
  features = 7.0 * np.eye(p)
  if p > 1:
    features = features @ stats.ortho_group.rvs(p, random_state=rng)
  mirror_map = quadratic.QuadraticMirrorMap(
    features, rng.standard_normal(p), regularization=0.2
  )
  theta, noisy_gradient = rng.standard_normal((2, p))
  np.testing.assert_allclose(
    mirror_map.step(theta, noisy_gradient, 0.7),
    theta - 0.7 * noisy_gradient,
    rtol=0,
    atol=1e-14,
  )


# 100 is above the size from which Lanczos is used.
@pytest.mark.parametrize('p', [1, 2, 6, 63, 64, 100])
@pytest.mark.parametrize('regularization', [0.0, 1e-3, 10.0])
def test_largest_eigenvalue_of_the_inverse_is_one(p, regularization):
  features, responses, _ = _random_problem(0, num_samples=150, p=p)
  mirror_map = quadratic.QuadraticMirrorMap(
    features, responses, regularization=regularization
  )
  assert _inverse_eigenvalues(mirror_map)[-1] == pytest.approx(1.0, rel=1e-9)


def test_largest_eigenvalue_of_the_inverse_is_one_in_the_simulation():
  data = problem.simulate(500, 1, 750, seed=0)
  mirror_map = quadratic.QuadraticMirrorMap(
    data.public_features, data.public_responses, regularization=1e-5
  )
  assert _inverse_eigenvalues(mirror_map)[-1] == pytest.approx(1.0, rel=1e-9)
  # X^T X is singular here, so the regularisation alone is the least eigenvalue.
  assert mirror_map.scale == pytest.approx(1e5, rel=1e-6)


def test_dense_eigensolver_where_lanczos_fails(monkeypatch):
  def fail(*args, **kwargs):
    raise sparse_linalg.ArpackNoConvergence('', [], [])

  features, responses, _ = _random_problem(0, num_samples=150, p=100)
  expected = quadratic.QuadraticMirrorMap(features, responses).scale
  monkeypatch.setattr(quadratic.sparse_linalg, 'eigsh', fail)
  scale = quadratic.QuadraticMirrorMap(features, responses).scale
  assert scale == pytest.approx(expected, rel=1e-9)


@hypothesis.settings(max_examples=50)
@hypothesis.given(
  seed=st.integers(0, 2**32),
  p=st.integers(1, 8),
  regularization=st.floats(1e-3, 1e3),
)
def test_properties(seed, p, regularization):
  features, responses, rng = _random_problem(seed, num_samples=5, p=p)
  mirror_map = quadratic.QuadraticMirrorMap(
    features, responses, regularization=regularization
  )
  vector, theta = rng.standard_normal((2, p))
  preconditioned = mirror_map.precondition(vector)
  np.testing.assert_allclose(
    mirror_map.hessian() @ preconditioned, vector, rtol=1e-6, atol=1e-8
  )
  # The noise never grows.
  norms = np.linalg.norm(preconditioned), np.linalg.norm(vector)
  assert norms[0] <= norms[1] * (1 + 1e-9)
  minimizer = mirror_map.minimizer()
  # Convex: a vanishing gradient makes it the minimizer.
  np.testing.assert_allclose(
    mirror_map.gradient(minimizer), 0.0, atol=1e-9 * mirror_map.scale
  )
  assert mirror_map.value(minimizer) <= mirror_map.value(theta)
  np.testing.assert_allclose(
    mirror_map.gradient(theta),
    optimize.approx_fprime(theta, mirror_map.value),
    rtol=1e-3,
    atol=1e-3 * mirror_map.scale,
  )


def test_sparse_and_dense_agree():
  data = problem.simulate(200, 1, 300, seed=0)
  dense, from_sparse = (
    quadratic.QuadraticMirrorMap(f, data.public_responses, regularization=0.1)
    for f in (data.public_features.toarray(), data.public_features)
  )
  assert dense.scale == pytest.approx(from_sparse.scale)
  theta = np.linspace(-1, 1, 200)
  for name in ('value', 'gradient', 'precondition'):
    np.testing.assert_allclose(
      getattr(dense, name)(theta), getattr(from_sparse, name)(theta)
    )
  np.testing.assert_allclose(dense.minimizer(), from_sparse.minimizer())


def test_later_changes_of_the_data_change_nothing():
  features, responses, _ = _random_problem(0)
  mirror_map = quadratic.QuadraticMirrorMap(features, responses)
  before = mirror_map.gradient(np.ones(6)), mirror_map.minimizer()
  features[:] = 0.0
  responses[:] = 0.0
  after = mirror_map.gradient(np.ones(6)), mirror_map.minimizer()
  np.testing.assert_array_equal(before, after)


def _duplicated_column(num_samples, p):
  features = np.random.default_rng(0).standard_normal((num_samples, p))
  features[:, -1] = features[:, 0] + features[:, 1]
  return features


@pytest.mark.parametrize(
  'features',
  [
    np.zeros((3, 2)),
    np.ones((5, 3)),
    np.random.default_rng(0).standard_normal((4, 5)),
    _duplicated_column(40, 5),
    _duplicated_column(200, 100),
    sparse.csr_matrix(_duplicated_column(200, 100)),
  ],
  ids=['zero', 'rank one', 'few rows', 'column', 'large', 'sparse'],
)
def test_singular_features(features):
  responses = np.ones(features.shape[0])
  with pytest.raises(ValueError, match=r'singular.*be larger.* Found 0\.0'):
    quadratic.QuadraticMirrorMap(features, responses)
  mirror_map = quadratic.QuadraticMirrorMap(
    features, responses, regularization=1e-3
  )
  assert mirror_map.scale == pytest.approx(1e3, rel=1e-6)


def test_too_little_regularization():
  with pytest.raises(ValueError, match=r'singular.*be larger.* Found 1e-30'):
    quadratic.QuadraticMirrorMap(
      np.ones((5, 3)), np.ones(5), regularization=1e-30
    )
  # All that counts is how it compares with the features.
  quadratic.QuadraticMirrorMap(
    np.zeros((5, 3)), np.ones(5), regularization=1e-30
  )


@pytest.mark.parametrize(
  ('features', 'responses', 'error', 'message'),
  [
    (np.ones(3), np.ones(3), ValueError, r'features .* shape \(3,\)'),
    (np.ones((3, 0)), np.ones(3), ValueError, r'features .*\(3, 0\)'),
    (np.ones((3, 2)), np.ones(2), ValueError, r'responses .*3,.* \(2,\)'),
    ([[np.nan]], [1.0], ValueError, 'features must be finite'),
    (sparse.csr_matrix([[np.inf]]), [1.0], ValueError, 'features .*finite'),
    ([[1.0]], [np.inf], ValueError, 'responses must be finite'),
    ([['a']], [1.0], TypeError, 'features .* dtype <U1'),
    ([[1.0]], [1j], TypeError, 'responses .* dtype complex128'),
  ],
)
def test_bad_data(features, responses, error, message):
  with pytest.raises(error, match=message):
    quadratic.QuadraticMirrorMap(features, responses)


def test_bad_steps():
  mirror_map = quadratic.QuadraticMirrorMap(np.eye(2), np.ones(2))
  good = np.zeros(2)
  with pytest.raises(ValueError, match=r'theta .*\(2,\).* Found \(3,\)'):
    mirror_map.step(np.zeros(3), good, 0.1)
  with pytest.raises(ValueError, match=r'noisy_gradient .* Found \(1, 2\)'):
    mirror_map.step(good, np.zeros((1, 2)), 0.1)
  with pytest.raises(ValueError, match='noisy_gradient must be finite'):
    mirror_map.step(good, [0.0, np.nan], 0.1)
  for rate in (0.0, -1.0, np.inf, np.nan):
    with pytest.raises(ValueError, match='learning_rate must be positive'):
      mirror_map.step(good, good, rate)
  with pytest.raises(ValueError, match=r'regularization .* Found -0\.1'):
    quadratic.QuadraticMirrorMap([[1.0]], [1.0], regularization=-0.1)
