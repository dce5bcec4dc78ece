"""The mean weight of public data, and tries at equal learning rates."""

import math

import pytest

from bench import public_share


@pytest.mark.parametrize(
  'settings, expected',
  [
    ({'semi_dp_weight': '0.8'}, 0.2),
    # alpha is 1 and cos(pi / 4).
    ({'alpha_K': '2'}, (1 - math.sqrt(0.5)) / 2),
    ({'alpha_i': '2'}, (1 - math.sqrt(0.5)) / 2),
    ({'learning_rate': '1'}, None),
  ],
)
def test_mean_public_share(settings, expected):
  found = public_share.mean_public_share(settings, rounds=2)
  assert found == pytest.approx(expected)


def _row(method, settings, loss, task='stackexchange'):
  return {'task': task, 'method': method, 'settings': settings, 'loss': loss}


def test_tries_are_compared_at_the_best_common_rate():
  points = public_share.read_points(
    [
      _row('warm', 'server_learning_rate=1', '4.5'),
      _row('warm', 'server_learning_rate=2', '4.4'),
      _row('warm', 'server_learning_rate=3', '4.0'),  # Only warm start's.
      _row('pda', 'server_learning_rate=1 alpha_i=2', '4.1'),
      _row('pda', 'server_learning_rate=2 alpha_i=2', '4.3'),
      _row('dope', 'server_learning_rate=2', '4.2'),
    ],
    {'stackexchange': 2},
  )
  (point,) = points
  assert (point.task, point.method) == ('stackexchange', 'pda')
  assert point.gain == pytest.approx(0.1)
  assert point.share == pytest.approx((1 - math.sqrt(0.5)) / 2)


def test_tries_from_other_models_are_left_out():
  rows = [
    _row('warm', 'learning_rate=3', '0.9', task='cifar10_eps2'),
    _row('pda', 'learning_rate=3 alpha_K=20', '0.8', task='cifar10_eps2'),
  ]
  assert not public_share.read_points(rows, {'cifar10_eps2': 10})
