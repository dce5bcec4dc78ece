"""Clipping of clients' updates, and of examples' gradients, in JAX.

All clipping follows "Deep Learning with Differential Privacy" (Abadi et al.,
CCS 2016, arXiv:1607.00133): an update of norm n is multiplied by min(1, S / n),
so that it changes a sum by at most S.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from pda_fed.clipping import checks

Scalar = checks.Scalar


class ClippedUpdates(NamedTuple):
  """The result of `clip_by_norm`.

  Example: see `clip_by_norm`.

  Attributes:
    updates: The clipped updates, each of norm at most `clip_norm`.
    was_clipped: For each client, whether its update was scaled down.
    was_non_finite: For each client, whether its update held a NaN or an
      infinity and was replaced by zeros.
  """

  updates: Any
  was_clipped: jax.Array
  was_non_finite: jax.Array


def clip_factors(
  norms: jax.Array, clip_norm: Scalar, unit: Scalar
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns factors that reduce updates to a norm of at most `clip_norm`.

  Args:
    norms: Norms of the updates, each multiplied by its `unit`.
    clip_norm: S.
    unit: Factor by which updates were rescaled to avoid overflow. The returned
      scales apply to the rescaled updates.

  Returns:
    Factors, whether each is below 1, and whether each norm is not finite. Such
    an update must be replaced by zeros: multiplying it by 0 may give NaN.
  """
  finite = jnp.isfinite(norms)
  clipped = finite & (norms > clip_norm * unit)
  scales = jnp.where(clipped, clip_norm / norms, 1.0).astype(norms.dtype)
  return scales, clipped, ~finite


def clip_by_norm(updates: Any, clip_norm: Scalar) -> ClippedUpdates:
  """Scales each client's update down to an L2 norm of at most `clip_norm`.

  The norm is global: it covers all leaves of a client's update. The bound
  holds, up to rounding, for any input: values whose squares overflow are
  clipped, and an update with a NaN or an infinity is replaced by zeros.

  Example:

    >>> updates = jnp.array([[3.0, 4.0], [0.3, 0.4]])
    >>> clipped = clip_by_norm(updates, clip_norm=1.0)
    >>> jnp.linalg.norm(clipped.updates, axis=1).round(2)
    Array([1. , 0.5], dtype=float32)
    >>> clipped.was_clipped.tolist()
    [True, False]

  Args:
    updates: A pytree of floating-point arrays of shape (clients, ...).
    clip_norm: S, positive. If infinite, only non-finite updates are changed.

  Returns:
    The `ClippedUpdates`.

  Raises:
    TypeError: If a leaf is not a floating-point array.
    ValueError: If there are no leaves, if their client axes are missing or
      differ, or if `clip_norm` is not positive.
  """
  count_clients(updates)
  checks.check_options(clip_norm, 1, None, None)
  return clip_unchecked(updates, clip_norm)


# Compiled even if the caller is not: run one by one, each operation would keep
# another copy of all updates in memory.
@jax.jit
def clip_unchecked(updates: Any, clip_norm: jax.Array) -> ClippedUpdates:
  """`clip_by_norm` without checks."""
  # One dtype of at least float32, because many small squares are summed.
  dtype = jnp.result_type(jnp.float32, *jax.tree_util.tree_leaves(updates))
  updates = jax.tree_util.tree_map(
    lambda leaf: jnp.asarray(leaf, dtype), updates
  )
  rescaled_norm, rescale = _rescaled_norms(updates)
  scales, was_clipped, was_non_finite = clip_factors(
    rescaled_norm, jnp.asarray(clip_norm, dtype), rescale
  )
  # An update that is not clipped stays unchanged, bit for bit.
  before = jnp.where(was_clipped, rescale, 1.0).astype(dtype)

  def clip(leaf):
    # Two factors: their product, 2^-80 * S / norm, may underflow float32.
    scaled = leaf * per_client(before, leaf)
    scaled = scaled * per_client(scales, leaf)
    # A factor of 0 would not do: NaN times 0 is NaN.
    return jnp.where(per_client(was_non_finite, leaf), 0, scaled)

  return ClippedUpdates(
    updates=jax.tree_util.tree_map(clip, updates),
    was_clipped=was_clipped,
    was_non_finite=was_non_finite,
  )


