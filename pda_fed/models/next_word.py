"""The next-word LSTM in JAX, with the loss and metrics of `keras_recurrent`.

Its loss is plain JAX. Local training has a faster rule with the same results:
hand-written derivatives, sizes that suit matrix units, and a step that changes
only the rows of the embedding that a batch reads.
"""

import functools
from typing import Any

import jax
from jax.nn import initializers
import jax.numpy as jnp
from pda_fed.models import batches
from pda_fed.models import flax_models
from pda_fed.models import losses
from pda_fed.models import model as model_lib
from pda_fed.models import next_word_ops as ops
from pda_fed.models import recurrent

Params = dict[str, dict[str, jax.Array]]

# Padded sizes are multiples of this.
_PAD_TO = 8
# Logit of padded tokens; its exponential is 0.
_NO_TOKEN = -1e30
# Number of tokens whose rows are summed in one product. The other factor has as
# many rows, and one column for each token of a batch.
_TOKENS_AT_ONCE = 2048


def create(spec: recurrent.RecurrentSpec) -> model_lib.Model:
  """Returns the model; an example is a sentence of token ids, padded with 0.

  Args:
    spec: The sizes.
  """

  def logits(params, tokens):
    embedded = params['embedding']['embedding'][tokens][:, None]
    states = _states(params, embedded, _plain_dense, ops.run_lstm)
    return _plain_dense(params['logits'], states[:, 0])

  return model_lib.Model(
    functools.partial(_init, spec),
    functools.partial(_loss, spec, logits),
    logits=logits,
    has_perplexity=True,
    fast=model_lib.FastRule(
      batch_loss=_batch_loss,
      sgd_step=_sgd_step,
      pad=functools.partial(pad_params, multiple=_PAD_TO),
      unpad=functools.partial(unpad_params, spec=spec),
    ),
  )


def _init(spec: recurrent.RecurrentSpec, seed: int) -> Params:
  """Draws weights from the same distributions as the Keras model."""
  keys = jax.random.split(flax_models.key_of(seed), 5)
  v, e, h = spec.vocabulary_size, spec.embedding_size, spec.lstm_size
  glorot, orthogonal = initializers.glorot_uniform(), initializers.orthogonal()
  table = jax.random.uniform(keys[0], (v, e), minval=-0.05, maxval=0.05)
  return {
    'embedding': {'embedding': table},
    'lstm': {
      'kernel': glorot(keys[1], (e, 4 * h)),
      'recurrent_kernel': orthogonal(keys[2], (h, 4 * h)),
      # The forget gate starts open, as in Keras.
      'bias': jnp.zeros(4 * h).at[h : 2 * h].set(1),
    },
    'projection': {'kernel': glorot(keys[3], (h, e)), 'bias': jnp.zeros(e)},
    'logits': {'kernel': glorot(keys[4], (e, v)), 'bias': jnp.zeros(v)},
  }


