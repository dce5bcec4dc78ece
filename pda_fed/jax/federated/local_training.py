"""Local training of many clients at once.

The same computation as `pda_tff.local_training`, which trains one client at a
time: a step for each of a client's batches in order (the last may be smaller),
where the update is the model's change. Here clients are the leading axis, each
with its own weights, and batches are padded. A padded example has no weight in
the loss; a padded batch or client changes nothing.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from pda_fed.jax import optimizers
from pda_fed.models import batches
from pda_fed.models import model as model_lib


class LocalResults(NamedTuple):
  """Results of the clients' local training.

  Attributes:
    updates: Weights before training minus weights after, [clients, ...].
    stats: Metrics, as sums over a client's batches.
    first_loss: The loss of the first batch.
    mean_loss: The mean loss of all batches, each at the weights before its
      step.
  """

  updates: Any
  stats: batches.BatchStats
  first_loss: jax.Array
  mean_loss: jax.Array


def train_clients(
  model: model_lib.Model,
  params: Any,
  examples: tuple[jax.Array, ...],
  weights: jax.Array,
  num_steps: jax.Array,
  optimizer: optax.GradientTransformation,
  *,
  dtype=jnp.float32,
) -> LocalResults:
  """Trains clients side by side, all from the same weights.

  Args:
    model: The model.
    params: The server's weights.
    examples: Arrays [clients, steps, batch, ...].
    weights: [clients, steps, batch], 1 for an example and 0 for padding.
    num_steps: Number of steps, at least that of the largest client. It may be
      traced, so that clients of all sizes share a compiled program.
    optimizer: The optimizer of each client.
    dtype: Dtype of matrix products.

  Returns:
    The results of each client.
  """
  examples = tuple(jnp.asarray(array) for array in examples)
  weights = jnp.asarray(weights)
  num_clients = weights.shape[0]
  rate = optimizers.sgd_rate(optimizer, params)
  fast = model.fast if rate is not None else None
  if fast is not None:
    params = fast.pad(params)
  start = jax.tree.map(
    lambda w: jnp.broadcast_to(w, (num_clients, *w.shape)), params
  )

  def step(params, state, examples, weights):
    if fast is not None:
      stepped, stats = fast.sgd_step(params, examples, weights, rate, dtype)
      return stepped, state, stats
    stats, gradients = batches.gradients(
      model, params, examples, weights, dtype
    )
    changes, new_state = optimizer.update(gradients, state, params)
    stepped = optax.apply_updates(params, changes), new_state
    # Momentum would move the weights in a batch of padding.
    params, state = jax.tree_util.tree_map(
      functools.partial(jnp.where, stats.examples > 0),
      stepped,
      (params, state),
    )
    return params, state, stats

  def body(i, carry):
    client_params, state, stats, first_loss = carry
    batch = tuple(array[:, i] for array in examples)
    client_params, state, more = jax.vmap(step)(
      client_params, state, batch, weights[:, i]
    )
    stats = jax.tree_util.tree_map(jnp.add, stats, more)
    first_loss = jnp.where(i == 0, _mean_loss(stats), first_loss)
    return client_params, state, stats, first_loss

  zeros = batches.BatchStats(
    *(jnp.zeros(num_clients) for _ in batches.BatchStats._fields)
  )
  carry = start, jax.vmap(optimizer.init)(start), zeros, jnp.zeros(num_clients)
  trained, _, stats, first_loss = jax.lax.fori_loop(0, num_steps, body, carry)
  updates = jax.tree.map(jnp.subtract, params, trained)
  if fast is not None:
    updates = jax.vmap(fast.unpad)(updates)
  return LocalResults(updates, stats, first_loss, _mean_loss(stats))


def _mean_loss(stats: batches.BatchStats) -> jax.Array:
  return stats.batch_loss / jnp.maximum(stats.examples, 1)
