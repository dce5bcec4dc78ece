"""Norms and weighted sums of per-example gradients, layer by layer.

The gradient of an example by a kernel is G = X' D; see `per_example`. Whatever
the dtype of X and D, norms and sums are in float32 at full precision.
"""

from collections.abc import Callable
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from pda_fed.jax import clipping

_Arrays = tuple[jax.Array, ...]

# Bound on the rounding error of a float32 sum of products: per product, and
# relative to the sum of their magnitudes.
_ROUNDING = 2.0**-24


class LayerSums(NamedTuple):
  """A layer's contribution to the clipped sum.

  Attributes:
    squared_norms: Squared norms of the examples' gradients with respect to the
      layer's arrays.
    weighted_sum: Returns the weighted sum of the gradients for each array. Its
      arguments are the examples' weights and a mask of the examples to include.
    gradients: Returns the gradients of all examples for each array, [batch,
      ...] in float32. They are computed only when this is called.
  """

  squared_norms: jax.Array
  weighted_sum: Callable[[jax.Array, jax.Array], _Arrays]
  gradients: Callable[[], _Arrays]


def _product(a, b, contract, batch=((), ())) -> jax.Array:
  """Multiplies in float32; GPUs would round factors to TF32 by default."""
  return jax.lax.dot_general(
    a,
    b,
    (contract, batch),
    precision=jax.lax.Precision.HIGHEST,
    preferred_element_type=jnp.float32,
  )


def gram(x: jax.Array) -> jax.Array:
  """Returns inner products of positions, [batch, positions, positions]."""
  return _product(x, x, ((2,), (2,)), ((0,), (0,)))


def _square_sum(x: jax.Array) -> jax.Array:
  """Returns the sum of squares of each example."""
  return clipping.sum_axis_by_axis(jnp.square(x.astype(jnp.float32)))


def keep(counts: jax.Array, x: jax.Array) -> jax.Array:
  """Replaces examples that do not count by 0, even if they are NaN."""
  return jnp.where(counts.reshape((-1,) + (1,) * (x.ndim - 1)), x, 0)


def weigh(weights: jax.Array, counts: jax.Array, x: jax.Array) -> jax.Array:
  """Weights examples in float32; excluded ones become 0, even if NaN."""
  shape = (-1,) + (1,) * (x.ndim - 1)
  return keep(counts, weights.reshape(shape) * x.astype(jnp.float32))


def is_ghost_cheaper(positions: int, inputs: int, outputs: int) -> bool:
  """Returns whether Gram matrices need fewer products than gradients."""
  return positions * (inputs + outputs) < inputs * outputs


def _split(x: jax.Array) -> jax.Array:
  """Splits float32 values into three bfloat16 parts, side by side.

  Products of bfloat16 values are exact in float32, and many times faster on a
  GPU than products of float32 values.

  Args:
    x: [..., features].

  Returns:
    [..., 3 * features].
  """
  parts = []
  for _ in range(3):
    # XLA may remove a cast to bfloat16 and back, but never this.
    part = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    parts.append(part.astype(jnp.bfloat16))
    x = x - part
  return jnp.concatenate(parts, axis=-1)