def _rescaled_norms(updates: Any) -> tuple[jax.Array, jax.Array]:
  """Returns norms of rescaled updates (NaN if non-finite) and the scales."""
  leaves = jax.tree_util.tree_leaves(updates)
  dtype = leaves[0].dtype
  largest = jnp.zeros(leaves[0].shape[0], dtype)
  for leaf in leaves:
    magnitude = jnp.abs(leaf).max(axis=_all_but_first(leaf), initial=0)
    largest = jnp.maximum(largest, magnitude)

  # Squares of entries from 2^-48 to 2^48 (for float32) neither overflow nor
  # underflow. Other entries are scaled by a power of two, which is exact.
  max_exponent = jnp.finfo(dtype).maxexp
  bound = 2.0 ** (3 * max_exponent // 8)
  shift = 2.0 ** (5 * max_exponent // 8)
  rescale = jnp.where(
    largest > bound, 1 / shift, jnp.where(largest < 1 / bound, shift, 1.0)
  ).astype(dtype)
  squares = jnp.zeros_like(largest)
  for leaf in leaves:
    rescaled = leaf * per_client(rescale, leaf)
    squares = squares + sum_axis_by_axis(jnp.square(rescaled))
  norms = jnp.where(jnp.isfinite(largest), jnp.sqrt(squares), jnp.nan)
  return norms, rescale


def update_norms(updates: Any) -> jax.Array:
  """Returns the norm of each client's update; NaN if it is not finite.

  Args:
    updates: A pytree of float32 arrays of shape (clients, ...).
  """
  norms, rescale = _rescaled_norms(updates)
  return norms / rescale


def clip_one(update: Any, clip_norm: Scalar) -> Any:
  """Clips a single update that is no client's, such as a noised mean.

  Args:
    update: A pytree of floating-point arrays, without a client axis.
    clip_norm: The bound on its norm.
  """
  single = jax.tree_util.tree_map(lambda leaf: leaf[None], update)
  clipped = clip_by_norm(single, clip_norm).updates
  return jax.tree_util.tree_map(lambda leaf: leaf[0], clipped)


def sum_axis_by_axis(values: jax.Array) -> jax.Array:
  """Sums over all axes but the first, one axis at a time.

  Short sums lose less to rounding. If all axes are summed at once, a matrix of
  many small squares and a few large ones can exceed its bound by 3e-5.

  Args:
    values: An array of shape (clients, ...).
  """
  bits = jnp.finfo(values.dtype)
  while values.ndim > 1:
    values = values.sum(axis=-1)
    # No effect on values, but it keeps the compiler from fusing the sums.
    values = jax.lax.reduce_precision(values, bits.nexp, bits.nmant)
  return values


def _all_but_first(leaf: jax.Array) -> tuple[int, ...]:
  return tuple(range(1, leaf.ndim))


def per_client(vector: jax.Array, leaf: jax.Array) -> jax.Array:
  """Reshapes one value per client so that it broadcasts against the leaf."""
  return vector.reshape(vector.shape + (1,) * (leaf.ndim - 1))


def count_clients(updates: Any) -> int:
  """Returns the size of the leading axis that all leaves share, or raises."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(updates)
  if not leaves:
    raise ValueError('updates must have at least one array. Found none.')
  num_clients = None
  for path, leaf in leaves:
    name = f'updates{jax.tree_util.keystr(path)}'
    if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
      raise TypeError(
        f'{name} must be a floating-point array. Found dtype '
        f'{jnp.result_type(leaf)}.'
      )
    shape = jnp.shape(leaf)
    if not shape:
      raise ValueError(f'{name} must have a client axis. Found a scalar.')
    if num_clients is None:
      num_clients = shape[0]
    if shape[0] != num_clients:
      raise ValueError(
        f'{name} must have as many clients as the other arrays, '
        f'{num_clients}. Found shape {shape}.'
      )
  return num_clients
