"""An LSTM and a cross-entropy with hand-written derivatives, in JAX.

Their automatic derivatives need several times the memory traffic. The LSTM's
adds to the gradient of the recurrent weights at each time step, where one
product over all time steps is enough. The cross-entropy's scatters into an
array of the logits' size.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

# On CPUs, a product over more rows is a sum of products. XLA splits a product
# over more rows than about 200 into blocks. With two CPU devices and two
# threads, jaxlib 0.10.2 can multiply the first block with the next one's data,
# always in the same way. It does not with a third thread (NPROC=3), which is
# slower.
_ROWS_PER_PRODUCT = 128


def _contract(
  a: jax.Array, b: jax.Array, a_axes: tuple[int, ...], b_axes: tuple[int, ...]
) -> jax.Array:
  """Returns a product over pairs of axes, summed in float32."""
  if jax.default_backend() == 'cpu':
    # XLA for CPUs cannot multiply larger bfloat16 matrices. Products of the
    # same values in float32 are the same.
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
  return jax.lax.dot_general(
    a, b, ((a_axes, b_axes), ((), ())), preferred_element_type=jnp.float32
  )


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
  """Returns a product over a's last and b's first axis, in float32."""
  return _contract(a, b, (a.ndim - 1,), (0,))


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
  """Returns a product over a's last and b's first axis, in their dtype.

  Args:
    a: An array with any number of axes.
    b: A matrix with as many rows as `a` has columns, and the same dtype.
  """
  if jax.default_backend() == 'cpu':
    return _cpu_dot(a, b)
  # On other devices, products and their derivatives stay in that dtype.
  return jnp.dot(a, b)


@jax.custom_vjp
def _cpu_dot(a: jax.Array, b: jax.Array) -> jax.Array:
  return _dot(a, b).astype(a.dtype)


def _cpu_dot_forward(a, b):
  return _cpu_dot(a, b), (a, b)


def _cpu_dot_backward(residuals, gradient):
  a, b = residuals
  return (
    _dot_transposed(gradient, b).astype(a.dtype),
    _sum_of_outer(a, gradient).astype(b.dtype),
  )


_cpu_dot.defvjp(_cpu_dot_forward, _cpu_dot_backward)


@jax.custom_vjp
def add_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
  """Adds a bias; its gradient is summed in float32.

  The automatic derivative sums in the bias's dtype. Some compilers sum bfloat16
  in float32 anyway. Others, such as those for ARM CPUs, round each partial sum;
  a sum of a thousand terms is then off by several percent.

  Args:
    x: An array with any number of axes.
    bias: A vector as long as the last axis, with the same dtype.
  """
  return x + bias


def _add_bias_forward(x, bias):
  return x + bias, None


def _add_bias_backward(_, gradient):
  axes = tuple(range(gradient.ndim - 1))
  summed = gradient.astype(jnp.float32).sum(axis=axes)
  return gradient, summed.astype(gradient.dtype)


add_bias.defvjp(_add_bias_forward, _add_bias_backward)


def _dot_transposed(a: jax.Array, b: jax.Array) -> jax.Array:
  """Returns a product over the last axes of both, in float32."""
  return _contract(a, b, (a.ndim - 1,), (b.ndim - 1,))


def _sum_of_outer(a: jax.Array, b: jax.Array) -> jax.Array:
  """Returns the sum of outer products over all axes but the last."""
  axes = tuple(range(a.ndim - 1))
  num_rows = math.prod(a.shape[:-1])
  if num_rows <= _ROWS_PER_PRODUCT or jax.default_backend() != 'cpu':
    return _contract(a, b, axes, axes)

  num_parts = -(-num_rows // _ROWS_PER_PRODUCT)

  def in_parts(array):
    rows = array.reshape(num_rows, -1)
    padded = jnp.pad(rows, ((0, -num_rows % num_parts), (0, 0)))
    return padded.reshape(num_parts, -1, rows.shape[1])

  def add(total, parts):
    return total + _contract(*parts, (0,), (0,)), None

  start = jnp.zeros((a.shape[-1], b.shape[-1]), jnp.float32)
  return jax.lax.scan(add, start, (in_parts(a), in_parts(b)))[0]


def _scan(step, start, inputs, reverse=False):
  """Loops over time.

  On a GPU the loop is unrolled, which saves copies of each step's slices. On a
  CPU that is slower, and it takes long to compile.
  """
  unroll = 1 if jax.default_backend() == 'cpu' else True
  return jax.lax.scan(step, start, inputs, reverse=reverse, unroll=unroll)


class _LstmTrace(NamedTuple):
  """Inputs of the LSTM's backward pass, each [time, batch, units]."""

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

  # The cell sums over time, always in float32.
  start = jnp.zeros((batch, units), dtype), jnp.zeros((batch, units))
  return _scan(step, start, inputs)[1]


def run_lstm(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
  """Returns what `lstm` does, with the automatic derivative."""
  return _run_lstm(inputs, kernel).hidden


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
  """Returns the states before each time step; the first is 0."""
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
  _, d_gates = _scan(
    step,
    (zeros, zeros),
    (hidden_gradients, _shifted(trace.cell), trace[:5]),
    reverse=True,
  )
  # One product over all time steps. Automatic differentiation would add one
  # product per step, and read and write all recurrent weights each time.
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
  """Returns the sum of the tokens' weighted cross-entropy.

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
  # Compare instead of scattering: this fuses into one pass over the logits.
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
