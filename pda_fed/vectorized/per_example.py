"""Gradients of single examples: their norms, and their clipped sum.

DP-SGD ("Deep Learning with Differential Privacy", Abadi et al., CCS 2016,
arXiv:1607.00133) clips the gradient of each example. One at a time, or by
`vmap(grad)`, that costs several times an ordinary step. Here one ordinary
backward pass of the batch gives the deltas of each layer, and of an example's
gradient by a kernel,

    G = X' D,    X: positions x inputs,    D: positions x outputs,

only the norm is needed (positions are pixels, or steps of a sequence):

    ||G||^2 = sum_{p, q} (X X')_{p q} (D D')_{p q},

the *ghost norm* of Gram matrices ("Large Language Models Can Be Strong
Differentially Private Learners", Li et al., ICLR 2022, arXiv:2110.05679, after
"Efficient Per-Example Gradient Computations", Goodfellow, arXiv:1510.01799), or
G itself where that is cheaper. The clipped sum is then one product for all
examples.

Whatever the dtype of the backward pass, norms and sums here are of the deltas
that it gave, in float32 at full precision: the bound on an example's part of
the sum holds for what is summed.
"""

from collections.abc import Callable
from typing import NamedTuple, Optional

import jax
import jax.numpy as jnp
from pda_fed.models import jax_layers
from pda_fed.vectorized import aggregation
from pda_fed.vectorized import clipping

_Arrays = tuple[jax.Array, ...]


class _LayerSums(NamedTuple):
  """What a layer adds to the clipping.

  Attributes:
    squared_norms: Of the examples' gradients by the layer's arrays.
    weighted_sum: Of weights and of which examples count, the weighted sum of
      gradients by each array.
  """

  squared_norms: jax.Array
  weighted_sum: Callable[[jax.Array, jax.Array], _Arrays]


def _product(a, b, contract, batch=((), ())) -> jax.Array:
  """A product in float32; GPUs would round its factors to TF32 by default."""
  return jax.lax.dot_general(
    a,
    b,
    (contract, batch),
    precision=jax.lax.Precision.HIGHEST,
    preferred_element_type=jnp.float32,
  )


def _gram(x: jax.Array) -> jax.Array:
  """Inner products of positions, [batch, positions, positions]."""
  return _product(x, x, ((2,), (2,)), ((0,), (0,)))


def _square_sum(x: jax.Array) -> jax.Array:
  """Of each example."""
  return jnp.square(x.astype(jnp.float32)).sum(axis=tuple(range(1, x.ndim)))


def _keep(counts: jax.Array, x: jax.Array) -> jax.Array:
  """What does not count becomes 0, even NaN."""
  return jnp.where(counts.reshape((-1,) + (1,) * (x.ndim - 1)), x, 0)


def _weigh(weights: jax.Array, counts: jax.Array, x: jax.Array) -> jax.Array:
  """Weights examples in float32; what does not count is 0, even NaN."""
  shape = (-1,) + (1,) * (x.ndim - 1)
  return _keep(counts, weights.reshape(shape) * x.astype(jnp.float32))


def _is_ghost_cheaper(positions: int, inputs: int, outputs: int) -> bool:
  """Whether Gram matrices need fewer products than gradients."""
  return positions * (inputs + outputs) < inputs * outputs


def _split(x: jax.Array) -> jax.Array:
  """Writes float32 numbers as sums of three bfloat16 ones, side by side.

  A product of bfloat16 numbers is exact in float32, and on a GPU many times as
  fast as one of float32 numbers.

  Args:
    x: [..., features].

  Returns:
    [..., 3 * features].
  """
  parts = []
  for _ in range(3):
    # XLA leaves out a cast to bfloat16 and back, but never this.
    part = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    parts.append(part.astype(jnp.bfloat16))
    x = x - part
  return jnp.concatenate(parts, axis=-1)


