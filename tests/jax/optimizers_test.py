"""Optimizers in JAX, by numbers that were computed by hand."""

import math

import jax.numpy as jnp
import numpy as np
from pda_fed.jax import optimizers
from pda_fed.runs import groups
from pda_fed.runs.engines import tff_federated
import pytest
import tensorflow as tf

_PARAMS = (jnp.array([3.0, 0.0]), jnp.array([[4.0]]))
_UPDATE = (jnp.array([8.0, 0.0]), jnp.array([[6.0]]))


def _flat(tree):
  return np.concatenate([np.ravel(leaf) for leaf in tree]).tolist()


def _step(optimizer, params, state, update):
  changes, state = optimizer.update(update, state, params)
  return optimizers.apply_updates(params, changes), state


def test_sgd():
  optimizer = optimizers.sgd(0.5)
  params, state = _step(optimizer, _PARAMS, optimizer.init(_PARAMS), _UPDATE)
  assert _flat(params) == [-1, 0, 1]
  assert state == ()


def test_sgd_with_momentum():
  zeros = (jnp.zeros(2), jnp.zeros((1, 1)))
  optimizer = optimizers.sgd(0.5, 0.5)
  params, momentum = _step(optimizer, zeros, optimizer.init(zeros), _UPDATE)
  assert (_flat(params), _flat(momentum)) == ([-4, 0, -3], [8, 0, 6])
  params, momentum = _step(optimizer, params, momentum, _PARAMS)
  # 0.5 * 8 + 3 = 7 and 0.5 * 6 + 4 = 7.
  assert (_flat(params), _flat(momentum)) == ([-7.5, 0, -6.5], [7, 0, 7])


def test_the_first_step_of_adam_is_as_long_as_the_rate():
  optimizer = optimizers.adam(0.5)
  params, state = _step(optimizer, _PARAMS, optimizer.init(_PARAMS), _UPDATE)
  # A coordinate without a gradient stays where it is.
  np.testing.assert_allclose(_flat(params), [2.5, 0, 3.5], rtol=1e-5)
  assert int(state.count) == 1


def test_adam_by_the_paper():
  rng = np.random.default_rng(0)
  w, m, v = np.array([1.0, -2.0, 0.5]), np.zeros(3), np.zeros(3)
  params = jnp.asarray(w, jnp.float32)
  optimizer = optimizers.adam(0.1)
  state = optimizer.init(params)
  for t in range(1, 6):
    gradient = rng.normal(size=3)
    params, state = _step(
      optimizer, params, state, jnp.asarray(gradient, jnp.float32)
    )
    m = 0.9 * m + 0.1 * gradient
    v = 0.999 * v + 0.001 * gradient**2
    w -= 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-7)
    np.testing.assert_allclose(params, w, rtol=1e-4)


@pytest.mark.parametrize('name', ['sgd', 'adam', 'yogi'])
def test_the_server_steps_as_tff_does(name):
  server = groups.ServerSpec(optimizer=name, learning_rate=0.1, momentum=0.8)
  theirs = tff_federated.build_server_optimizer(server)
  ours = optimizers.of_server(name, 0.1, 0.8)
  rng = np.random.default_rng(0)
  weights = rng.normal(size=5).astype(np.float32)
  expected = tf.constant(weights)
  state, own_state = theirs.initialize(tf.TensorSpec([5])), ours.init(weights)
  for _ in range(4):
    update = rng.normal(size=5).astype(np.float32)
    state, expected = theirs.next(state, expected, tf.constant(update))
    weights, own_state = _step(ours, weights, own_state, update)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)


def test_yogi_by_hand():
  # One step: m = 0.1 u, s = 1e-6 + 0.01 u^2, both corrected for their start.
  optimizer, start = optimizers.of_server('yogi', 1.0, 0.9), np.zeros(1, 'f4')
  weights, state = _step(
    optimizer, start, optimizer.init(start), np.full(1, 2.0, np.float32)
  )
  assert state.mean == pytest.approx(0.2)
  assert state.square == pytest.approx(0.040001)
  rate = math.sqrt(0.01) / 0.1
  assert weights == pytest.approx(-rate * 0.2 / (math.sqrt(0.040001) + 1e-3))


@pytest.mark.parametrize(
  ('name', 'numbers', 'words'),
  [
    ('sgd', (0.0,), 'learning_rate must be positive'),
    ('adam', (1.0, -0.5), 'momentum must be non-negative'),
    ('lion', (1.0,), "server_optimizer must be one of 'sgd', 'adam', 'yogi'"),
  ],
)
def test_bad_arguments(name, numbers, words):
  with pytest.raises(ValueError, match=words):
    optimizers.of_server(name, *numbers)
