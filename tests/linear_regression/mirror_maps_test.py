"""Tests for pda_fed.linear_regression.mirror_maps."""

import numpy as np
from pda_fed.linear_regression import constraints
from pda_fed.linear_regression import mirror_maps
from pda_fed.linear_regression import quadratic
import pytest
from scipy import optimize

_BALL = constraints.ConstraintSet(radius=0.4)


def _quadratic(seed=0):
  rng = np.random.default_rng(seed)
  psi = quadratic.QuadraticMirrorMap(
    rng.standard_normal((30, 4)) * [1, 1, 2, 3], rng.standard_normal(30)
  )
  return psi, rng


def _exponential(**kwargs):
  """Psi = sum of exp(theta) - theta, whose gradient has an inverse."""
  return mirror_maps.SmoothMirrorMap(
    lambda theta: np.sum(np.exp(theta) - theta),
    lambda theta: np.exp(theta) - 1,
    num_coefficients=3,
    **kwargs,
  )


@pytest.mark.parametrize('constraint', [None, _BALL])
def test_smooth_equals_quadratic(constraint):
  exact, rng = _quadratic()
  smooth = mirror_maps.SmoothMirrorMap(
    exact.value, exact.gradient, num_coefficients=4, debug=True
  )
  np.testing.assert_allclose(
    smooth.minimizer(constraint), exact.minimizer(constraint), atol=1e-7
  )
  theta, gradient = rng.standard_normal((2, 4))
  np.testing.assert_allclose(
    smooth.step(theta, gradient, 0.3, constraint),
    exact.step(theta, gradient, 0.3, constraint),
    atol=1e-7,
  )


def test_step_in_closed_form():
  psi = _exponential()
  theta, gradient = np.array([0.1, -0.5, 1.0]), np.array([1.0, 0.2, -2.0])
  # grad Psi(theta_{t+1}) = grad Psi(theta_t) - eta g.
  expected = np.log(np.exp(theta) - 0.1 * gradient)
  np.testing.assert_allclose(
    psi.step(theta, gradient, 0.1), expected, atol=1e-8
  )
  assert psi.num_evaluations > 1

  given = _exponential(
    bregman_step=lambda t, g, eta: np.log(np.exp(t) - eta * g)
  )
  np.testing.assert_array_equal(given.step(theta, gradient, 0.1), expected)
  assert given.num_evaluations == 0


def test_constrained_smooth_step_equals_scipy():
  psi = _exponential()
  theta, gradient = np.array([0.1, -0.5, 1.0]), np.array([1.0, 0.2, -2.0])
  target = psi.gradient(theta) - 0.1 * gradient
  expected = optimize.minimize(
    lambda t: psi.value(t) - target @ t,
    np.zeros(3),
    jac=lambda t: psi.gradient(t) - target,
    method='SLSQP',
    constraints={'type': 'ineq', 'fun': lambda t: 0.4**2 - t @ t},
    options={'ftol': 1e-18},
  ).x
  np.testing.assert_allclose(
    psi.step(theta, gradient, 0.1, _BALL), expected, atol=1e-7
  )


@pytest.mark.parametrize('psi', [_exponential(), _quadratic()[0]])
def test_blocks_are_columns(psi):
  p = psi.minimizer().size
  thetas, gradients = np.random.default_rng(0).uniform(-0.5, 0.5, (2, p, 2))
  block = psi.step(thetas, gradients, np.array([0.1, 0.2]))
  for i, rate in enumerate((0.1, 0.2)):
    alone = psi.step(thetas[:, i], gradients[:, i], rate)
    np.testing.assert_allclose(block[:, i], alone, atol=1e-12)


def test_euclidean():
  psi = mirror_maps.EuclideanMirrorMap([3.0, 4.0])
  np.testing.assert_array_equal(psi.minimizer(), [3.0, 4.0])
  assert psi.value([0.0, 0.0]) == 12.5
  mirror_maps.check_gradient(psi.value, psi.gradient, [1.0, -1.0])
  np.testing.assert_array_equal(
    psi.step([1.0, 2.0], [1.0, -1.0], 0.5), [0.5, 2.5]
  )
  np.testing.assert_allclose(psi.minimizer(_BALL), [0.24, 0.32])
  np.testing.assert_allclose(
    psi.step([3.0, 4.0], [0.0, 0.0], 0.5, _BALL), [0.24, 0.32]
  )
  with pytest.raises(ValueError, match='start must be a vector'):
    mirror_maps.EuclideanMirrorMap([[1.0]])


@pytest.mark.parametrize(
  'psi', [_exponential(), mirror_maps.EuclideanMirrorMap(np.zeros(3))]
)
def test_bound_on_the_public_gradient_needs_a_quadratic(psi):
  dual = constraints.ConstraintSet(public_gradient_norm=1.0)
  with pytest.raises(ValueError, match='public_gradient_norm must be None'):
    psi.step(np.zeros(3), np.ones(3), 0.1, dual)


def test_wrong_gradients_are_found_in_debug_mode():
  settings = dict(num_coefficients=3, debug=True)
  value = lambda t: np.sum(t**2) / 2  # noqa: E731
  mirror_maps.SmoothMirrorMap(value, lambda t: t, **settings).minimizer()
  for wrong in (lambda t: 1.001 * t, lambda t: t + 0.1, lambda t: t * np.nan):
    psi = mirror_maps.SmoothMirrorMap(value, wrong, **settings)
    with pytest.raises(ValueError, match='must be the gradient of value'):
      psi.step(np.array([1.0, 2.0, -1.0]), np.ones(3), 0.1)
  with pytest.raises(ValueError, match=r'shape \(3,\).*\(2,\)'):
    mirror_maps.check_gradient(value, lambda t: t[:2], np.zeros(3))


def test_a_concave_map_has_no_step():
  psi = mirror_maps.SmoothMirrorMap(
    lambda t: -(t @ t) / 2, lambda t: -t, num_coefficients=2, max_iterations=5
  )
  ball = constraints.ConstraintSet(radius=1.0)
  with np.errstate(all='ignore'):
    with pytest.raises(ValueError, match='value must be strictly convex'):
      psi.step(np.ones(2), np.ones(2), 0.1, ball)


def test_bad_arguments():
  with pytest.raises(ValueError, match='learning_rate must be positive'):
    _exponential().step(np.zeros(3), np.zeros(3), 0.0)
  with pytest.raises(ValueError, match='max_iterations must be at least 1'):
    _exponential(max_iterations=0)
