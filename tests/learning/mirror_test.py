"""The mirror step as plain functions."""

import numpy as np
from pda_fed.learning import mirror
from pda_fed.learning import public_update
import pytest
import tensorflow as tf


def _constants(*values):
  return [tf.constant(v, tf.float32) for v in values]


def test_mix_by_hand():
  mixed = mirror.mix(
    _constants([1.0, 2.0], 3.0), _constants([5.0, 6.0], -1.0), tf.constant(0.75)
  )
  np.testing.assert_allclose(mixed[0], [2.0, 3.0])
  np.testing.assert_allclose(mixed[1], 2.0)


@pytest.mark.parametrize('alpha, index', [(1.0, 0), (0.0, 1)])
def test_at_its_ends_the_other_side_may_hold_anything(alpha, index):
  sides = [_constants([0.1, -0.0]), _constants([np.nan, np.inf])]
  if index:
    sides.reverse()
  (mixed,) = mirror.mix(*sides, tf.constant(alpha))
  assert mixed.numpy().tobytes() == np.float32([0.1, -0.0]).tobytes()


def test_step_by_hand():
  result = public_update.PublicResult(
    tuple(_constants([0.0, 4.0])), tf.constant(2.5)
  )
  calls = []

  def public(weights, round_num):
    calls.append((weights, int(round_num)))
    return result

  mixed, found = mirror.mirror_step(
    _constants([3.0, 4.0]),
    'theta',
    tf.constant(1),
    tf.constant([1.0, 0.5]),
    public,
  )
  assert calls == [('theta', 1)]
  np.testing.assert_allclose(mixed[0], [1.5, 4.0])
  assert {k: float(v) for k, v in found.items()} == pytest.approx(
    {
      'alpha': 0.5,
      'public_loss': 2.5,
      'private_update_norm': 5.0,
      'public_update_norm': 4.0,
      'mixed_update_norm': np.hypot(1.5, 4.0),
      'cosine': 0.8,
    }
  )


@pytest.mark.parametrize('round_num, alpha', [(0, 0.9), (1, 0.2), (7, 0.2)])
def test_the_last_alpha_holds(round_num, alpha):
  public = public_update.PublicResult(
    tuple(_constants([0.0])), tf.constant(0.0)
  )
  _, found = mirror.mirror_step(
    _constants([1.0]),
    None,
    tf.constant(round_num),
    tf.constant([0.9, 0.2]),
    lambda *_: public,
  )
  assert float(found['alpha']) == pytest.approx(alpha)
  assert float(found['cosine']) == 0.0  # No direction, no cosine.
