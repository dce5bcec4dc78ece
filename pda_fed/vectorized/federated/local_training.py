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

# Tokens whose rows are summed in one product: its other factor has as many rows
# and, for columns, all tokens of a batch.
_TOKENS_AT_ONCE = 2048


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


def _add_rows(
  table: jax.Array, tokens: jax.Array, rows: jax.Array
) -> jax.Array:
  """Adds rows to those of `tokens`, some of which may be equal.

  A scatter that adds would, on a GPU, add in an order that varies from run to
  run. Here the rows of equal tokens are summed first, by a small product, and
  then every occurrence of a token writes the same row.

  Args:
    table: [vocabulary, embedding].
    tokens: [n].
    rows: [n, embedding].
  """

  def sum_of(some: jax.Array) -> jax.Array:
    same = (some[:, None] == tokens[None, :]).astype(rows.dtype)
    return jnp.dot(same, rows, precision=jax.lax.Precision.HIGHEST)

  size = tokens.shape[0]
  if size <= _TOKENS_AT_ONCE:
    summed = sum_of(tokens)
  else:
    # A public batch may be of many users: no matrix of all pairs of its tokens.
    padded = jnp.pad(tokens, (0, -size % _TOKENS_AT_ONCE), constant_values=-1)
    blocks = jax.lax.map(sum_of, padded.reshape(-1, _TOKENS_AT_ONCE))
    summed = blocks.reshape(-1, rows.shape[1])[:size]
  table = jnp.asarray(table)
  return table.at[tokens].set(table[tokens] + summed)


class _Batch(NamedTuple):
  """A batch, time first, as the LSTM goes."""

  inputs: jax.Array
  targets: jax.Array
  counts: jax.Array
  num_sentences: jax.Array

  @classmethod
  def from_sentences(cls, sentences: jax.Array, weights: jax.Array) -> '_Batch':
    tokens = sentences.T.astype(jnp.int32)
    counts = jax_recurrent.target_weights(tokens[1:], (0,)) * weights
    return cls(tokens[:-1], tokens[1:], counts, weights.sum())

  def stats(self, mean: jax.Array, total: jax.Array) -> LocalStats:
    return LocalStats(
      total, self.counts.sum(), mean * self.num_sentences, self.num_sentences
    )


def loss_stats(
  params: _Params, sentences: jax.Array, weights: jax.Array, *, dtype
) -> LocalStats:
  """The loss of a batch without a step; arguments as of `sgd_step`."""
  batch = _Batch.from_sentences(sentences, weights)
  computed = jax_recurrent.cast_params(params, dtype)
  mean, total = jax_recurrent.embedded_loss(
    computed, computed.embedding[batch.inputs], batch.targets, batch.counts
  )
  return batch.stats(mean, total)


def _differentiate(params: _Params, batch: _Batch, dtype):
  """Metrics, gradients without the embedding's, and those of the rows read."""
  computed = jax_recurrent.cast_params(params, dtype)
  embedded = computed.embedding[batch.inputs]
  (mean, total), (gradients, d_embedded) = jax.value_and_grad(
    jax_recurrent.embedded_loss, argnums=(0, 1), has_aux=True
  )(computed._replace(embedding=None), embedded, batch.targets, batch.counts)
  gradients = jax.tree_util.tree_map(lambda g: g.astype(jnp.float32), gradients)
  rows = d_embedded.astype(jnp.float32).reshape(-1, d_embedded.shape[-1])
  return batch.stats(mean, total), gradients, rows


def loss_and_gradients(
  params: _Params, sentences: jax.Array, weights: jax.Array, *, dtype
) -> tuple[LocalStats, _Params]:
  """The loss of a batch and all its gradients; arguments as of `sgd_step`."""
  batch = _Batch.from_sentences(sentences, weights)
  stats, gradients, rows = _differentiate(params, batch, dtype)
  zeros = jnp.zeros_like(params.embedding)
  return stats, gradients._replace(
    embedding=_add_rows(zeros, batch.inputs.reshape(-1), rows)
  )


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
  batch = _Batch.from_sentences(sentences, weights)
  stats, gradients, rows = _differentiate(params, batch, dtype)
  # Of the embedding only the rows that were read change: no pass over it.
  embedding = _add_rows(
    params.embedding, batch.inputs.reshape(-1), -learning_rate * rows
  )
  others = jax.tree_util.tree_map(
    lambda weight, gradient: weight - learning_rate * gradient,
    params._replace(embedding=None),
    gradients,
  )
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
  tokens, weights = jnp.asarray(tokens), jnp.asarray(weights)
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