def _weighted_product(weighted: jax.Array, other: jax.Array) -> jax.Array:
  """Sums outer products over examples and positions, to float32's precision.

  Args:
    weighted: [batch, positions, a], in float32.
    other: [batch, positions, b], in the dtype of the backward pass.

  Returns:
    [a, b].
  """
  over = (0, 1), (0, 1)
  if other.dtype != jnp.bfloat16:
    return _product(weighted, other, over)
  parts = _product(_split(weighted), other, over)
  return parts.reshape(3, weighted.shape[-1], -1).sum(axis=0)


def _with_ones(x: jax.Array) -> jax.Array:
  """Adds the bias's input, 1, and zeros up to a width that GPUs like."""
  width = x.shape[-1]
  padded = -(-(width + 1) // 8) * 8
  ones = jnp.zeros((padded - width,), x.dtype).at[0].set(1)
  return jnp.concatenate(
    [x, jnp.broadcast_to(ones, (*x.shape[:-1], padded - width))], axis=-1
  )


def _ghost_sums(x: jax.Array, delta: jax.Array) -> _LayerSums:
  """From Gram matrices; the 1 is the bias, whose input is 1."""
  squared_norms = ((_gram(x) + 1) * _gram(delta)).sum(axis=(1, 2))

  def weighted_sum(weights, counts):
    # Weights go to the narrower factor: weighing is a pass over it in float32.
    inputs = x.shape[-1]
    if inputs < delta.shape[-1]:
      weighted = _weigh(weights, counts, _with_ones(x))
      kernels = _weighted_product(weighted, _keep(counts, delta))
      return kernels[:inputs], kernels[inputs]
    weighted = _weigh(weights, counts, delta)
    kernel = _weighted_product(weighted, _keep(counts, x)).T
    return kernel, weighted.sum(axis=(0, 1))

  return _LayerSums(squared_norms, weighted_sum)


def _direct_sums(x: jax.Array, delta: jax.Array) -> _LayerSums:
  """From gradients of single examples."""
  kernels = _product(x, delta, ((1,), (1,)), ((0,), (0,)))
  biases = delta.astype(jnp.float32).sum(axis=1)

  def weighted_sum(weights, counts):
    return tuple(
      _weigh(weights, counts, gradients).sum(axis=0)
      for gradients in (kernels, biases)
    )

  return _LayerSums(_square_sum(kernels) + _square_sum(biases), weighted_sum)


def _product_sums(x: jax.Array, delta: jax.Array) -> _LayerSums:
  """Of a kernel and a bias, by what is cheaper.

  Args:
    x: [batch, positions, inputs].
    delta: [batch, positions, outputs].
  """
  _, positions, inputs = x.shape
  if _is_ghost_cheaper(positions, inputs, delta.shape[-1]):
    return _ghost_sums(x, delta)
  return _direct_sums(x, delta)


def _dense(layer, shapes, x, delta) -> _LayerSums:
  del layer, shapes
  if x.ndim == 2:
    x, delta = x[:, None], delta[:, None]
  return _product_sums(x, delta)


def _convolution(layer, shapes, x, delta) -> _LayerSums:
  if x.ndim == 4:  # Else it is the patches.
    x = jax_layers.patches(layer, x)
  delta = delta.reshape(len(delta), -1, delta.shape[-1])
  sums = _product_sums(x, delta)

  def weighted_sum(weights, counts):
    kernel, bias = sums.weighted_sum(weights, counts)
    return kernel.reshape(shapes[0]), bias

  return _LayerSums(sums.squared_norms, weighted_sum)


def _lstm(layer, shapes, x, delta) -> _LayerSums:
  del layer
  sums = _product_sums(x, delta)

  def weighted_sum(weights, counts):
    kernels, bias = sums.weighted_sum(weights, counts)
    inputs = shapes[0][0]
    return kernels[:inputs], kernels[inputs:], bias

  return _LayerSums(sums.squared_norms, weighted_sum)


def _embedding(layer, shapes, tokens, delta) -> _LayerSums:
  del layer
  # Rows of one token add up, so that their inner products count.
  same = tokens[:, :, None] == tokens[:, None, :]
  squared_norms = jnp.where(same, _gram(delta), 0).sum(axis=(1, 2))

  def weighted_sum(weights, counts):
    table = jnp.zeros(shapes[0], jnp.float32)
    return (table.at[tokens].add(_weigh(weights, counts, delta)),)

  return _LayerSums(squared_norms, weighted_sum)


_SUMS = {
  jax_layers.Convolution: _convolution,
  jax_layers.Dense: _dense,
  jax_layers.Embedding: _embedding,
  jax_layers.Lstm: _lstm,
}


def _backward(
  model: jax_layers.Model,
  params: jax_layers.Params,
  inputs: jax.Array,
  targets: jax.Array,
) -> tuple[_Arrays, jax_layers.Trace]:
  """Runs a batch forward and backward; returns the deltas and the trace."""
  shapes = jax.eval_shape(model.run, params, inputs, targets).outputs
  zeros = [jnp.zeros(s.shape, s.dtype) for s in shapes]

  def loss(taps):
    trace = model.run(params, inputs, targets, taps=taps)
    return trace.losses.sum(), trace

  return jax.grad(loss, has_aux=True)(zeros)


class ExampleStats(NamedTuple):
  """Sums over the examples of a batch that were not padding; not private.

  Attributes:
    loss: Of the mean loss of an example's targets.
    hits: Of targets that were the most likely ones.
    squared_norm: Of the gradients before clipping.
  """

  loss: jax.Array
  hits: jax.Array
  squared_norm: jax.Array


def clipped_sum(
  model: jax_layers.Model,
  params: jax_layers.Params,
  inputs: jax.Array,
  targets: jax.Array,
  mask: jax.Array,
  clip_norm: float,
  *,
  compute_dtype: Optional[jnp.dtype] = None,
) -> tuple[aggregation.ClippedSum, ExampleStats]:
  """Clips the gradient of each example's loss, and sums them.

  One example more or less changes the total by at most `clip_norm`.

  Args:
    model: The model.
    params: Its weights.
    inputs: [batch, ...].
    targets: [batch, ...].
    mask: [batch], non-zero for examples and 0 for padding, which contributes
      nothing whatever it holds.
    clip_norm: S; infinity clips nothing but gradients that are not finite,
      which become zeros.
    compute_dtype: Of the forward and backward pass; by default the weights'.

  Returns:
    The `aggregation.ClippedSum`, of arrays in float32, and statistics.
  """
  if compute_dtype is not None:
    params = tuple(w.astype(compute_dtype) for w in params)
  deltas, trace = _backward(model, params, inputs, targets)
  layers = [
    _SUMS[type(layer)](
      layer, model.shapes[layer.kernel : layer.kernel + layer.num_arrays], x, d
    )
    for layer, x, d in zip(model.layers, trace.inputs, deltas, strict=True)
  ]
  squared_norms = sum(layer.squared_norms for layer in layers)
  # Rounding may bring a sum of signed products below 0.
  norms = jnp.sqrt(jnp.maximum(squared_norms, 0))
  # Booleans: a weight above 1 would break the bound on the sensitivity.
  present = mask != 0
  factors = clipping.clip_factors(norms, clip_norm)
  counts = present & ~factors.was_non_finite
  total = tuple(
    array
    for layer in layers
    for array in layer.weighted_sum(factors.scales, counts)
  )
  sums = aggregation.ClippedSum(
    total=total,
    num_clients=present.sum(),
    num_clipped=(factors.was_clipped & present).sum(),
    num_non_finite=(factors.was_non_finite & present).sum(),
  )
  return sums, ExampleStats(
    loss=jnp.where(counts, trace.token_losses, 0).sum(),
    hits=jnp.where(counts, trace.hits, 0).sum(),
    squared_norm=jnp.where(counts, squared_norms, 0).sum(),
  )
