"""Products, sums and bounds in at least float32.

Whatever the dtype of a backward pass, norms and sums use the same values, in
float32 (float64 if these are float64) at full precision, and norms are rounded
up. So the bound on an example's contribution holds for the values that are
summed.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# Relative error of a value that is split into two parts of 8 bits each.
_SPLIT_ERROR = 2.0**-18
# Roundings of a norm, and of what it scales, in units of the dtype's epsilon.
_SLACK = 16


class Scales(NamedTuple):
  """Factors that clip gradients.

  Attributes:
    scales: The factor of each example; 1 if it is not clipped.
    norms: The norms, rounded up; NaN for what is not finite, 0 for padding.
    counts: Whether an example has a part in the sum: it is finite, and no
      padding.
    clipped: Whether it is scaled down.
    non_finite: Whether it is left out because it is not finite.
  """

  scales: jax.Array
  norms: jax.Array
  counts: jax.Array
  clipped: jax.Array
  non_finite: jax.Array


def wide_dtype(*arrays) -> jnp.dtype:
  """Returns the dtype in which to sum: at least float32."""
  return jnp.result_type(jnp.float32, *(a.dtype for a in arrays))


def widen(x: jax.Array) -> jax.Array:
  """Converts to at least float32."""
  return x.astype(wide_dtype(x))


def round_once(x: jax.Array) -> jax.Array:
  """Rounds an array to its own dtype, for all its readers.

  XLA may remove casts to a narrow dtype and back for one reader but not for
  another. Where terms cancel, the norm of values before rounding says nothing
  about the sum of values after rounding: an example could exceed its clipping
  norm severalfold.

  Args:
    x: The inputs of an operation, or the derivatives by its outputs.
  """
  if not jnp.issubdtype(x.dtype, jnp.floating) or wide_dtype(x) == x.dtype:
    return x
  bits = jnp.finfo(x.dtype)
  rounded = jax.lax.reduce_precision(widen(x), bits.nexp, bits.nmant)
  return rounded.astype(x.dtype)


def product(a: jax.Array, b: jax.Array, contract, batch=((), ())) -> jax.Array:
  """Multiplies in float32; GPUs would round factors to TF32 by default."""
  dtype = wide_dtype(a, b)
  # XLA for CPUs multiplies float32 faster, and products of the same values in
  # float32 are the same.
  if a.dtype != b.dtype or jax.default_backend() == 'cpu':
    a, b = a.astype(dtype), b.astype(dtype)
  return jax.lax.dot_general(
    a,
    b,
    (contract, batch),
    precision=jax.lax.Precision.HIGHEST,
    preferred_element_type=dtype,
  )


def _split(x: jax.Array) -> jax.Array:
  """Splits float32 values into two bfloat16 parts, side by side.

  Products of bfloat16 values are exact in float32, and many times faster on a
  GPU than products of float32 values.

  Args:
    x: [..., features].

  Returns:
    [..., 2 * features].
  """
  # XLA may remove a cast to bfloat16 and back, but never this.
  high = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
  low = jax.lax.reduce_precision(x - high, exponent_bits=8, mantissa_bits=7)
  return jnp.concatenate([high, low], axis=-1).astype(jnp.bfloat16)


def is_split(other: jax.Array) -> bool:
  """Returns whether `weighted_product` splits the factor beside `other`."""
  return other.dtype == jnp.bfloat16 and jax.default_backend() != 'cpu'


def weighted_product(weighted: jax.Array, other: jax.Array) -> jax.Array:
  """Sums outer products over examples and positions.

  Args:
    weighted: [batch, blocks, positions, a], in float32.
    other: [batch, blocks, positions, b], in the dtype of the backward pass.

  Returns:
    [blocks, a, b].
  """
  axes = ((0, 2), (0, 2)), ((1,), (1,))
  if not is_split(other):
    return product(weighted, other, *axes)
  parts = product(_split(weighted), other, *axes)
  return parts.reshape(len(parts), 2, weighted.shape[-1], -1).sum(axis=1)


def _per_example(vector: jax.Array, x: jax.Array) -> jax.Array:
  return vector.reshape(vector.shape + (1,) * (x.ndim - 1))


def keep(counts: jax.Array, x: jax.Array) -> jax.Array:
  """Replaces examples that do not count by 0, even if they are NaN."""
  return jnp.where(_per_example(counts, x), x, jnp.zeros((), x.dtype))


def weigh(scales: jax.Array, counts: jax.Array, x: jax.Array) -> jax.Array:
  """Scales examples in float32; excluded ones become 0, even if NaN."""
  return keep(counts, _per_example(scales, x) * widen(x))


def square_sum(x: jax.Array) -> jax.Array:
  """Returns the sum of squares of each example, summed axis by axis.

  Short sums lose less to rounding. If all axes are summed at once, a matrix of
  many small squares and a few large ones can exceed its bound by 3e-5.

  Args:
    x: [batch, ...].
  """
  squares = jnp.square(widen(x))
  bits = jnp.finfo(squares.dtype)
  while squares.ndim > 1:
    squares = squares.sum(axis=-1)
    # No effect on values, but it keeps the compiler from fusing the sums.
    squares = jax.lax.reduce_precision(squares, bits.nexp, bits.nmant)
  return squares


def from_above(
  squared: jax.Array,
  a_lengths: jax.Array,
  b_lengths: jax.Array,
  features: tuple[int, int],
  split: bool = False,
) -> jax.Array:
  """Adds a bound on the rounding error to squared norms of Gram matrices.

  Products of Gram matrices are signed. Where they cancel, the rounding error is
  as large as the result, and a norm that is too small would let an example
  exceed its clipping norm. The error grows with the number of products, and an
  adversarial example can make it always round down.

  Args:
    squared: [batch, blocks], sums of products over pairs of positions.
    a_lengths: [batch, blocks, positions], norms of the one factor.
    b_lengths: The same of the other factor.
    features: Number of features of both factors.
    split: Whether the weighted sum splits a factor.

  Returns:
    Upper bounds on the squared norms, [batch], or non-finite values.
  """
  bits = jnp.finfo(squared.dtype)
  total = (a_lengths * b_lengths).sum(axis=2)
  # Features are summed in any order, Gram matrices as if row by row. Where
  # everything cancels, rows cancel too, so rounding between rows is small.
  added = (sum(features) + 2 * a_lengths.shape[2]) * float(bits.eps) / 2
  squared = squared + added * jnp.square(total)
  # Squares below the least number underflow, and one factor may be as large as
  # the other one is small.
  for lengths, others in ((a_lengths, features[1]), (b_lengths, features[0])):
    least = (others * float(bits.tiny)) ** 0.5
    squared = squared + jnp.square(lengths.sum(axis=2) * least)
  # A negative value would hide the norms of other weights.
  squared = jnp.maximum(squared, 0)
  if split:
    squared = jnp.square(jnp.sqrt(squared) + _SPLIT_ERROR * total)
  return squared.sum(axis=1)


def clip_scales(
  squared: jax.Array, clip_norm: jax.Array, present: jax.Array
) -> Scales:
  """Returns the factors that reduce gradients to a norm of `clip_norm`.

  Args:
    squared: Squared norms, not finite where a gradient is not.
    clip_norm: The largest norm; may be infinite.
    present: Whether each row is an example; others are padding.
  """
  slack = 1 + _SLACK * float(jnp.finfo(squared.dtype).eps)
  norms = jnp.sqrt(squared) * slack
  finite = jnp.isfinite(norms)
  above = finite & (norms > clip_norm)
  scales = jnp.where(above, clip_norm / norms, 1.0).astype(norms.dtype)
  shown = jnp.where(finite, norms, jnp.nan)
  return Scales(
    scales=scales,
    norms=jnp.where(present, shown, 0),
    counts=present & finite,
    clipped=above & present,
    non_finite=~finite & present,
  )
