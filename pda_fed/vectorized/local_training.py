"""Local training of many clients at once.

What `learning.local_training` does for one client at a time: SGD over a
client's batches in order, the last one smaller, and the model's change as the
update. Here clients are the leading axis, each with weights of its own, and
batches are padded: a padded sentence has no weight in the loss, and a padded
batch, or client, has a gradient of exactly 0.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from pda_fed.models import jax_recurrent

_Params = jax_recurrent.RecurrentParams


class LocalStats(NamedTuple):
  """Training metrics of a client, as sums, at the weights each batch met.

  Attributes:
    loss: Cross-entropy, summed over tokens.
    tokens: Their number.
    batch_loss: The loss of each batch, times its sentences.
    sentences: Their number.
  """

  loss: jax.Array
  tokens: jax.Array
  batch_loss: jax.Array
  sentences: jax.Array


def _step_embedding(
  embedding: jax.Array, tokens: jax.Array, change: jax.Array
) -> jax.Array:
  """Adds a change of each of `tokens`, some of which may be equal.

  A scatter that adds would, on a GPU, add in an order that varies from run to
  run. Here each token's changes are summed first, by a small product, and then
  every occurrence of the token writes the same row.

  Args:
    embedding: [vocabulary, embedding].
    tokens: [n].
    change: [n, embedding].
  """
  same = (tokens[:, None] == tokens[None, :]).astype(change.dtype)
  summed = jnp.dot(same, change, precision=jax.lax.Precision.HIGHEST)
  embedding = jnp.asarray(embedding)
  return embedding.at[tokens].set(embedding[tokens] + summed)


def sgd_step(
  params: _Params,
  sentences: jax.Array,
  weights: jax.Array,
  learning_rate: jax.Array,
  *,
  dtype=jnp.float32,
) -> tuple[_Params, LocalStats]:
  """Takes a step of SGD on a batch of one client.

  Args:
    params: The client's weights, in float32.
    sentences: Token ids, [batch, time + 1], padded with 0.
    weights: [batch], 1 for a sentence and 0 for padding.
    learning_rate: Of SGD.
    dtype: Of the products; weights, sums and the step stay in float32.

  Returns:
    The new weights, and metrics at the old ones.
  """
  tokens = sentences.T.astype(jnp.int32)  # Time first, as the LSTM goes.
  inputs, targets = tokens[:-1], tokens[1:]
  counts = jax_recurrent.target_weights(targets, (0,)) * weights
  computed = jax_recurrent.cast_params(params, dtype)
  embedded = computed.embedding[inputs]
  # The embedding's gradient is that of the rows that were read.
  (mean, total), (gradients, d_embedded) = jax.value_and_grad(
    jax_recurrent.embedded_loss, argnums=(0, 1), has_aux=True
  )(computed._replace(embedding=None), embedded, targets, counts)

  def step(weight, gradient):
    return weight - learning_rate * gradient.astype(weight.dtype)

  rows = d_embedded.astype(jnp.float32).reshape(-1, d_embedded.shape[-1])
  embedding = _step_embedding(
    params.embedding, inputs.reshape(-1), -learning_rate * rows
  )
  others = jax.tree_util.tree_map(
    step, params._replace(embedding=None), gradients
  )
  num_sentences = weights.sum()
  stats = LocalStats(total, counts.sum(), mean * num_sentences, num_sentences)
  return others._replace(embedding=embedding), stats


def train_clients(
  params: _Params,
  tokens: jax.Array,
  weights: jax.Array,
  num_steps: jax.Array,
  learning_rate: jax.Array,
  *,
  dtype=jnp.float32,
) -> tuple[_Params, LocalStats]:
  """Trains clients side by side, all from the same weights.

  Args:
    params: The server's weights.
    tokens: [clients, steps, batch, time + 1].
    weights: [clients, steps, batch].
    num_steps: How many steps to take, those of the largest client at least. It
      may be traced, so that clients of all sizes share a compiled program.
    learning_rate: Of SGD.
    dtype: Of the products.

  Returns:
    For each client the weights before less those after, and its metrics.
  """
  num_clients = tokens.shape[0]
  start = jax.tree_util.tree_map(
    lambda w: jnp.broadcast_to(w, (num_clients, *w.shape)), params
  )
  step = jax.vmap(
    functools.partial(sgd_step, dtype=dtype), in_axes=(0, 0, 0, None)
  )

  def body(i, carry):
    client_params, stats = carry
    client_params, more = step(
      client_params, tokens[:, i], weights[:, i], learning_rate
    )
    return client_params, jax.tree_util.tree_map(jnp.add, stats, more)

  zeros = LocalStats(*(jnp.zeros(num_clients) for _ in LocalStats._fields))
  trained, stats = jax.lax.fori_loop(0, num_steps, body, (start, zeros))
  updates = jax.tree_util.tree_map(jnp.subtract, params, trained)
  return updates, stats
