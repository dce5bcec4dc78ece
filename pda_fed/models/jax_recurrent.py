"""The model, loss and metrics of `keras_recurrent` in JAX.

Weights are a `RecurrentParams`, the arrays of the Keras model in its order, so
that `RecurrentParams(*keras_model.get_weights())` and
`keras_model.set_weights(list(params))` convert both ways.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.models import initializers
from pda_fed.models import jax_ops
from pda_fed.models import recurrent

# Logit of padded tokens; its exponential is 0.
_NO_TOKEN = -1e30


class RecurrentParams(NamedTuple):
  """The weights, in the order of the Keras model.

  Attributes:
    embedding: [vocabulary, embedding].
    lstm_kernel: [embedding, 4 units]; gates are input, forget, cell, output.
    lstm_recurrent: [units, 4 units].
    lstm_bias: [4 units].
    projection_kernel: [units, embedding].
    projection_bias: [embedding].
    logits_kernel: [embedding, vocabulary].
    logits_bias: [vocabulary].
  """

  embedding: jax.Array
  lstm_kernel: jax.Array
  lstm_recurrent: jax.Array
  lstm_bias: jax.Array
  projection_kernel: jax.Array
  projection_bias: jax.Array
  logits_kernel: jax.Array
  logits_bias: jax.Array


def initial_params(
  spec: recurrent.RecurrentSpec, seed: int = 0
) -> RecurrentParams:
  """Draws weights from the same distributions as the Keras model.

  The values differ from those that Keras draws with the same seed.

  Args:
    spec: The sizes.
    seed: The seed. The same seed gives the same weights everywhere.

  Returns:
    float32 numpy arrays.
  """
  rngs = [
    np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(5)
  ]
  v, e, h = spec.vocabulary_size, spec.embedding_size, spec.lstm_size

  bias = np.zeros(4 * h, np.float32)
  bias[h : 2 * h] = 1  # Forget gate; Keras starts it open, too.
  return RecurrentParams(
    embedding=initializers.uniform(rngs[0], (v, e), 0.05),
    lstm_kernel=initializers.glorot_uniform(rngs[1], (e, 4 * h)),
    lstm_recurrent=initializers.orthogonal(rngs[2], (h, 4 * h)),
    lstm_bias=bias,
    projection_kernel=initializers.glorot_uniform(rngs[3], (h, e)),
    projection_bias=np.zeros(e, np.float32),
    logits_kernel=initializers.glorot_uniform(rngs[4], (e, v)),
    logits_bias=np.zeros(v, np.float32),
  )


def shapes(spec: recurrent.RecurrentSpec) -> RecurrentParams:
  """Returns the shapes of the weights."""
  v, e, h = spec.vocabulary_size, spec.embedding_size, spec.lstm_size
  return RecurrentParams(
    (v, e), (e, 4 * h), (h, 4 * h), (4 * h,), (h, e), (e,), (e, v), (v,)
  )


def pad_params(params: RecurrentParams, multiple: int) -> RecurrentParams:
  """Pads the LSTM and the vocabulary to multiples of a size.

  Matrix units are faster at such sizes. The new units and tokens have exactly
  no effect, and their gradients are exactly 0: units have weights of 0, so
  their state stays 0; new logits are so low that their probability is 0.

  Args:
    params: The weights.
    multiple: Numbers of units and tokens become multiples of this.
  """
  h, v = params.lstm_recurrent.shape[0], params.logits_bias.shape[0]
  more_h, more_v = -h % multiple, -v % multiple
  if not more_h and not more_v:
    return params

  def gates(array):
    split = array.reshape(*array.shape[:-1], 4, h)
    padded = jnp.pad(split, [(0, 0)] * array.ndim + [(0, more_h)])
    return padded.reshape(*array.shape[:-1], -1)

  rows = [(0, more_h), (0, 0)]
  return RecurrentParams(
    embedding=jnp.pad(params.embedding, [(0, more_v), (0, 0)]),
    lstm_kernel=gates(params.lstm_kernel),
    lstm_recurrent=jnp.pad(gates(params.lstm_recurrent), rows),
    lstm_bias=gates(params.lstm_bias),
    projection_kernel=jnp.pad(params.projection_kernel, rows),
    projection_bias=params.projection_bias,
    logits_kernel=jnp.pad(params.logits_kernel, [(0, 0), (0, more_v)]),
    logits_bias=jnp.pad(
      params.logits_bias, [(0, more_v)], constant_values=_NO_TOKEN
    ),
  )


def unpad_params(
  padded: RecurrentParams, spec: recurrent.RecurrentSpec
) -> RecurrentParams:
  """Removes the padding of `pad_params`; also for updates.

  Args:
    padded: Padded weights, or their updates.
    spec: The sizes without padding.
  """
  h, v = spec.lstm_size, spec.vocabulary_size

  def gates(array):
    split = array.reshape(*array.shape[:-1], 4, -1)
    return split[..., :h].reshape(*array.shape[:-1], 4 * h)

  return RecurrentParams(
    embedding=padded.embedding[:v],
    lstm_kernel=gates(padded.lstm_kernel),
    lstm_recurrent=gates(padded.lstm_recurrent[:h]),
    lstm_bias=gates(padded.lstm_bias),
    projection_kernel=padded.projection_kernel[:h],
    projection_bias=padded.projection_bias,
    logits_kernel=padded.logits_kernel[:, :v],
    logits_bias=padded.logits_bias[:v],
  )


def cast_params(params: RecurrentParams, dtype) -> RecurrentParams:
  """Returns the weights in the dtype of the computation."""
  return RecurrentParams(*(jnp.asarray(w, dtype) for w in params))


def _dense(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
  return jax_ops.add_bias(jax_ops.dot(x, kernel), bias)


def _states(params: RecurrentParams, embedded: jax.Array) -> jax.Array:
  """Returns the inputs of the last layer, [time, batch, embedding]."""
  # For all time steps at once; only the recurrent product is sequential.
  inputs = _dense(embedded, params.lstm_kernel, params.lstm_bias)
  hidden = jax_ops.lstm(inputs, params.lstm_recurrent)
  return _dense(hidden, params.projection_kernel, params.projection_bias)


def apply(params: RecurrentParams, tokens: jax.Array) -> jax.Array:
  """Returns logits, [batch, time, vocabulary], of tokens, [batch, time]."""
  embedded = params.embedding[tokens.T]
  states = _states(params, embedded).transpose(1, 0, 2)
  return _dense(states, params.logits_kernel, params.logits_bias)


def target_weights(targets: jax.Array, masked: tuple[int, ...]) -> jax.Array:
  """Returns 1 for targets that count and 0 for masked tokens."""
  counts = functools.reduce(
    jnp.logical_and, [targets != token for token in masked]
  )
  return counts.astype(jnp.float32)


def embedded_loss(
  params: RecurrentParams,
  embedded: jax.Array,
  targets: jax.Array,
  weights: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Returns the mean loss per token of a batch, from embedded inputs.

  The same as `keras_recurrent.MaskedCrossEntropy`; 0 for a batch of padding.

  Args:
    params: The weights; the embedding is not used.
    embedded: [time, batch, embedding].
    targets: Token ids, [time, batch].
    weights: [time, batch], 0 for padding and 1 for tokens.

  Returns:
    The mean, and the sum.
  """
  states = _states(params, embedded)
  total = jax_ops.cross_entropy(
    states.reshape(-1, states.shape[-1]),
    params.logits_kernel,
    params.logits_bias,
    targets.reshape(-1),
    weights.reshape(-1),
  )
  return total / jnp.maximum(weights.sum(), 1.0), total


def token_sums(
  spec: recurrent.RecurrentSpec, params: RecurrentParams, sentences: jax.Array
) -> dict[str, tuple[jax.Array, jax.Array]]:
  """Returns the metrics of `keras_recurrent.create_metrics`, as sums.

  Args:
    spec: The specification, which defines the special tokens.
    params: The weights.
    sentences: Token ids, [batch, time + 1].

  Returns:
    `loss` and `accuracy_with_oov`, over all targets but padding, and
    `accuracy`, over words of the vocabulary. Each is the sum over a sentence's
    targets and the number of targets, [batch].
  """
  targets = sentences[:, 1:]
  logits = apply(params, sentences[:, :-1]).astype(jnp.float32)
  chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
  losses = jax.nn.logsumexp(logits, axis=-1) - chosen
  hits = (logits.argmax(axis=-1) == targets).astype(jnp.float32)
  counts = target_weights(targets, (spec.pad,))
  words = target_weights(targets, (spec.pad, spec.oov, spec.bos, spec.eos))

  def sums(values, weights):
    return (values * weights).sum(axis=1), weights.sum(axis=1)

  return {
    'loss': sums(losses, counts),
    'accuracy': sums(hits, words),
    'accuracy_with_oov': sums(hits, counts),
  }
