"""Products, sums and bounds in at least float32.

Whatever the dtype of a backward pass, norms and sums use the same values, in
float32 (float64 if these are float64) at full precision, and norms are rounded
up. So the bound on an example's contribution holds for the values that are
summed.
"""

from typing import NamedTuple, Optional

import jax
import jax.numpy as jnp

# Scaled values that are rounded again get a norm this much below the clip.
_MARGIN = 2.0**-10
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


def round_once(x: jax.Array, dtype: Optional[jnp.dtype] = None) -> jax.Array:
  """Rounds an array to a dtype, by default its own, for all its readers.

  XLA may remove casts to a narrow dtype and back for one reader but not for
  another. Where terms cancel, the norm of values before rounding says nothing
  about the sum of values after rounding: an example could exceed its clipping
  norm severalfold.

  Args:
    x: The inputs of an operation, or the derivatives by its outputs.
    dtype: A floating-point dtype.
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
  return jax.lax.dot_general(
    a,
    b,
    (contract, batch),
    precision=jax.lax.Precision.HIGHEST,
    preferred_element_type=dtype,
  )


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


def _up(squared: jax.Array) -> jax.Array:
  """Returns norms, and what is lost to the rounding of a few operations."""
  return jnp.sqrt(squared) * (1 + _SLACK * float(jnp.finfo(squared.dtype).eps))


def clip_scales(
  squared: jax.Array,
  clip_norm: jax.Array,
  present: jax.Array,
  is_rounded: bool = False,
) -> Scales:
  """Returns the factors that reduce gradients to a norm of `clip_norm`.

  Args:
    squared: Squared norms, not finite where a gradient is not.
    clip_norm: The largest norm; may be infinite.
    present: Whether each row is an example; others are padding.
    is_rounded: Whether scaled values are rounded; see `reduce`.
  """
  norms = _up(squared)
  finite = jnp.isfinite(norms)
  above = finite & (norms > clip_norm)
  goal = clip_norm * (1 - _MARGIN) if is_rounded else clip_norm
  scales = jnp.where(above, goal / norms, 1.0).astype(norms.dtype)
  shown = jnp.where(finite, norms, jnp.nan)
  return Scales(
    scales=scales,
    norms=jnp.where(present, shown, 0),
    counts=present & finite,
    clipped=above & present,
    non_finite=~finite & present,
  )


def reduce(
  scales: jax.Array, squared: jax.Array, clip_norm: jax.Array
) -> jax.Array:
  """Reduces scales of examples that rounding made longer than `clip_norm`.

  They become smaller by a power of two, so that values are rounded as before.
  Roundings hardly ever add up to more than the margin below the clip, but an
  adversarial example can make them.

  Args:
    scales: Factors of the examples.
    squared: Squared norms of scaled and rounded gradients.
    clip_norm: The largest norm.
  """
  norms = _up(squared)
  _, exponents = jnp.frexp(clip_norm / norms)
  powers = jnp.ldexp(jnp.ones_like(scales), exponents - 1)
  powers = jnp.where(jnp.isfinite(norms), powers, 0)
  return jnp.where(norms <= clip_norm, scales, scales * powers)