def _dense(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
  return ops.add_bias(ops.dot(x, layer['kernel']), layer['bias'])


def _plain_dense(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
  return jnp.dot(x, layer['kernel']) + layer['bias']


def _states(params: Params, embedded: jax.Array, dense, run) -> jax.Array:
  """Returns the inputs of the last layer, [time, batch, embedding]."""
  # For all time steps at once; only the recurrent product is sequential.
  inputs = dense(params['lstm'], embedded)
  hidden = run(inputs, params['lstm']['recurrent_kernel'])
  return dense(params['projection'], hidden)


def _counted(targets: jax.Array, *masked: int) -> jax.Array:
  """Returns 1 for targets that count and 0 for masked tokens."""
  counts = jnp.ones(targets.shape, bool)
  for token in masked:
    counts &= targets != token
  return counts.astype(jnp.float32)


def _loss(spec, logits_fn, params: Params, sentence: jax.Array):
  """Returns the sum of a sentence's losses, and the Keras model's metrics."""
  tokens = sentence.astype(jnp.int32)
  targets = tokens[1:]
  logits = logits_fn(params, tokens[:-1]).astype(jnp.float32)
  every = _counted(targets, spec.pad)
  words = _counted(targets, spec.pad, spec.oov, spec.bos, spec.eos)
  loss = (losses.cross_entropy(logits, targets) * every).sum()
  hits = losses.is_hit(logits, targets)
  return loss, {
    'loss': (loss, every.sum()),
    'accuracy': ((hits * words).sum(), words.sum()),
    'accuracy_with_oov': ((hits * every).sum(), every.sum()),
  }


def pad_params(params: Params, multiple: int) -> Params:
  """Pads the LSTM and the vocabulary to multiples of a size.

  Matrix units are faster at such sizes. The new units and tokens have exactly
  no effect, and their gradients are exactly 0: units have weights of 0, so
  their state stays 0; new logits are so low that their probability is 0.

  Args:
    params: The weights.
    multiple: Numbers of units and tokens become multiples of this.
  """
  lstm, logits = params['lstm'], params['logits']
  h, v = len(lstm['recurrent_kernel']), len(logits['bias'])
  more_h, more_v = -h % multiple, -v % multiple

  def gates(array):
    split = array.reshape(*array.shape[:-1], 4, h)
    padded = jnp.pad(split, [(0, 0)] * array.ndim + [(0, more_h)])
    return padded.reshape(*array.shape[:-1], -1)

  def rows(array, more):
    return jnp.pad(array, [(0, more), (0, 0)])

  return {
    'embedding': {'embedding': rows(params['embedding']['embedding'], more_v)},
    'lstm': {
      'kernel': gates(lstm['kernel']),
      'recurrent_kernel': rows(gates(lstm['recurrent_kernel']), more_h),
      'bias': gates(lstm['bias']),
    },
    'projection': {
      'kernel': rows(params['projection']['kernel'], more_h),
      'bias': params['projection']['bias'],
    },
    'logits': {
      'kernel': jnp.pad(logits['kernel'], [(0, 0), (0, more_v)]),
      'bias': jnp.pad(logits['bias'], (0, more_v), constant_values=_NO_TOKEN),
    },
  }


def unpad_params(padded: Params, spec: recurrent.RecurrentSpec) -> Params:
  """Removes the padding of `pad_params`; also for updates.

  Args:
    padded: Padded weights, or their updates.
    spec: The sizes without padding.
  """
  h, v = spec.lstm_size, spec.vocabulary_size
  lstm, logits = padded['lstm'], padded['logits']

  def gates(array):
    split = array.reshape(*array.shape[:-1], 4, -1)
    return split[..., :h].reshape(*array.shape[:-1], 4 * h)

  return {
    'embedding': {'embedding': padded['embedding']['embedding'][:v]},
    'lstm': {
      'kernel': gates(lstm['kernel']),
      'recurrent_kernel': gates(lstm['recurrent_kernel'][:h]),
      'bias': gates(lstm['bias']),
    },
    'projection': {
      'kernel': padded['projection']['kernel'][:h],
      'bias': padded['projection']['bias'],
    },
    'logits': {'kernel': logits['kernel'][:, :v], 'bias': logits['bias'][:v]},
  }


def _split(examples: tuple, weights: jax.Array):
  """Returns inputs, targets and counts of a batch, [time, batch] each."""
  (sentences,) = examples
  tokens = sentences.T.astype(jnp.int32)
  return tokens[:-1], tokens[1:], _counted(tokens[1:], 0) * weights


def _total(params: Params, embedded: jax.Array, targets, counts) -> jax.Array:
  """Returns the sum of a batch's losses, from embedded inputs."""
  states = _states(params, embedded, _dense, ops.lstm)
  return ops.cross_entropy(
    states.reshape(-1, states.shape[-1]),
    params['logits']['kernel'],
    params['logits']['bias'],
    targets.reshape(-1),
    counts.reshape(-1),
  )


def _batch_loss(params: Params, examples: tuple, weights: jax.Array):
  """See `FastRule`."""
  inputs, targets, counts = _split(examples, weights)
  embedded = look_up(params['embedding']['embedding'], inputs)
  return _total(params, embedded, targets, counts), counts.sum()


def _sgd_step(
  params: Params, examples: tuple, weights, learning_rate, dtype: Any
):
  """See `FastRule`."""
  inputs, targets, counts = _split(examples, weights)
  table = params['embedding']['embedding']
  others = {name: w for name, w in params.items() if name != 'embedding'}

  def mean_loss(others, embedded):
    total = _total(others, embedded, targets, counts)
    return total / jnp.maximum(counts.sum(), 1.0), total

  (gradients, of_embedded), total = jax.grad(
    mean_loss, argnums=(0, 1), has_aux=True
  )(batches.cast(others, dtype), table.astype(dtype)[inputs])
  stepped = jax.tree.map(
    lambda w, g: w - learning_rate * g.astype(jnp.float32), others, gradients
  )
  rows = of_embedded.astype(jnp.float32).reshape(-1, table.shape[1])
  table = add_rows(table, inputs.reshape(-1), -learning_rate * rows)
  stats = batches.BatchStats.of_batch(total, counts.sum(), weights)
  return {**stepped, 'embedding': {'embedding': table}}, stats


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


@jax.custom_vjp
def look_up(table: jax.Array, tokens: jax.Array) -> jax.Array:
  """Returns rows of a table; the derivative is `add_rows`."""
  return table[tokens]


def _look_up_backward(residuals, gradient):
  shape, tokens = residuals
  rows = gradient.astype(jnp.float32).reshape(-1, shape.shape[1])
  table = add_rows(jnp.zeros(shape.shape), tokens.reshape(-1), rows)
  return table.astype(shape.dtype), None


look_up.defvjp(
  lambda table, tokens: (table[tokens], (table, tokens)), _look_up_backward
)
