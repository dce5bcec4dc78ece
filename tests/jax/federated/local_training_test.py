"""Local training of clients side by side."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pda_fed import models
from pda_fed.jax.federated import local_training
from pda_fed.models import batches
import pytest

from tests.jax import small_users

_SPEC = models.RecurrentSpec(num_words=7, embedding_size=4, lstm_size=5)
_MODEL = _SPEC.jax_model()
_PARAMS = _MODEL.init(2)
_USERS = small_users.make_users(_SPEC, [7, 2, 4], seed=0)
_RATE = 0.6
_SGD = optax.sgd(_RATE)
_TRAIN = jax.jit(
  lambda *arguments: local_training.train_clients(_MODEL, *arguments, _SGD)
)


def _close(actual, expected, tolerance=1e-6):
  for a, e in _pairs(actual, expected):
    np.testing.assert_allclose(a, e, atol=tolerance)


def _pairs(actual, expected):
  return zip(*map(jax.tree.leaves, (actual, expected)), strict=True)


def _arrays():
  load = small_users.loader(_USERS, 3, 4)
  return load(np.arange(3), 4)  # The fourth client is padding.


@pytest.mark.slow
def test_clients_train_as_if_alone():
  examples, weights = _arrays()
  updates, stats, *_ = _TRAIN(_PARAMS, examples, weights, 3)
  for client, user in enumerate(_USERS):
    params = _PARAMS
    losses = 0.0
    for start in range(0, len(user), 3):
      batch = user[start : start + 3]  # The last one is smaller.
      of_batch, gradients = batches.gradients(
        _MODEL, params, (batch,), np.ones(len(batch), np.float32)
      )
      params = jax.tree.map(lambda w, g: w - _RATE * g, params, gradients)
      losses += float(of_batch.loss)
    _close(
      jax.tree.map(lambda u, client=client: u[client], updates),
      jax.tree.map(jnp.subtract, _PARAMS, params),
    )
    assert float(stats.loss[client]) == pytest.approx(losses, rel=1e-5)
    assert stats.examples[client] == len(user)


def test_padding_contributes_nothing():
  examples, weights = _arrays()
  updates, stats, *_ = _TRAIN(_PARAMS, examples, weights, 3)
  for u in jax.tree.leaves(updates):
    assert not np.any(u[3])
  assert stats.loss[3] == stats.targets[3] == 0
  # Whatever padding holds, and however many steps it is given.
  garbage = np.where(weights[..., None] > 0, *examples, 5).astype(np.uint16)
  again, other_stats, *_ = _TRAIN(_PARAMS, (garbage,), weights, 4)
  for a, e in _pairs(again, updates):
    np.testing.assert_array_equal(a, e)
  np.testing.assert_array_equal(other_stats.loss, stats.loss)


def test_no_steps_no_update():
  examples, weights = _arrays()
  updates, _, *_ = _TRAIN(_PARAMS, examples, weights, 0)
  assert not any(np.any(u) for u in jax.tree.leaves(updates))


def test_bfloat16_products_keep_the_weights_in_float32():
  examples, weights = _arrays()
  expected, _, *_ = _TRAIN(_PARAMS, examples, weights, 3)
  actual, stats, *_ = local_training.train_clients(
    _MODEL, _PARAMS, examples, weights, 3, _SGD, dtype=jnp.bfloat16
  )
  assert stats.loss.dtype == jnp.float32
  for a, e in _pairs(actual, expected):
    assert a.dtype == jnp.float32
    assert np.linalg.norm(a - e) <= 0.03 * np.linalg.norm(e)


@pytest.mark.slow
def test_bfloat16_in_models_that_are_not_tiny():
  # On a CPU products of other sizes are other code.
  spec = models.RecurrentSpec(num_words=1000, embedding_size=8, lstm_size=8)
  params = spec.jax_model().init(0)
  tokens = np.random.default_rng(0).integers(1, 1000, (1, 1, 64, 21), np.uint16)
  weights = np.ones((1, 1, 64), np.float32)
  expected, actual = (
    jax.jit(
      functools.partial(
        local_training.train_clients,
        spec.jax_model(),
        optimizer=_SGD,
        dtype=dtype,
      )
    )(params, (tokens,), weights, 1)[0]
    for dtype in (jnp.float32, jnp.bfloat16)
  )
  for a, e in _pairs(actual, expected):
    assert np.linalg.norm(a - e) <= 0.03 * np.linalg.norm(e)


def test_clipped_gradients_by_hand():
  # 2 weights of a linear model, one batch: SGD moves by rate * clip.
  model = models.Model(None, lambda params, x: params @ x)
  examples = (np.array([[[[3.0, 4.0]]], [[[0.3, 0.4]]]], np.float32),)
  found = local_training.train_clients(
    model,
    jnp.zeros(2),
    examples,
    np.ones((2, 1, 1), np.float32),
    1,
    optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
  )
  np.testing.assert_allclose(
    found.updates, [[0.06, 0.08], [0.03, 0.04]], rtol=1e-6
  )


def test_first_and_mean_loss():
  examples, weights = _arrays()
  one = _TRAIN(_PARAMS, examples, weights, 1)
  all_ = _TRAIN(_PARAMS, examples, weights, 3)
  np.testing.assert_array_equal(one.first_loss, one.mean_loss)
  np.testing.assert_array_equal(one.first_loss, all_.first_loss)
  assert not np.array_equal(all_.first_loss, all_.mean_loss)
