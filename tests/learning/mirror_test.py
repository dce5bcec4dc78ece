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
  public = public_update.PublicResult(
    tuple(_constants([0.0, 4.0])), tf.constant(2.5)
  )
  mixed, found = mirror.mirror_step(
    _constants([3.0, 4.0]), public, tf.constant(0.5)
  )
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


def test_no_direction_no_cosine():
  public = public_update.PublicResult(
    tuple(_constants([0.0])), tf.constant(0.0)
  )
  _, found = mirror.mirror_step(_constants([1.0]), public, tf.constant(0.5))
  assert float(found['cosine']) == 0.0


@pytest.mark.parametrize('round_num, alpha', [(0, 0.9), (1, 0.2), (7, 0.2)])
def test_the_last_alpha_holds(round_num, alpha):
  found = mirror.alpha_at(tf.constant([0.9, 0.2]), tf.constant(round_num))
  assert float(found) == pytest.approx(alpha)
