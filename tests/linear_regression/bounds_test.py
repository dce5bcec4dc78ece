"""Tests for pda_fed.linear_regression.bounds."""

import math

from pda_fed.linear_regression import bounds
import pytest

# With it log(1/delta) is 1.
_DELTA = math.exp(-1)


def test_chi_by_hand():
  # max{1/0.25, 0.5 * 16} = 8; axes: 1/(0.0625 * 16) = 1 and 1/(0.25 * 16).
  assert bounds.chi([0.25, 0.5], 16, _DELTA) == pytest.approx(8 * 1.25)
  # max{4, 0.5 * 4} = 4; both axes are cut to 1.
  assert bounds.chi([0.25, 0.5], 4, _DELTA) == pytest.approx(4 * 2)


def test_bounds_by_hand():
  settings = dict(num_private=100, epsilon=0.5, delta=math.exp(-2))
  pda = bounds.excess_risk([0.25, 0.5], num_public=64, **settings)
  # log(1/delta) = 2; chi = max{4, 32} * (2/(0.0625*64) + 2/(0.25*64)) = 20.
  assert pda.privacy == pytest.approx(20 * 2 / 50**2)
  assert pda.sampling == pytest.approx(4 / 100)
  sgd = bounds.excess_risk([0.25, 0.5], **settings)
  assert sgd.privacy == pytest.approx(2 * 4 * 2 / 50**2)
  assert sgd.sampling == pda.sampling


@pytest.mark.parametrize('p', [10, 1000])
def test_isotropic_example(p):
  # "chi evaluates to p^2", as DP-SGD.
  eigenvalues = bounds.isotropic(p)
  assert bounds.chi(eigenvalues, p, _DELTA) == pytest.approx(p**2)
  for num_public in (p, None):
    found = bounds.excess_risk(
      eigenvalues,
      num_public=num_public,
      num_private=1e6,
      epsilon=1.0,
      delta=_DELTA,
    )
    assert found.privacy == pytest.approx(p**2 / 1e12)
    assert found.sampling == pytest.approx(p / 1e6)


@pytest.mark.parametrize(
  ('c', 'exponent'),
  # 2.5 is DP-SGD's; from c = 2 to 2.5 the text says 4.5 - c.
  [(1.5, 2.5), (2.0, 2.5), (2.25, 2.25), (2.4, 2.1), (2.5, 2.0), (3.0, 2.0)],
)
def test_flat_direction_example(c, exponent):
  found = bounds.growth_exponent(
    lambda p: bounds.chi(bounds.one_flat_direction(p), p**c, _DELTA)
  )
  assert found == pytest.approx(exponent, abs=0.005)


def test_dp_sgd_with_a_flat_direction():
  found = bounds.growth_exponent(
    lambda p: (
      bounds.excess_risk(
        bounds.one_flat_direction(p), num_private=1, epsilon=1, delta=_DELTA
      ).privacy
    )
  )
  assert found == pytest.approx(2.5)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'eigenvalues': [0.5, 0.0]}, r'eigenvalues must be in \(0, 1\].* 0\.0'),
    ({'eigenvalues': [0.5, 1.5]}, r'eigenvalues .* to 1\.5'),
    ({'eigenvalues': []}, r'eigenvalues .* shape \(0,\)'),
    ({'num_public': 0}, 'num_public must be positive'),
    ({'num_public': 101}, 'num_public must be at most num_private, 100'),
    ({'epsilon': 0}, 'epsilon must be positive'),
    ({'delta': 1}, r'delta must be in \(0, 1\)'),
  ],
)
def test_bad_arguments(change, message):
  settings = {
    'eigenvalues': [0.5],
    'num_public': 10,
    'num_private': 100,
    'epsilon': 1.0,
    'delta': 1e-5,
  }
  with pytest.raises(ValueError, match=message):
    bounds.excess_risk(**{**settings, **change})