def weighted_product(weighted: jax.Array, other: jax.Array) -> jax.Array:
  """Sums outer products over examples and positions, in float32 precision.

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
  """Appends the bias's input, 1, and pads with zeros to a multiple of 8."""
  width = x.shape[-1]
  padded = -(-(width + 1) // 8) * 8
  ones = jnp.zeros((padded - width,), x.dtype).at[0].set(1)
  return jnp.concatenate(
    [x, jnp.broadcast_to(ones, (*x.shape[:-1], padded - width))], axis=-1
  )


def lengths_of(grams: jax.Array) -> jax.Array:
  """Returns the norm at each position, [batch, positions]."""
  return jnp.sqrt(jnp.diagonal(grams, axis1=1, axis2=2))


def from_above(
  squared_norms: jax.Array, lengths: jax.Array, features: int
) -> jax.Array:
  """Adds a bound on the rounding error to squared norms.

  Products of Gram matrices are signed. Where they cancel, the rounding error is
  as large as the result, and a norm that is too small would let an example
  exceed its clipping norm. The error grows with the number of products, and an
  adversarial example can make it always round down.

  Args:
    squared_norms: Squared norms, as sums of products over pairs of positions.
    lengths: [batch, positions], the norms of the outer products at positions.
    features: Total number of features in the inner products of positions.

  Returns:
    Upper bounds on the squared norms, or non-finite values.
  """
  # Features are summed in any order, Gram matrices as if row by row. Where
  # everything cancels, rows cancel too, so rounding between rows is small.
  added = features + 2 * lengths.shape[1]
  found = squared_norms + added * _ROUNDING * jnp.square(lengths.sum(axis=1))
  # A negative value would hide the norms of other layers.
  return jnp.maximum(found, 0)


def ghost_sums(
  x: jax.Array, delta: jax.Array, is_finite: bool = False
) -> LayerSums:
  """Computes a layer's sums from Gram matrices.

  Args:
    x: [batch, positions, inputs].
    delta: [batch, positions, outputs].
    is_finite: Whether `x` is always finite. This saves a pass over `x` that
      zeroes the examples that do not count.
  """
  of_inputs = gram(x) + 1  # The 1 is the bias, whose input is 1.
  of_deltas = gram(delta)
  seen = lengths_of(of_inputs)
  squared_norms = from_above(
    (of_inputs * of_deltas).sum(axis=(1, 2)),
    seen * lengths_of(of_deltas),
    features=x.shape[-1] + 1 + delta.shape[-1],
  )
  # Products of deltas below 1e-19 underflow float32, and inputs may be as large
  # as deltas are small.
  least = float(delta.shape[-1] * jnp.finfo(jnp.float32).tiny)
  squared_norms += jnp.square(seen.sum(axis=1) * math.sqrt(least))

  def weighted_sum(weights, counts):
    # Weight the narrower factor: it is copied in float32.
    inputs = x.shape[-1]
    if inputs < delta.shape[-1]:
      weighted = weigh(weights, counts, _with_ones(x))
      kernels = weighted_product(weighted, keep(counts, delta))
      return kernels[:inputs], kernels[inputs]
    weighted = weigh(weights, counts, delta)
    kept = x if is_finite else keep(counts, x)
    kernel = weighted_product(weighted, kept).T
    return kernel, weighted.sum(axis=(0, 1))

  def gradients():
    return products(x, delta), delta.astype(jnp.float32).sum(axis=1)

  return LayerSums(squared_norms, weighted_sum, gradients)


def products(x: jax.Array, delta: jax.Array) -> jax.Array:
  """Sums outer products over the positions of each example."""
  return _product(x, delta, ((1,), (1,)), ((0,), (0,)))


def direct_sums(kernels: jax.Array, delta: jax.Array) -> LayerSums:
  """Computes a layer's sums from per-example gradients.

  Args:
    kernels: Gradients with respect to the kernel, [batch, ...].
    delta: [batch, positions, outputs].
  """
  formed = kernels, delta.astype(jnp.float32).sum(axis=1)

  def weighted_sum(weights, counts):
    return tuple(weigh(weights, counts, g).sum(axis=0) for g in formed)

  return LayerSums(
    sum(map(_square_sum, formed)), weighted_sum, gradients=lambda: formed
  )


def product_sums(x: jax.Array, delta: jax.Array) -> LayerSums:
  """Computes the sums of a kernel and a bias in the cheaper way.

  Args:
    x: [batch, positions, inputs].
    delta: [batch, positions, outputs].
  """
  _, positions, inputs = x.shape
  if is_ghost_cheaper(positions, inputs, delta.shape[-1]):
    return ghost_sums(x, delta)
  return direct_sums(products(x, delta), delta)


def map_arrays(
  sums: LayerSums, change: Callable[[_Arrays], _Arrays]
) -> LayerSums:
  """Changes the shapes of a layer's arrays, after the sum.

  Args:
    sums: The sums of the layer.
    change: Reshapes or splits the arrays of one gradient.
  """

  def weighted_sum(weights, counts):
    return change(sums.weighted_sum(weights, counts))

  def gradients():
    return jax.vmap(change)(sums.gradients())

  return LayerSums(sums.squared_norms, weighted_sum, gradients)


def reshape_kernel(sums: LayerSums, reshape) -> LayerSums:
  """Reshapes a layer's first array, after the sum."""
  return map_arrays(sums, lambda arrays: (reshape(arrays[0]), *arrays[1:]))


def merge_copies(x: jax.Array, copies: int) -> jax.Array:
  """Merges the copies of an example into one example with more positions.

  The gradient of a sum over copies is then a sum over positions, too.

  Args:
    x: [examples * copies, positions, ...], with adjacent copies of an example.
    copies: Number of copies of each example.

  Returns:
    [examples, copies * positions, ...].
  """
  return x.reshape(len(x) // copies, copies * x.shape[1], *x.shape[2:])
