"""Products, sums and bounds in at least float32.

Whatever the dtype of a backward pass, norms and sums use the same values, in
float32 (float64 if these are float64) at full precision, and norms are rounded
up. So the bound on an example's contribution holds for the values that are
summed.
"""

from typing import Optional

import jax
import jax.numpy as jnp

# Scaled values that are rounded again get a norm this much below the clip.
MARGIN = 2.0**-10
# Roundings of a norm, and of what it scales, in units of the dtype's epsilon.
_SLACK = 16


def wide_dtype(*arrays) -> jnp.dtype:
  """Returns the dtype in which to sum: at least float32."""
  return jnp.result_type(jnp.float32, *(a.dtype for a in arrays))


def widen(x: jax.Array) -> jax.Array:
  """Converts to at least float32."""
  return x.astype(wide_dtype(x))


def round_once(x: jax.Array, dtype: Optional[jnp.dtype] = None) -> jax.Array:
  """Rounds an array to a dtype, by default its own, for all its readers.

  XLA may remove casts to a narrow dtype and back for one reader but not for
  another. Where terms cancel, the norm of values before rounding says nothing
  about the sum of values after rounding: an example could exceed its clipping
  norm severalfold.
  """
  dtype = dtype or x.dtype
  if not jnp.issubdtype(dtype, jnp.floating) or jnp.finfo(dtype).bits >= 32:
    return x
  bits = jnp.finfo(dtype)
  rounded = jax.lax.reduce_precision(widen(x), bits.nexp, bits.nmant)
  return rounded.astype(dtype)


def product(a: jax.Array, b: jax.Array, contract, batch=((), ())) -> jax.Array:
  """Multiplies in float32; GPUs would round factors to TF32 by default."""
  dtype = wide_dtype(a, b)
  # XLA for CPUs multiplies float32 faster, and products of the same values in
  # float32 are the same.
  if a.dtype != b.dtype or jax.default_backend() == 'cpu':
    a, b = a.astype(dtype), b.astype(dtype)
  highest = jax.lax.Precision.HIGHEST
  return jax.lax.dot_general(a, b, (contract, batch), highest, dtype)


def weigh(
  x: jax.Array, counts: jax.Array, scales: Optional[jax.Array] = None
) -> jax.Array:
  """Scales examples; what does not count becomes 0, even if it is NaN."""

  def spread(vector):
    return vector.reshape(-1, *(1,) * (x.ndim - 1))

  scaled = x if scales is None else spread(scales) * widen(x)
  return jnp.where(spread(counts), scaled, jnp.zeros((), scaled.dtype))


def square_sum(x: jax.Array) -> jax.Array:
  """Returns the sum of squares of each example, summed axis by axis.

  Short sums lose less to rounding. If all axes are summed at once, a matrix of
  many small squares and a few large ones can exceed its bound by 3e-5.
  """
  squares = jnp.square(widen(x))
  bits = jnp.finfo(squares.dtype)
  while squares.ndim > 1:
    squares = squares.sum(axis=-1)
    # No effect on values, but it keeps the compiler from fusing the sums.
    squares = jax.lax.reduce_precision(squares, bits.nexp, bits.nmant)
  return squares


def from_above(
  squared: jax.Array, a_lengths: jax.Array, b_lengths: jax.Array, features: int
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

  Returns:
    Upper bounds on the squared norms, [batch], or non-finite values.
  """
  bits = jnp.finfo(squared.dtype)
  total = (a_lengths * b_lengths).sum(axis=2)
  # Features are summed in any order, Gram matrices as if row by row. Where
  # everything cancels, rows cancel too, so rounding between rows is small.
  added = (features + 2 * a_lengths.shape[2]) * float(bits.eps) / 2
  squared = squared + added * jnp.square(total)
  # Squares below the least number underflow, and one factor may be as large as
  # the other one is small.
  least = (features * float(bits.tiny)) ** 0.5
  for lengths in (a_lengths, b_lengths):
    squared = squared + jnp.square(lengths.sum(axis=2) * least)
  # A negative value would hide the norms of other weights.
  return jnp.maximum(squared, 0).sum(axis=1)


def root_from_above(squared: jax.Array) -> jax.Array:
  """Returns norms, with room for rounding when they scale gradients."""
  return jnp.sqrt(squared) * (1 + _SLACK * float(jnp.finfo(squared.dtype).eps))


def reduction(norms: jax.Array, clip_norm: jax.Array) -> jax.Array:
  """Returns factors that reduce norms to at most `clip_norm`, powers of two.

  Such a factor changes no rounding of what it scales. It is 0 if a norm is not
  finite.
  """
  _, exponents = jnp.frexp(clip_norm / norms)
  powers = jnp.ldexp(jnp.ones_like(norms), exponents - 1)
  powers = jnp.where(jnp.isfinite(norms), powers, 0)
  return jnp.where(norms <= clip_norm, jnp.ones_like(norms), powers)
