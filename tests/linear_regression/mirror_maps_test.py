"""Tests for pda_fed.linear_regression.mirror_maps."""

import numpy as np
from pda_fed.linear_regression import constraints
from pda_fed.linear_regression import mirror_maps
import pytest

_BALL = constraints.ConstraintSet(radius=0.4)


def test_euclidean():
  psi = mirror_maps.EuclideanMirrorMap([3.0, 4.0])
  np.testing.assert_array_equal(psi.minimizer(), [3.0, 4.0])
  np.testing.assert_array_equal(
    psi.step([1.0, 2.0], [1.0, -1.0], 0.5), [0.5, 2.5]
  )
  np.testing.assert_allclose(psi.minimizer(_BALL), [0.24, 0.32])
  np.testing.assert_allclose(
    psi.step([3.0, 4.0], [0.0, 0.0], 0.5, _BALL), [0.24, 0.32]
  )
  with pytest.raises(ValueError, match='start must be a vector'):
    mirror_maps.EuclideanMirrorMap([[1.0]])


def test_bound_on_the_public_gradient_needs_a_quadratic():
  dual = constraints.ConstraintSet(public_gradient_norm=1.0)
  psi = mirror_maps.EuclideanMirrorMap(np.zeros(3))
  with pytest.raises(ValueError, match='public_gradient_norm must be None'):
    psi.step(np.zeros(3), np.ones(3), 0.1, dual)
