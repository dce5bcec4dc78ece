"""Optimizers by name: the steps of TFF's, and one computed by hand."""

import math

import numpy as np
import optax
from pda_fed import jax as pda_jax
from pda_fed import tff as pda_tff
from pda_fed.common import optimizers
from pda_fed.jax import optimizers as optimizers_lib
from pda_fed.runs import groups
import pytest
import tensorflow as tf


def _steps(settings, weights, updates):
  optimizer = pda_jax.build_optimizer(settings)
  state = optimizer.init(weights)
  for update in updates:
    changes, state = optimizer.update(update, state, weights)
    weights = optax.apply_updates(weights, changes)
    yield weights


@pytest.mark.parametrize(
  'group', [groups.ServerSpec, optimizers.OptimizerSettings]
)
@pytest.mark.parametrize(
  'values',
  [
    {'optimizer': 'sgd', 'momentum': 0.0},
    {'optimizer': 'sgd', 'momentum': 0.8},
    {'optimizer': 'adam'},
    {'optimizer': 'adam', 'beta1': 0.5, 'beta2': 0.7, 'epsilon': 0.1},
    {'optimizer': 'yogi', 'initial_accumulator': 0.01},
    {'optimizer': 'yogi'},
    {'optimizer': 'adagrad'},
  ],
  ids=str,
)
def test_steps_of_both_engines(group, values):
  settings = group(learning_rate=0.1, **values)
  theirs = pda_tff.build_optimizer(settings)
  rng = np.random.default_rng(0)
  weights = rng.normal(size=5).astype(np.float32)
  # At 1e-4, epsilon, where it is added, and first means of squares matter.
  scales = np.array([[1e-4], [1e-4], [1], [1]])
  updates = (scales * rng.normal(size=(4, 5))).astype(np.float32)
  updates[:, 0] = 0
  expected, state = tf.constant(weights), theirs.initialize(tf.TensorSpec([5]))
  steps = _steps(settings, weights, updates)
  for update, found in zip(updates, steps, strict=True):
    state, expected = theirs.next(state, expected, tf.constant(update))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def test_yogi_by_hand():
  # One step: m = 0.1 u, s = 1e-6 + 0.01 u^2, both corrected for their start.
  server = groups.ServerSpec(optimizer='yogi')
  (weights,) = _steps(
    server, np.zeros(1, np.float32), [np.full(1, 2.0, np.float32)]
  )
  rate = math.sqrt(0.01) / 0.1
  assert weights == pytest.approx(-rate * 0.2 / (math.sqrt(0.040001) + 1e-3))


def test_weight_decay_shrinks_weights_by_the_rate():
  settings = optimizers.OptimizerSettings(learning_rate=0.5, weight_decay=0.1)
  (weights,) = _steps(settings, np.array([2.0]), [np.array([3.0])])
  assert weights == pytest.approx(2 - 0.5 * (3 + 0.1 * 2))
  with pytest.raises(ValueError, match='weight_decay must be 0 in TFF'):
    pda_tff.build_optimizer(settings)


@pytest.mark.parametrize(
  ('optimizer', 'rate'),
  [
    (optax.sgd(0.3), 0.3),
    (pda_jax.build_optimizer(groups.ClientSpec(learning_rate=0.3)), 0.3),
    (optax.sgd(0.3, 0.5), None),
    (optax.sgd(optax.linear_schedule(0.3, 0.1, 5)), None),
    (optax.sign_sgd(0.3), None),
    (optax.chain(optax.sgd(0.3), optax.add_decayed_weights(0.1)), None),
    (optax.chain(optax.clip(1.0), optax.sgd(0.3)), None),
    (optax.masked(optax.sgd(0.3), {'a': True, 'b': False}), None),
    (optax.set_to_zero(), None),
    (optax.identity(), None),
  ],
)
def test_plain_sgd_is_known(optimizer, rate):
  params = {'a': np.zeros((2, 3), np.float32), 'b': np.float32(0)}
  found = optimizers_lib.sgd_rate(optimizer, params)
  assert found == (rate and pytest.approx(rate))
