"""The privatised mean of clients' updates in JAX.

The privatised mean of "Public Data-Assisted Mirror Descent for Private Model
Training" (Amid et al., ICML 2022, arXiv:2112.00193), g_t + b_t of Algorithm 1
and of equation (3), in the form of DP-FedAvg: each client's update is clipped
to the norm S, the clipped updates are summed, N(0, (sigma S)^2) is added to
each coordinate, the result is rounded to a grid that hides the low bits of
float32 (see `privacy.rounding`) and divided by the cohort that is *expected*.
How many clients there were is private too, so no divisor may depend on it.

Updates are a pytree of floating-point arrays with a leading client axis.
Everything is computed, and returned, in float32 (or float64, where a leaf is).
Every function may be compiled by `jax.jit` and mapped by `jax.vmap`; numbers
are checked where they are known, which tracers are not.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.common import validate
from pda_fed.privacy import rounding
from pda_fed.vectorized import clipping


class ClippedSum(NamedTuple):
  """A sum of clipped updates, and what was clipped.

  Sums of disjoint sets of clients add up leaf by leaf: how clients are split
  does not matter. Nothing here is private before `noised_mean`.

  Example: see `clipped_sum`.

  Attributes:
    total: The sum, a pytree without the client axis.
    num_clients: How many clients it is of.
    num_clipped: How many of them were scaled down.
    num_non_finite: How many of them became zeros.
  """

  total: Any
  num_clients: jax.Array
  num_clipped: jax.Array
  num_non_finite: jax.Array


def clipped_sum(
  updates: Any, mask: jax.Array, clip_norm: clipping.Scalar
) -> ClippedSum:
  """Clips each client's update and sums them.

  One client more or less changes the total by at most `clip_norm`.

  Example:

    >>> updates = np.array([[3.0, 4.0], [0.5, 0.0], [9.0, 9.0]])
    >>> present = np.array([True, True, False])
    >>> found = clipped_sum(updates, present, clip_norm=1.0)
    >>> np.asarray(found.total).round(2)
    array([1.1, 0.8], dtype=float32)
    >>> int(found.num_clients), int(found.num_clipped)
    (2, 1)

  Args:
    updates: A pytree of floating-point arrays of shape (clients, ...).
    mask: A vector, non-zero for clients and 0 for padding, which contributes
      nothing whatever it holds.
    clip_norm: S, positive; infinity clips nothing but non-finite updates.

  Returns:
    The `ClippedSum`.

  Raises:
    TypeError: If a leaf is not made of floating-point numbers.
    ValueError: If the shapes do not match, or `clip_norm` is not positive.
  """
  num_clients = clipping.count_clients(updates)
  mask = jnp.asarray(mask)
  if mask.shape != (num_clients,):
    raise ValueError(
      f'mask must have the shape ({num_clients},), one number per client. '
      f'Found {mask.shape}.'
    )
  clipping.check_clip_norm(clip_norm)
  return _clipped_sum(updates, mask, clip_norm)


@jax.jit
def _clipped_sum(updates: Any, mask: jax.Array, clip_norm) -> ClippedSum:
  """Does what `clipped_sum` says, without checks."""
  # Booleans: a weight above 1 would break the bound on the sensitivity.
  present = mask != 0
  clipped = clipping.clip_unchecked(updates, clip_norm)
  return ClippedSum(
    # Sums of products, not matrix products: on GPUs these may round to TF32.
    total=jax.tree_util.tree_map(
      lambda leaf: jnp.where(clipping.per_client(present, leaf), leaf, 0).sum(
        axis=0
      ),
      clipped.updates,
    ),
    num_clients=present.sum(),
    num_clipped=(clipped.was_clipped & present).sum(),
    num_non_finite=(clipped.was_non_finite & present).sum(),
  )


def noised_mean(
  total: Any,
  *,
  clip_norm: clipping.Scalar,
  noise_multiplier: clipping.Scalar,
  expected_cohort: clipping.Scalar,
  key: jax.Array,
) -> Any:
  """Adds noise to a sum of clipped updates and divides by the expected cohort.

  The noised sum is rounded to a power of two, at most 2^-12 sigma S.

  Example:

    >>> mean = noised_mean(
    ...   np.array([2.0, 4.0]), clip_norm=1.0, noise_multiplier=0.0,
    ...   expected_cohort=4.0, key=jax.random.PRNGKey(0),
    ... )
    >>> mean.tolist()
    [0.5, 1.0]

  Args:
    total: The sum, as `clipped_sum` gives it.
    clip_norm: S, the bound that the updates were clipped to. It may be infinite
      where `noise_multiplier` is 0.
    noise_multiplier: sigma, at least 0.
    expected_cohort: qN, the expected number of clients; positive. It must not
      be computed from the cohort.
    key: The key of the noise, of `jax.random.key` or `jax.random.PRNGKey`. It
      must never be used for another round.

  Returns:
    The mean, of the structure of `total`.

  Raises:
    ValueError: If a number is out of range.
  """
  clipping.check_clip_norm(clip_norm)
  noise = clipping.known_number(noise_multiplier)
  if noise is not None:
    validate.non_negative(noise_multiplier=noise)
    if noise > 0 and clipping.known_number(clip_norm) == math.inf:
      raise ValueError(
        'clip_norm must be finite where noise_multiplier is positive. Found '
        f'clip_norm={clip_norm}, noise_multiplier={noise_multiplier}.'
      )
  cohort = clipping.known_number(expected_cohort)
  if cohort is not None:
    validate.positive(expected_cohort=cohort)
  return _noised_mean(
    total,
    clip_norm,
    noise_multiplier,
    expected_cohort,
    key,
    # Random numbers are not free; only a known 0 saves them.
    add_noise=noise != 0,
  )


@functools.partial(jax.jit, static_argnames='add_noise')
def _noised_mean(
  total: Any,
  clip_norm: jax.Array,
  noise_multiplier: jax.Array,
  expected_cohort: jax.Array,
  key: jax.Array,
  *,
  add_noise: bool,
) -> Any:
  """Does what `noised_mean` says, without checks."""
  if add_noise:
    # Written so that a traced 0 may meet an infinite norm, as a known one may.
    stddev = jnp.where(noise_multiplier == 0, 0.0, noise_multiplier * clip_norm)
    total = _add_noise(total, stddev, key)
  return jax.tree_util.tree_map(
    lambda leaf: leaf / jnp.asarray(expected_cohort, leaf.dtype), total
  )


def private_mean(
  updates: Any,
  mask: jax.Array,
  *,
  clip_norm: clipping.Scalar,
  noise_multiplier: clipping.Scalar,
  expected_cohort: clipping.Scalar,
  key: jax.Array,
) -> tuple[Any, dict[str, jax.Array]]:
  """Clips, sums, adds noise, and divides by the expected cohort.

  One client more or less changes the mean before noise by at most
  `clip_norm / expected_cohort`; the noise has `noise_multiplier` times this
  standard deviation. An empty cohort returns the noise alone.

  Example:

    >>> mean, metrics = private_mean(
    ...   np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([True, True]),
    ...   clip_norm=1.0, noise_multiplier=0.0, expected_cohort=2.0,
    ...   key=jax.random.PRNGKey(0),
    ... )
    >>> np.asarray(mean).round(2)
    array([0.3, 0.4], dtype=float32)
    >>> float(metrics['clipped_fraction'])
    0.5

  Args:
    updates: See `clipped_sum`.
    mask: See `clipped_sum`.
    clip_norm: See `noised_mean`.
    noise_multiplier: See `noised_mean`.
    expected_cohort: See `noised_mean`.
    key: See `noised_mean`.

  Returns:
    The mean, a pytree of arrays without the client axis, and metrics:
    `clipped_fraction`, the clipped share of the cohort (0 if it is empty),
    `num_non_finite`, the clients whose updates became zeros, and `num_clients`,
    the size of the cohort. Metrics have no noise: releasing them is not covered
    by the privacy guarantee.

  Raises:
    TypeError: If a leaf is not made of floating-point numbers.
    ValueError: If the shapes do not match, or if a number is out of range.
  """
  clipped = clipped_sum(updates, mask, clip_norm)
  mean = noised_mean(
    clipped.total,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    expected_cohort=expected_cohort,
    key=key,
  )
  return mean, {
    'clipped_fraction': (
      clipped.num_clipped / jnp.maximum(clipped.num_clients, 1)
    ),
    'num_non_finite': clipped.num_non_finite,
    'num_clients': clipped.num_clients,
  }


def adapted_clip_norm(
  clip_norm: jax.Array,
  sums: ClippedSum,
  *,
  target_quantile: float,
  learning_rate: float,
  count_stddev: float,
  expected_cohort: float,
  key: jax.Array,
) -> jax.Array:
  """Moves the clip towards a quantile of the updates' norms.

  "Differentially Private Learning with Adaptive Clipping" (Andrew et al.,
  NeurIPS 2021, arXiv:1905.03871), Algorithm 1: the noised share of clients that
  were not clipped moves the clip geometrically.

  Args:
    clip_norm: That the updates were clipped to.
    sums: What was clipped.
    target_quantile: The share of updates that should not be clipped.
    learning_rate: How fast the clip follows.
    count_stddev: The standard deviation of the noise of the count.
    expected_cohort: qN; it must not be computed from the cohort.
    key: Of the noise; never that of another round, nor of the updates' noise.

  Returns:
    The clip of the next round.
  """
  # A client counts a half, up or down: the sensitivity is a half.
  count = sums.num_clients / 2 - sums.num_clipped
  count = count + count_stddev * draw_normal(key, (), clip_norm.dtype)
  count = round_noised(count, count_stddev)
  share = count / expected_cohort + 0.5
  return clip_norm * jnp.exp(-learning_rate * (share - target_quantile))


def draw_normal(key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
  """Draws normal numbers whose tails are long enough for privacy.

  One draw in float32 is the inverse of 2^23 probabilities and ends at 5.2 or
  5.4 standard deviations: what lies beyond can only have come from a sum with
  a certain example in it, and for little noise that happens more often than
  delta. Half the sum of four draws goes as far as 10. Holohan and Braghin,
  "Secure Random Sampling in Differential Privacy" (2021), have the sum against
  attacks on single bits.

  Args:
    key: Of these numbers alone.
    shape: Of the result.
    dtype: Of the result.

  Returns:
    Independent numbers with mean 0 and variance 1.
  """
  return jax.random.normal(key, (4, *shape), dtype).sum(axis=0) / 2


def round_noised(values: jax.Array, stddev: clipping.Scalar) -> jax.Array:
  """Rounds noised values to the grid of their noise.

  See `privacy.rounding`: the low bits of float32 noise tell where a sum is
  exactly zero.

  Args:
    values: Values with noise.
    stddev: The standard deviation of the noise; 0 changes nothing.

  Returns:
    Multiples of a power of two, at most 2^-12 of `stddev`.
  """
  # The power of two below, by its bits: logarithms are not exact everywhere.
  bits = jax.lax.bitcast_convert_type(jnp.float32(stddev), jnp.uint32)
  power = jax.lax.bitcast_convert_type(bits & 0x7F800000, jnp.float32)
  step = (power * rounding.GRID_STEP).astype(values.dtype)
  # A power of two: division and product are exact.
  rounded = jnp.round(values / jnp.where(step > 0, step, 1)) * step
  return jnp.where(step > 0, rounded, values)


def _add_noise(tree: Any, stddev: jax.Array, key: jax.Array) -> Any:
  """Adds independent normal noise to every coordinate, and rounds."""
  leaves, structure = jax.tree_util.tree_flatten(tree)
  dtype = jnp.result_type(*leaves)
  ends = np.cumsum([leaf.size for leaf in leaves])
  # Drawn in one piece: a generator for each leaf takes long to compile.
  noise = draw_normal(key, (int(ends[-1]),), dtype)
  noise = jnp.split(jnp.asarray(stddev, dtype) * noise, ends[:-1])
  return structure.unflatten(
    round_noised(leaf + own.reshape(leaf.shape).astype(leaf.dtype), stddev)
    for leaf, own in zip(leaves, noise, strict=True)
  )
