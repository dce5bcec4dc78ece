"""The next-word LSTM as a model of the JAX engines, with a faster step.

The results are the same as those of `jax_model.Model`. Only the embedding rows
that a batch reads change, and these are added without a pass over the table.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from pda_fed.models import jax_model
from pda_fed.models import jax_recurrent
from pda_fed.models import recurrent

_Params = jax_recurrent.RecurrentParams

# Number of tokens whose rows are summed in one product. The other factor has as
# many rows, and one column for each token of a batch.
_TOKENS_AT_ONCE = 2048


def add_rows(table: jax.Array, tokens: jax.Array, rows: jax.Array) -> jax.Array:
  """Adds rows to the table's rows of `tokens`, which may repeat.

  On a GPU, a scatter-add would sum in an order that varies from run to run.
  Here a small product first sums the rows of equal tokens. Then every
  occurrence of a token writes the same row.

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
    # A public batch may have many users: avoid a matrix of all token pairs.
    padded = jnp.pad(tokens, (0, -size % _TOKENS_AT_ONCE), constant_values=-1)
    blocks = jax.lax.map(sum_of, padded.reshape(-1, _TOKENS_AT_ONCE))
    summed = blocks.reshape(-1, rows.shape[1])[:size]
  table = jnp.asarray(table)
  return table.at[tokens].set(table[tokens] + summed)


class _Batch(NamedTuple):
  """A batch with time as the first axis."""

  inputs: jax.Array
  targets: jax.Array
  counts: jax.Array
  weights: jax.Array

  @classmethod
  def of(cls, examples: tuple, weights: jax.Array) -> '_Batch':
    (sentences,) = examples
    tokens = sentences.T.astype(jnp.int32)
    counts = jax_recurrent.target_weights(tokens[1:], (0,)) * weights
    return cls(tokens[:-1], tokens[1:], counts, weights)

  def stats(self, total: jax.Array) -> jax_model.BatchStats:
    return jax_model.BatchStats.of_batch(total, self.counts.sum(), self.weights)


def _differentiate(params: _Params, batch: _Batch, dtype):
  """Returns metrics, gradients, and gradients of the embedding rows read."""
  computed = jax_recurrent.cast_params(params, dtype)
  embedded = computed.embedding[batch.inputs]
  (_, total), (gradients, d_embedded) = jax.value_and_grad(
    jax_recurrent.embedded_loss, argnums=(0, 1), has_aux=True
  )(computed._replace(embedding=None), embedded, batch.targets, batch.counts)
  gradients = jax.tree_util.tree_map(lambda g: g.astype(jnp.float32), gradients)
  rows = d_embedded.astype(jnp.float32).reshape(-1, d_embedded.shape[-1])
  return batch.stats(total), gradients, rows


class NextWordModel(jax_model.Model):
  """The next-word LSTM.

  Parameters are `RecurrentParams`; examples are (sentences,). Sentences are
  token ids, [batch, time + 1], padded with 0.
  """

  has_perplexity = True

  def __init__(self, spec: recurrent.RecurrentSpec):
    self.spec = spec
    self.shapes = jax_recurrent.shapes(spec)

  def initial_params(self, seed: int):
    """See `jax_model.Model`."""
    return jax_recurrent.initial_params(self.spec, seed)

  def as_params(self, leaves):
    """See `jax_model.Model`."""
    return _Params(*leaves)

  def pad_params(self, params, multiple: int):
    """See `jax_model.Model`."""
    return jax_recurrent.pad_params(params, multiple)

  def unpad_params(self, params):
    """See `jax_model.Model`."""
    return jax_recurrent.unpad_params(params, self.spec)

  def losses(self, params, sentences):
    """See `jax_model.Model`."""
    return self.metric_sums(params, sentences)['loss']

  def metric_sums(self, params, sentences):
    """See `jax_model.Model`; the metrics are those of the Keras model."""
    return jax_recurrent.token_sums(
      self.spec, params, sentences.astype(jnp.int32)
    )

  def batch_stats(self, params, examples, weights, dtype=jnp.float32):
    """See `jax_model.Model`."""
    batch = _Batch.of(examples, weights)
    computed = jax_recurrent.cast_params(params, dtype)
    mean, total = jax_recurrent.embedded_loss(
      computed, computed.embedding[batch.inputs], batch.targets, batch.counts
    )
    return mean, batch.stats(total)

  def gradients(self, params, examples, weights, dtype=jnp.float32):
    """See `jax_model.Model`."""
    batch = _Batch.of(examples, weights)
    stats, gradients, rows = _differentiate(params, batch, dtype)
    zeros = jnp.zeros_like(params.embedding)
    return stats, gradients._replace(
      embedding=add_rows(zeros, batch.inputs.reshape(-1), rows)
    )

  def sgd_step(
    self, params, examples, weights, learning_rate, dtype=jnp.float32
  ):
    """See `jax_model.Model`."""
    batch = _Batch.of(examples, weights)
    stats, gradients, rows = _differentiate(params, batch, dtype)
    embedding = add_rows(
      params.embedding, batch.inputs.reshape(-1), -learning_rate * rows
    )
    others = jax.tree_util.tree_map(
      lambda weight, gradient: weight - learning_rate * gradient,
      params._replace(embedding=None),
      gradients,
    )
    return others._replace(embedding=embedding), stats
