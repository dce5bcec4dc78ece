"""Tests for pda_fed.linear_regression.gaussian_width."""

import math

import numpy as np
from pda_fed.linear_regression import gaussian_width
import pytest


def _monte_carlo(support_fn, p, num_samples=20_000):
  return gaussian_width.monte_carlo(
    support_fn, p, num_samples=num_samples, rng=np.random.default_rng(0)
  )


def test_one_and_two_dimensions():
  # In one dimension every set is an interval: E |g|.
  line = math.sqrt(2 / math.pi)
  for function in ('l1_ball', 'l2_ball', 'linf_ball'):
    assert getattr(gaussian_width, function)(1) == pytest.approx(line)
  assert gaussian_width.ellipsoid([2.0]) == pytest.approx(2 * line)
  # E |g| = sqrt(pi/2); E max(|g_1|, |g_2|) = 2 / sqrt(pi).
  assert gaussian_width.l2_ball(2) == pytest.approx(math.sqrt(math.pi / 2))
  assert gaussian_width.l1_ball(2) == pytest.approx(2 / math.sqrt(math.pi))


@pytest.mark.parametrize('p', [2, 10, 300])
def test_formulas_and_monte_carlo_agree(p):
  radii = np.geomspace(0.01, 1, p)
  for formula, support_fn in (
    (gaussian_width.ellipsoid(radii), gaussian_width.ellipsoid_support(radii)),
    (gaussian_width.l1_ball(p), gaussian_width.l1_support),
    (gaussian_width.linf_ball(p), gaussian_width.linf_support),
  ):
    estimate, error = _monte_carlo(support_fn, p)
    assert error < 0.01 * formula
    assert abs(estimate - formula) < 4 * error


def test_ellipsoid_limits():
  for p in (3, 50):
    ball = gaussian_width.l2_ball(p, radius=3.0)
    assert gaussian_width.ellipsoid(np.full(p, 3.0)) == pytest.approx(ball)
  # A flat ellipsoid is a line; radii of 0 change nothing.
  line = gaussian_width.ellipsoid([1.0, 0.0, 0.0])
  assert line == pytest.approx(math.sqrt(2 / math.pi))
  radii = np.linspace(0.1, 1, 20)
  size = np.linalg.norm(radii)
  width = gaussian_width.ellipsoid(radii)
  assert math.sqrt(2 / math.pi) * size < width < size


def test_orders_of_magnitude_of_the_text():
  p = 100_000
  assert gaussian_width.l2_ball(p) == pytest.approx(math.sqrt(p), rel=1e-5)
  # Of radius 1/sqrt(p), so that the corners have the norm 1.
  cube = gaussian_width.linf_ball(p, 1 / math.sqrt(p))
  assert cube == pytest.approx(math.sqrt(2 / math.pi * p))
  # The text's "roughly log p" is an upper bound.
  assert gaussian_width.l1_ball(p) < math.log(p)
  assert gaussian_width.l1_ball(p) == pytest.approx(
    math.sqrt(2 * math.log(p)), rel=0.1
  )


def test_monte_carlo_in_chunks():
  estimate, error = _monte_carlo(gaussian_width.linf_support, 1_500_000, 5)
  assert error < 1e-3 * estimate
  assert estimate == pytest.approx(
    gaussian_width.linf_ball(1_500_000), rel=0.01
  )


def test_bad_arguments():
  with pytest.raises(ValueError, match='p must be at least 1'):
    gaussian_width.l1_ball(0)
  with pytest.raises(ValueError, match='radius must be positive'):
    gaussian_width.linf_ball(3, -1.0)
  for radii in ([-1.0, 1.0], [0.0], [np.inf], [[1.0]]):
    with pytest.raises(ValueError, match='radii must be a vector'):
      gaussian_width.ellipsoid(radii)
  with pytest.raises(ValueError, match='num_samples must be at least 2'):
    _monte_carlo(gaussian_width.l1_support, 3, 1)
