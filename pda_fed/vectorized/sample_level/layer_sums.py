"""Norms and weighted sums of gradients of single examples, layer by layer.

The gradient of an example by a kernel is G = X' D; see `per_example`. Whatever
the dtype of the backward pass that gave X and D, norms and sums are in float32
at full precision.
"""

from collections.abc import Callable
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from pda_fed.vectorized import clipping

_Arrays = tuple[jax.Array, ...]

# What rounding can take off a sum of products in float32, for each of them and
# relative to the sum of their sizes.
_ROUNDING = 2.0**-24


class LayerSums(NamedTuple):
  """What a layer adds to the clipping.

  Attributes:
    squared_norms: Of the examples' gradients by the layer's arrays.
    weighted_sum: Of weights and of which examples count, the weighted sum of
      gradients by each array.
    gradients: Returns the gradients of all examples by each array, [batch, ...]
      in float32. What nobody calls is not computed.
  """

  squared_norms: jax.Array
  weighted_sum: Callable[[jax.Array, jax.Array], _Arrays]
  gradients: Callable[[], _Arrays]


def _product(a, b, contract, batch=((), ())) -> jax.Array:
  """A product in float32; GPUs would round its factors to TF32 by default."""
  return jax.lax.dot_general(
    a,
    b,
    (contract, batch),
    precision=jax.lax.Precision.HIGHEST,
    preferred_element_type=jnp.float32,
  )


def gram(x: jax.Array) -> jax.Array:
  """Inner products of positions, [batch, positions, positions]."""
  return _product(x, x, ((2,), (2,)), ((0,), (0,)))


def _square_sum(x: jax.Array) -> jax.Array:
  """The sum of squares of each example."""
  return clipping.sum_axis_by_axis(jnp.square(x.astype(jnp.float32)))


def keep(counts: jax.Array, x: jax.Array) -> jax.Array:
  """What does not count becomes 0, even NaN."""
  return jnp.where(counts.reshape((-1,) + (1,) * (x.ndim - 1)), x, 0)


def weigh(weights: jax.Array, counts: jax.Array, x: jax.Array) -> jax.Array:
  """Weights examples in float32; what does not count is 0, even NaN."""
  shape = (-1,) + (1,) * (x.ndim - 1)
  return keep(counts, weights.reshape(shape) * x.astype(jnp.float32))


def is_ghost_cheaper(positions: int, inputs: int, outputs: int) -> bool:
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


def weighted_product(weighted: jax.Array, other: jax.Array) -> jax.Array:
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


def lengths_of(grams: jax.Array) -> jax.Array:
  """The norm at each position, [batch, positions]."""
  return jnp.sqrt(jnp.diagonal(grams, axis1=1, axis2=2))


def from_above(
  squared_norms: jax.Array, lengths: jax.Array, features: int
) -> jax.Array:
  """Adds to squared norms what rounding may have taken off them.

  Products of Gram matrices are signed. Where they cancel, rounding is as large
  as what is left, and a norm that is found too small would let an example into
  the sum with more than the clip. Rounding grows with the number of products
  that are added, and an example can be made for which it always goes down.

  Args:
    squared_norms: As sums of products over pairs of positions.
    lengths: [batch, positions], the norms of the outer products at positions.
    features: Over how many the inner products of positions are, all together.

  Returns:
    Squared norms that are not too small, or not finite.
  """
  # Over the features in any order; over the Gram matrices as if row by row.
  # Where all cancels, so do rows, and there is little to round between them.
  added = features + 2 * lengths.shape[1]
  found = squared_norms + added * _ROUNDING * jnp.square(lengths.sum(axis=1))
  # Below 0, one layer would hide the norms of others.
  return jnp.maximum(found, 0)


def ghost_sums(
  x: jax.Array, delta: jax.Array, is_finite: bool = False
) -> LayerSums:
  """From Gram matrices.

  Args:
    x: [batch, positions, inputs].
    delta: [batch, positions, outputs].
    is_finite: Whether `x` is finite whatever the examples are; it saves a pass
      over `x` that drops those that do not count.
  """
  of_inputs = gram(x) + 1  # The 1 is the bias, whose input is 1.
  of_deltas = gram(delta)
  seen = lengths_of(of_inputs)
  squared_norms = from_above(
    (of_inputs * of_deltas).sum(axis=(1, 2)),
    seen * lengths_of(of_deltas),
    features=x.shape[-1] + 1 + delta.shape[-1],
  )
  # Products of deltas below 1e-19 are 0 in float32, and inputs may be as large
  # as deltas are small.
  least = float(delta.shape[-1] * jnp.finfo(jnp.float32).tiny)
  squared_norms += jnp.square(seen.sum(axis=1) * math.sqrt(least))

  def weighted_sum(weights, counts):
    # Weights go to the narrower factor: weighing is a pass over it in float32.
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
  """From gradients of single examples.

  Args:
    kernels: The gradients by the kernel, [batch, ...].
    delta: [batch, positions, outputs].
  """
  formed = kernels, delta.astype(jnp.float32).sum(axis=1)

  def weighted_sum(weights, counts):
    return tuple(weigh(weights, counts, g).sum(axis=0) for g in formed)

  return LayerSums(
    sum(map(_square_sum, formed)), weighted_sum, gradients=lambda: formed
  )


def product_sums(x: jax.Array, delta: jax.Array) -> LayerSums:
  """Of a kernel and a bias, by what is cheaper.

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
  """Brings a layer's arrays into their shapes, after the sum.

  Args:
    sums: The sums of the layer.
    change: Takes the arrays of one gradient; it reshapes, or splits.
  """

  def weighted_sum(weights, counts):
    return change(sums.weighted_sum(weights, counts))

  def gradients():
    return jax.vmap(change)(sums.gradients())

  return LayerSums(sums.squared_norms, weighted_sum, gradients)


def reshape_kernel(sums: LayerSums, reshape) -> LayerSums:
  """Brings a layer's first array into its shape, after the sum."""
  return map_arrays(sums, lambda arrays: (reshape(arrays[0]), *arrays[1:]))


def merge_copies(x: jax.Array, copies: int) -> jax.Array:
  """Makes the copies of an example one example with more positions.

  The gradient of a sum over copies is then again a sum over positions.

  Args:
    x: [examples * copies, positions, ...], the copies of an example together.
    copies: The number of copies of each example.

  Returns:
    [examples, copies * positions, ...].
  """
  return x.reshape(len(x) // copies, copies * x.shape[1], *x.shape[2:])
