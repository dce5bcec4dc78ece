"""Optimizers in JAX, by numbers that were computed by hand."""

import math
import types

import jax.numpy as jnp
import numpy as np
from pda_fed.jax import optimizers
from pda_fed.runs.engines import tff_federated
import pytest
import tensorflow as tf

_PARAMS = (jnp.array([3.0, 0.0]), jnp.array([[4.0]]))
_UPDATE = (jnp.array([8.0, 0.0]), jnp.array([[6.0]]))


def _flat(tree):
  return np.concatenate([np.ravel(leaf) for leaf in tree]).tolist()


def test_sgd():
  params, momentum = optimizers.sgd_step(_PARAMS, (), _UPDATE, 0.5, 0.0)
  assert _flat(params) == [-1, 0, 1]
  assert momentum == ()


def test_sgd_with_momentum():
  zeros = (jnp.zeros(2), jnp.zeros((1, 1)))
  params, momentum = optimizers.sgd_step(zeros, zeros, _UPDATE, 0.5, 0.5)
  assert (_flat(params), _flat(momentum)) == ([-4, 0, -3], [8, 0, 6])
  params, momentum = optimizers.sgd_step(params, momentum, _PARAMS, 0.5, 0.5)
  # 0.5 * 8 + 3 = 7 and 0.5 * 6 + 4 = 7.
  assert (_flat(params), _flat(momentum)) == ([-7.5, 0, -6.5], [7, 0, 7])


def test_the_first_step_of_adam_is_as_long_as_the_rate():
  state = optimizers.Adam.start(_PARAMS)
  params, state = optimizers.adam_step(_PARAMS, state, _UPDATE, 0.5)
  # A coordinate without a gradient stays where it is.
  np.testing.assert_allclose(_flat(params), [2.5, 0, 3.5], rtol=1e-5)
  assert int(state.step) == 1


def test_adam_by_the_paper():
  rng = np.random.default_rng(0)
  w, m, v = np.array([1.0, -2.0, 0.5]), np.zeros(3), np.zeros(3)
  params = (jnp.asarray(w, jnp.float32),)
  state = optimizers.Adam.start(params)
  for t in range(1, 6):
    gradient = rng.normal(size=3)
    params, state = optimizers.adam_step(
      params, state, (jnp.asarray(gradient, jnp.float32),), 0.1
    )
    m = 0.9 * m + 0.1 * gradient
    v = 0.999 * v + 0.001 * gradient**2
    w -= 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-7)
    np.testing.assert_allclose(params[0], w, rtol=1e-4)


@pytest.mark.parametrize('name', ['adam', 'yogi'])
def test_the_server_steps_as_tff_does(name):
  config = types.SimpleNamespace(
    server_optimizer=name, server_learning_rate=0.1, server_momentum=0.8
  )
  optimizer = tff_federated.build_server_optimizer(config)
  rng = np.random.default_rng(0)
  weights = rng.normal(size=5).astype(np.float32)
  expected = tf.constant(weights)
  state = optimizer.initialize(tf.TensorSpec([5]))
  mean, squares = optimizers.server_start(name, weights, 0.8)
  for step in range(1, 5):
    update = rng.normal(size=5).astype(np.float32)
    state, expected = optimizer.next(state, expected, tf.constant(update))
    weights, mean, squares = optimizers.server_step(
      name,
      weights,
      mean,
      squares,
      update,
      step=step,
      learning_rate=0.1,
      momentum_rate=0.8,
    )
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)


def test_yogi_by_hand():
  # One step: m = 0.1 u, s = 1e-6 + 0.01 u^2, both corrected for their start.
  weights, mean, squares = optimizers.server_step(
    'yogi',
    np.zeros(1, np.float32),
    *optimizers.server_start('yogi', np.zeros(1, np.float32), 0.9),
    np.full(1, 2.0, np.float32),
    step=1,
    learning_rate=1.0,
    momentum_rate=0.9,
  )
  assert mean == pytest.approx(0.2)
  assert squares == pytest.approx(0.040001)
  rate = math.sqrt(0.01) / 0.1
  assert weights == pytest.approx(-rate * 0.2 / (math.sqrt(0.040001) + 1e-3))
