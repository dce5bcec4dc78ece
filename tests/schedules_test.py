import math

import numpy as np
from pda_fed import schedules
import pytest


def test_cosine_by_hand():
  values = schedules.values(schedules.cosine(K=3), 4)
  np.testing.assert_allclose(values, [1, math.sqrt(3) / 2, 0.5, 0], atol=1e-15)


def test_cosine_stays_at_zero():
  # cos itself is 1 again at 4K, where the run must have left private data.
  values = schedules.values(schedules.cosine(K=2), 20)
  assert (values[2:] == 0).all()


def test_for_stackoverflow_is_the_papers():
  # alpha_t = cos(pi t / (i T)); with i = 5 it ends far from 0.
  schedule = schedules.for_stackoverflow(i=5, T=1600)
  assert schedule(800) == pytest.approx(math.cos(math.pi * 800 / 8000))
  assert schedule(1600) == pytest.approx(math.cos(math.pi / 5))
  assert schedules.for_stackoverflow(i=2, T=10)(10) == 0


def test_linear_and_constant():
  np.testing.assert_allclose(
    schedules.values(schedules.linear(K=4), 6), [1, 0.75, 0.5, 0.25, 0, 0]
  )
  np.testing.assert_array_equal(
    schedules.values(schedules.constant(0.3), 3), [0.3] * 3
  )


@pytest.mark.parametrize(('t', 'alpha'), [(0, 0.9), (1, 0.2), (7, 0.2)])
def test_the_last_of_a_list_holds(t, alpha):
  assert schedules.listed([0.9, 0.2])(t) == alpha


@pytest.mark.parametrize(
  'schedule',
  [
    schedules.cosine(7),
    schedules.linear(7),
    schedules.constant(0.5),
    schedules.listed([0.9, 0.5, 0.0]),
    schedules.for_stackoverflow(3, 5),
  ],
)
def test_calls_and_values_agree_and_lie_in_the_unit_interval(schedule):
  values = schedules.values(schedule, 50)
  assert values.dtype == np.float64
  assert ((values >= 0) & (values <= 1)).all()
  assert (np.diff(values) <= 0).all()
  np.testing.assert_array_equal([schedule(t) for t in range(50)], values)
  assert schedules.values(schedule, 0).shape == (0,)


def test_any_function_is_a_schedule():
  np.testing.assert_array_equal(
    schedules.values(lambda t: 0.5**t, 3), [1, 0.5, 0.25]
  )
  assert isinstance(math.cos, schedules.Schedule)
  assert not isinstance(0.5, schedules.Schedule)


@pytest.mark.parametrize(
  'make, message',
  [
    (lambda: schedules.cosine(0), 'K must be positive'),
    (lambda: schedules.cosine(math.inf), 'K must be positive'),
    (lambda: schedules.linear(-1), 'K must be positive'),
    (lambda: schedules.constant(1.5), 'alpha must be in'),
    (lambda: schedules.constant(math.nan), 'alpha must be in'),
    (lambda: schedules.listed([0.5, 1.5]), 'alpha must be in'),
    (lambda: schedules.listed([]), 'alpha must be a list of numbers'),
    (lambda: schedules.listed(0.5), 'alpha must be a list.* Found 0.5'),
    (lambda: schedules.for_stackoverflow(0, 10), 'i must be positive'),
    (lambda: schedules.for_stackoverflow(2, 0), 'T must be at least 1'),
    (lambda: schedules.values(schedules.cosine(3), -1), 'T must be at least 0'),
    (lambda: schedules.cosine(3)(-1), 't must be non-negative'),
  ],
)
def test_bad_input(make, message):
  with pytest.raises(ValueError, match=message):
    make()
