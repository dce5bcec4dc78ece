"""Mean and scale by hand, and of constants that rounding does not keep."""

import numpy as np
from pda_fed.common import standardization
import pytest


def test_by_hand():
  images = np.uint8([[[[0, 2]], [[4, 2]]], [[[0, 8]], [[4, 8]]]])
  mean, scale = standardization.mean_and_scale(images)
  assert mean.tolist() == [2, 5]
  assert scale.tolist() == [2, 3]
  assert mean.dtype == scale.dtype == np.float32


@pytest.mark.parametrize('count', [1, 3, 7, 19, 49, 98])
@pytest.mark.parametrize('value', [0.0, 0.1, 0.7, 1000.1, 1e-30])
def test_a_constant_has_the_scale_1(count, value):
  table = np.full((count, 1), value, np.float32)
  _, scale = standardization.mean_and_scale(table)
  assert scale.tolist() == [1]
