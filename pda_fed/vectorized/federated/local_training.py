"""Local training of many clients at once.

What `learning.local_training` does for one client at a time: SGD over a
client's batches in order, the last one smaller, and the model's change as the
update. Here clients are the leading axis, each with weights of its own, and
batches are padded: a padded example has no weight in the loss, and a padded
batch, or client, has a gradient of exactly 0.
"""

from typing import Any

import jax
import jax.numpy as jnp
from pda_fed.models import jax_model


def train_clients(
  model: jax_model.Model,
  params: Any,
  examples: tuple[jax.Array, ...],
  weights: jax.Array,
  num_steps: jax.Array,
  learning_rate: jax.Array,
  *,
  dtype=jnp.float32,
) -> tuple[Any, jax_model.BatchStats]:
  """Trains clients side by side, all from the same weights.

  Args:
    model: The model.
    params: The server's weights.
    examples: Arrays [clients, steps, batch, ...].
    weights: [clients, steps, batch], 1 for an example and 0 for padding.
    num_steps: How many steps to take, those of the largest client at least. It
      may be traced, so that clients of all sizes share a compiled program.
    learning_rate: The learning rate of SGD.
    dtype: The dtype of products.

  Returns:
    For each client the weights before less those after, and its metrics.
  """
  examples = tuple(jnp.asarray(array) for array in examples)
  weights = jnp.asarray(weights)
  num_clients = weights.shape[0]
  start = jax.tree_util.tree_map(
    lambda w: jnp.broadcast_to(w, (num_clients, *w.shape)), params
  )

  def step(params, examples, weights):
    return model.sgd_step(params, examples, weights, learning_rate, dtype)

  def body(i, carry):
    client_params, stats = carry
    batch = tuple(array[:, i] for array in examples)
    client_params, more = jax.vmap(step)(client_params, batch, weights[:, i])
    return client_params, jax.tree_util.tree_map(jnp.add, stats, more)

  zeros = jax_model.BatchStats(
    *(jnp.zeros(num_clients) for _ in jax_model.BatchStats._fields)
  )
  trained, stats = jax.lax.fori_loop(0, num_steps, body, (start, zeros))
  updates = jax.tree_util.tree_map(jnp.subtract, params, trained)
  return updates, stats
