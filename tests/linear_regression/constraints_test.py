"""Tests for pda_fed.linear_regression.constraints, by mirror steps."""

import math

import hypothesis
from hypothesis import strategies as st
import numpy as np
from pda_fed.linear_regression import constraints
from pda_fed.linear_regression import quadratic
import pytest
from scipy import optimize

_BALL = constraints.ConstraintSet(radius=0.5)
_DUAL = constraints.ConstraintSet(public_gradient_norm=0.2)
_TIGHT = constraints.ConstraintSet(radius=0.1)
_BOTH = constraints.ConstraintSet(radius=0.5, public_gradient_norm=0.2)


def _mirror_map(seed, p=5):
  rng = np.random.default_rng(seed)
  features = rng.standard_normal((30, p)) * np.geomspace(0.5, 2, p)
  responses = features @ rng.uniform(-0.3, 0.3, p) + 0.1 * rng.standard_normal(
    30
  )
  psi = quadratic.QuadraticMirrorMap(features, responses, regularization=0.1)
  return psi, rng


def _public_gradient(psi, theta):
  return psi.gradient(theta) / psi.scale


def _violation(psi, theta, constraint):
  values = [-1.0]
  if constraint.radius is not None:
    values.append(np.linalg.norm(theta) / constraint.radius - 1)
  if constraint.public_gradient_norm is not None:
    norm = np.linalg.norm(_public_gradient(psi, theta))
    values.append(norm / constraint.public_gradient_norm - 1)
  return max(values)


def _by_scipy(psi, theta_t, gradient, rate, constraint):
  """argmin of the Bregman objective, by a general solver."""
  start = psi.gradient(theta_t)

  def objective(theta):
    bregman = psi.value(theta) - psi.value(theta_t) - start @ (theta - theta_t)
    return rate * gradient @ theta + bregman

  def jacobian(theta):
    return rate * gradient + psi.gradient(theta) - start

  def slack(theta):
    values = [1.0]
    if constraint is not None and constraint.radius is not None:
      values.append(constraint.radius**2 - theta @ theta)
    if constraint is not None and constraint.public_gradient_norm is not None:
      square = np.sum(_public_gradient(psi, theta) ** 2)
      values.append(constraint.public_gradient_norm**2 - square)
    return np.array(values)

  return optimize.minimize(
    objective,
    np.zeros(theta_t.size),
    jac=jacobian,
    method='SLSQP',
    constraints={'type': 'ineq', 'fun': slack},
    options={'ftol': 1e-18, 'maxiter': 1000},
  ).x


@pytest.mark.parametrize(
  'constraint',
  [None, _BALL, _DUAL, _BOTH],
  ids=['none', 'ball', 'gradient', 'both'],
)
@pytest.mark.parametrize('seed', range(4))
def test_step_equals_scipy(seed, constraint):
  psi, rng = _mirror_map(seed)
  theta, gradient = rng.standard_normal((2, 5))
  step = psi.step(theta, gradient, 0.7, constraint)
  expected = _by_scipy(psi, theta, gradient, 0.7, constraint)
  np.testing.assert_allclose(step, expected, atol=1e-6)


@pytest.mark.parametrize('constraint', [_BALL, _DUAL, _BOTH, _TIGHT])
def test_start_equals_scipy(constraint):
  psi, _ = _mirror_map(7)
  # Psi is, up to a constant, the divergence from its minimizer.
  expected = _by_scipy(psi, psi.minimizer(), np.zeros(5), 1.0, constraint)
  np.testing.assert_allclose(psi.minimizer(constraint), expected, atol=1e-6)


@hypothesis.settings(max_examples=60)
@hypothesis.given(
  seed=st.integers(0, 10_000),
  radius=st.floats(0.05, 5),
  bound=st.floats(0.05, 5),
  size=st.floats(1e-3, 1e3),
)
def test_projection_is_feasible_and_optimal(seed, radius, bound, size):
  psi, rng = _mirror_map(seed)
  constraint = constraints.ConstraintSet(
    radius=radius, public_gradient_norm=bound
  )
  start, gradient = size * rng.standard_normal((2, 5))
  try:
    projected = psi.step(start, gradient, 0.5, constraint)
  except ValueError as e:
    hypothesis.assume('empty' not in str(e))
    raise
  assert _violation(psi, projected, constraint) < 1e-9
  # The variational inequality, against points of C.
  free = psi.step(start, gradient, 0.5)
  slope = psi.gradient(projected) - psi.gradient(free)
  for other in (
    psi.minimizer(constraint),
    psi.step(-start, gradient, 0.5, constraint),
  ):
    assert slope @ (other - projected) >= -1e-7 * max(1.0, psi.scale * size)


def test_inside_nothing_moves():
  psi, rng = _mirror_map(0)
  wide = constraints.ConstraintSet(radius=1e3, public_gradient_norm=1e3)
  theta, gradient = rng.standard_normal((2, 5))
  np.testing.assert_allclose(
    psi.step(theta, gradient, 0.1, wide), psi.step(theta, gradient, 0.1)
  )


def test_blocks_are_columns():
  psi, rng = _mirror_map(0)
  thetas, gradients = rng.standard_normal((2, 5, 3))
  block = psi.step(thetas, gradients, [0.1, 0.2, 0.3], _BOTH)
  for i, rate in enumerate((0.1, 0.2, 0.3)):
    alone = psi.step(thetas[:, i], gradients[:, i], rate, _BOTH)
    np.testing.assert_allclose(block[:, i], alone, atol=1e-12)


def test_constraint_of_the_theorem():
  found = constraints.theorem_constraint(
    radius=2.0, constant=3.0, delta=math.exp(-4), num_public=100
  )
  assert found.radius == 2.0
  assert found.public_gradient_norm == pytest.approx(3 * math.sqrt(4 / 100))


def test_bad_sets():
  with pytest.raises(ValueError, match='radius or public_gradient_norm'):
    constraints.ConstraintSet()
  with pytest.raises(ValueError, match='radius must be positive'):
    constraints.ConstraintSet(radius=-1.0)
  psi, _ = _mirror_map(0)
  empty = constraints.ConstraintSet(radius=1e-3, public_gradient_norm=1e-3)
  with pytest.raises(ValueError, match='constraint set is empty'):
    psi.minimizer(empty)
