"""The JAX twin of `keras_recurrent`: the same model, loss and metrics.

Weights are a `RecurrentParams`, the arrays of the Keras model in its order, so
that `RecurrentParams(*keras_model.get_weights())` and
`keras_model.set_weights(list(params))` convert both ways.

Two derivatives are written out, since automatic ones cost several times the
traffic of memory: that of the LSTM, whose recurrent weights get their gradient
from one product over all time steps instead of a sum of one for each; and that
of the cross-entropy, which needs the logits once.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.models import recurrent

# Time steps in an iteration of the compiled loop over them.
_UNROLL = 1
# Of logits that stand for no token; its exponential is 0.
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


class TokenSums(NamedTuple):
  """Sums over tokens: whatever they are split by, they add up.

  Attributes:
    loss: Cross-entropy, over all targets but padding.
    tokens: The number of these targets.
    hits: Of these, how many the model ranks first.
    word_hits: The same, of words of the vocabulary alone.
    words: Their number.
  """

  loss: jax.Array
  tokens: jax.Array
  hits: jax.Array
  word_hits: jax.Array
  words: jax.Array


def initial_params(
  spec: recurrent.RecurrentSpec, seed: int = 0
) -> RecurrentParams:
  """Draws weights from the distributions of the Keras model's.

  The numbers are not those that Keras draws from the same seed.

  Args:
    spec: The sizes.
    seed: The same seed, the same weights, wherever it runs.

  Returns:
    float32 arrays of numpy.
  """
  rngs = [
    np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(5)
  ]
  v, e, h = spec.vocabulary_size, spec.embedding_size, spec.lstm_size

  def uniform(rng, shape, limit):
    return rng.uniform(-limit, limit, shape).astype(np.float32)

  def glorot(rng, shape):
    return uniform(rng, shape, np.sqrt(6 / sum(shape)))

  def orthogonal(rng, rows, columns):
    q, r = np.linalg.qr(rng.standard_normal((columns, rows)))
    # The signs make it uniform over orthogonal matrices.
    return (q * np.sign(np.diag(r))).T.astype(np.float32)

  bias = np.zeros(4 * h, np.float32)
  bias[h : 2 * h] = 1  # Keras lets LSTMs remember at first.
  return RecurrentParams(
    embedding=uniform(rngs[0], (v, e), 0.05),
    lstm_kernel=glorot(rngs[1], (e, 4 * h)),
    lstm_recurrent=orthogonal(rngs[2], h, 4 * h),
    lstm_bias=bias,
    projection_kernel=glorot(rngs[3], (h, e)),
    projection_bias=np.zeros(e, np.float32),
    logits_kernel=glorot(rngs[4], (e, v)),
    logits_bias=np.zeros(v, np.float32),
  )


def check_params(spec: recurrent.RecurrentSpec, weights) -> RecurrentParams:
  """Returns the weights as `RecurrentParams`, or says why they are not.

  Args:
    spec: The sizes.
    weights: Arrays in the order of the Keras model.

  Raises:
    ValueError: If the number of arrays or a shape is another model's.
  """
  shapes = [np.shape(w) for w in weights]
  expected = list(_shapes(spec))
  if shapes != expected:
    raise ValueError(
      f'weights must be those of {spec}, of the shapes {expected}. Found'
      f' {shapes}: they are of another model.'
    )
  return RecurrentParams(*weights)


def _shapes(spec: recurrent.RecurrentSpec) -> RecurrentParams:
  v, e, h = spec.vocabulary_size, spec.embedding_size, spec.lstm_size
  return RecurrentParams(
    (v, e), (e, 4 * h), (h, 4 * h), (4 * h,), (h, e), (e,), (e, v), (v,)
  )


def pad_params(params: RecurrentParams, multiple: int) -> RecurrentParams:
  """Enlarges LSTM and vocabulary to sizes that matrix units like.

  The new units and tokens are exactly without effect, and their gradients are
  exactly 0: units have weights of 0, so their state stays 0; new logits are so
  low that their probability is 0.

  Args:
    params: The weights.
    multiple: Of which units and tokens become multiples.
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
  """Takes off what `pad_params` put on; also for updates.

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


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
  """A product over a's last and b's first axis, summed in float32."""
  return jax.lax.dot_general(
    a,
    b,
    (((a.ndim - 1,), (0,)), ((), ())),
    preferred_element_type=jnp.float32,
  )


def _dot_transposed(a: jax.Array, b: jax.Array) -> jax.Array:
  """A product over the last axes of both, summed in float32."""
  return jax.lax.dot_general(
    a,
    b,
    (((a.ndim - 1,), (b.ndim - 1,)), ((), ())),
    preferred_element_type=jnp.float32,
  )


def _sum_of_outer(a: jax.Array, b: jax.Array) -> jax.Array:
  """The sum of outer products over all axes but the last."""
  axes = tuple(range(a.ndim - 1))
  return jax.lax.dot_general(
    a, b, ((axes, axes), ((), ())), preferred_element_type=jnp.float32
  )


class _LstmTrace(NamedTuple):
  """What the backward pass of the LSTM reads, each [time, batch, units]."""

  input_gate: jax.Array
  forget_gate: jax.Array
  cell_input: jax.Array
  output_gate: jax.Array
  cell: jax.Array
  hidden: jax.Array


def _run_lstm(inputs: jax.Array, kernel: jax.Array) -> _LstmTrace:
  batch, units = inputs.shape[1], kernel.shape[0]
  dtype = inputs.dtype

  def step(carry, projected):
    hidden, cell = carry
    gates = projected.astype(jnp.float32) + _dot(hidden, kernel)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    i, f, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jax.nn.sigmoid(o)
    g = jnp.tanh(g)
    cell = f * cell + i * g
    hidden = (o * jnp.tanh(cell)).astype(dtype)
    trace = _LstmTrace(*(x.astype(dtype) for x in (i, f, g, o, cell)), hidden)
    return (hidden, cell), trace

  # The cell sums over time, in float32 whatever the products are in.
  start = jnp.zeros((batch, units), dtype), jnp.zeros((batch, units))
  return jax.lax.scan(step, start, inputs, unroll=_UNROLL)[1]


@jax.custom_vjp
def lstm(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
  """Runs an LSTM over inputs that are already projected to the gates.

  Args:
    inputs: [time, batch, 4 units], the input's part of the gates, with bias.
    kernel: [units, 4 units], the recurrent weights.

  Returns:
    The hidden states, [time, batch, units].
  """
  return _run_lstm(inputs, kernel).hidden


def _lstm_forward(inputs, kernel):
  trace = _run_lstm(inputs, kernel)
  return trace.hidden, (trace, kernel)


def _shifted(states: jax.Array) -> jax.Array:
  """States before each time step; the first is 0."""
  return jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])


def _lstm_backward(residuals, hidden_gradients):
  trace, kernel = residuals
  dtype = kernel.dtype

  def step(carry, at_step):
    d_hidden, d_cell = carry
    d_output, cell_before, now = at_step
    i, f, g, o, cell, before = (
      x.astype(jnp.float32) for x in (*now, cell_before)
    )
    d_hidden = d_hidden + d_output.astype(jnp.float32)
    squashed = jnp.tanh(cell)
    d_cell = d_cell + d_hidden * o * (1 - squashed * squashed)
    d_gates = jnp.concatenate(
      [
        d_cell * g * i * (1 - i),
        d_cell * before * f * (1 - f),
        d_cell * i * (1 - g * g),
        d_hidden * squashed * o * (1 - o),
      ],
      axis=-1,
    ).astype(dtype)
    return (_dot_transposed(d_gates, kernel), d_cell * f), d_gates

  zeros = jnp.zeros(trace.cell.shape[1:])
  _, d_gates = jax.lax.scan(
    step,
    (zeros, zeros),
    (hidden_gradients, _shifted(trace.cell), trace[:5]),
    reverse=True,
    unroll=_UNROLL,
  )
  # One product over all time steps; automatic differentiation adds up one for
  # each, reading and writing all of the recurrent weights every time.
  d_kernel = _sum_of_outer(_shifted(trace.hidden), d_gates).astype(dtype)
  return d_gates, d_kernel


lstm.defvjp(_lstm_forward, _lstm_backward)


@jax.custom_vjp
def cross_entropy(
  states: jax.Array,
  kernel: jax.Array,
  bias: jax.Array,
  targets: jax.Array,
  weights: jax.Array,
) -> jax.Array:
  """Sums the weighted cross-entropy of tokens.

  Args:
    states: [tokens, embedding].
    kernel: [embedding, vocabulary].
    bias: [vocabulary].
    targets: Token ids, [tokens].
    weights: [tokens], not differentiated.
  """
  return _cross_entropy_forward(states, kernel, bias, targets, weights)[0]


def _cross_entropy_forward(states, kernel, bias, targets, weights):
  logits = (_dot(states, kernel) + bias).astype(states.dtype)
  normalizer = jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)
  chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
  loss = jnp.sum(weights * (normalizer - chosen.astype(jnp.float32)))
  return loss, (states, kernel, logits, normalizer, targets, weights)


def _cross_entropy_backward(residuals, gradient):
  states, kernel, logits, normalizer, targets, weights = residuals
  probabilities = jnp.exp(logits.astype(jnp.float32) - normalizer[:, None])
  # Compared, not scattered: this fuses into one pass over the logits.
  tokens = jax.lax.broadcasted_iota(targets.dtype, logits.shape, 1)
  d_logits = (
    (probabilities - (tokens == targets[:, None]))
    * (gradient * weights)[:, None]
  ).astype(states.dtype)
  return (
    _dot_transposed(d_logits, kernel).astype(states.dtype),
    _sum_of_outer(states, d_logits).astype(kernel.dtype),
    d_logits.astype(jnp.float32).sum(axis=0).astype(kernel.dtype),
    None,
    None,
  )


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def _dense(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
  return jnp.dot(x, kernel) + bias


def _states(params: RecurrentParams, embedded: jax.Array) -> jax.Array:
  """The inputs of the last layer, [time, batch, embedding]."""
  # Of all time steps at once: only the recurrent product has to wait.
  inputs = _dense(embedded, params.lstm_kernel, params.lstm_bias)
  hidden = lstm(inputs, params.lstm_recurrent)
  return _dense(hidden, params.projection_kernel, params.projection_bias)


def apply(params: RecurrentParams, tokens: jax.Array) -> jax.Array:
  """Returns logits, [batch, time, vocabulary], of tokens, [batch, time]."""
  embedded = params.embedding[tokens.T]
  states = _states(params, embedded).transpose(1, 0, 2)
  return _dense(states, params.logits_kernel, params.logits_bias)


def target_weights(targets: jax.Array, masked: tuple[int, ...]) -> jax.Array:
  """1 where a target counts, 0 where it is one of the masked tokens."""
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
  """The mean loss per token of a batch, from embedded inputs.

  What `keras_recurrent.MaskedCrossEntropy` computes; 0 for padding alone.

  Args:
    params: The weights, of which the embedding is not used.
    embedded: [time, batch, embedding].
    targets: Token ids, [time, batch].
    weights: [time, batch], 0 for padding and 1 for tokens.

  Returns:
    The mean, and the sum that it comes from.
  """
  states = _states(params, embedded)
  total = cross_entropy(
    states.reshape(-1, states.shape[-1]),
    params.logits_kernel,
    params.logits_bias,
    targets.reshape(-1),
    weights.reshape(-1),
  )
  return total / jnp.maximum(weights.sum(), 1.0), total


def token_sums(
  spec: recurrent.RecurrentSpec, params: RecurrentParams, sentences: jax.Array
) -> TokenSums:
  """The metrics of `keras_recurrent.create_metrics`, as sums.

  Args:
    spec: Where the special tokens are.
    params: The weights.
    sentences: Token ids, [batch, time + 1].
  """
  targets = sentences[:, 1:]
  logits = apply(params, sentences[:, :-1]).astype(jnp.float32)
  chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
  losses = jax.nn.logsumexp(logits, axis=-1) - chosen
  hits = (logits.argmax(axis=-1) == targets).astype(jnp.float32)
  counts = target_weights(targets, (spec.pad,))
  words = target_weights(targets, (spec.pad, spec.oov, spec.bos, spec.eos))
  return TokenSums(
    loss=(losses * counts).sum(),
    tokens=counts.sum(),
    hits=(hits * counts).sum(),
    word_hits=(hits * words).sum(),
    words=words.sum(),
  )
