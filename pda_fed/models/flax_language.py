"""The Flax module of a `LanguageSpec`."""

from flax import linen as nn
import jax
import jax.numpy as jnp
from pda_fed.models import flax_models
from pda_fed.models import language
from pda_fed.models import losses
from pda_fed.models import model as model_lib

_EMBEDDING_LIMIT = 0.05  # As in Keras.


def uniform(key, shape, dtype=jnp.float32) -> jax.Array:
  """Draws an embedding table, as Keras does."""
  limit = _EMBEDDING_LIMIT
  return jax.random.uniform(key, shape, dtype, -limit, limit)


def open_gate(key, shape, dtype=jnp.float32) -> jax.Array:
  """Returns an LSTM's bias; the forget gate starts open, as in Keras."""
  del key
  units = shape[0] // 4
  return jnp.zeros(shape, dtype).at[units : 2 * units].set(1)


class Lstm(nn.Module):
  """An LSTM with the weights and gates of Keras: input, forget, cell, output.

  Attributes:
    units: Number of units.
  """

  units: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns hidden states, [batch, time, units].

    Args:
      x: [batch, time, features].
    """
    gates, init = 4 * self.units, nn.initializers
    kernel = self.param('kernel', init.glorot_uniform(), (x.shape[-1], gates))
    recurrent = self.param(
      'recurrent_kernel', init.orthogonal(), (self.units, gates)
    )
    bias = self.param('bias', open_gate, (gates,))
    projected = jnp.dot(x, kernel) + bias

    def step(carry, projected):
      hidden, cell = carry
      product = jnp.dot(hidden, recurrent, preferred_element_type=jnp.float32)
      gates = projected.astype(jnp.float32) + product
      i, f, g, o = jnp.split(gates, 4, axis=-1)
      # The cell sums over time, always in float32.
      cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
      hidden = (jax.nn.sigmoid(o) * jnp.tanh(cell)).astype(x.dtype)
      return (hidden, cell), hidden

    zeros = jnp.zeros((len(x), self.units))
    # Unrolled on a GPU, which saves copies of each step's slices.
    unroll = 1 if jax.default_backend() == 'cpu' else True
    _, states = jax.lax.scan(
      step,
      (zeros.astype(x.dtype), zeros),
      projected.swapaxes(0, 1),
      unroll=unroll,
    )
    return states.swapaxes(0, 1)


class Language(nn.Module):
  """Embedding, LSTMs, logits; dropout precedes each layer but the first."""

  spec: language.LanguageSpec
  dropout: float = 0.0

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    """Returns logits, [batch, time, vocabulary].

    Args:
      tokens: [batch, time].
    """
    spec = self.spec
    drop = nn.Dropout(self.dropout, deterministic=not self.has_rng('dropout'))
    x = nn.Embed(
      spec.vocabulary_size,
      spec.embedding_size,
      embedding_init=uniform,
      name='embedding',
    )(tokens.astype(jnp.int32))
    for i in range(spec.num_layers):
      x = Lstm(spec.lstm_size, name=f'lstm_{i + 1}')(drop(x))
    init = nn.initializers.glorot_uniform()
    return nn.Dense(spec.vocabulary_size, kernel_init=init, name='logits')(
      drop(x)
    )


def create(spec: language.LanguageSpec) -> model_lib.Model:
  """Returns the model of a specification."""

  def loss(logits, targets):
    total, sums = losses.tokens(logits, targets)
    is_sum = spec.loss_per_sequence == 'sum'
    return total if is_sum else total / targets.size, sums

  return flax_models.from_flax(
    Language(spec), jnp.zeros(1, jnp.int32), loss, has_perplexity=True
  )
