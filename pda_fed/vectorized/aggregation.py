"""Clipping, summing and noising of clients' updates in JAX.

The privatised mean of "Public Data-Assisted Mirror Descent for Private Model
Training" (Amid et al., ICML 2022, arXiv:2112.00193), g_t + b_t of Algorithm 1
and of equation (3), in the form of DP-FedAvg: each client's update is clipped
to the norm S, the clipped updates are summed, N(0, (sigma S)^2) is added to
each coordinate, and the result is divided by the cohort that is *expected*. How
many clients there were is private too, so no divisor may depend on it.

Updates are a pytree of floating-point arrays with a leading client axis.
Everything is computed, and returned, in float32 (or float64, where a leaf is).
Every function may be compiled by `jax.jit` and mapped by `jax.vmap`; numbers
are checked where they are known, which tracers are not.
"""

import functools
import math
from typing import Any, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import _validate

_Scalar = Union[float, jax.Array]


class ClippedUpdates(NamedTuple):
  """What `clip_by_norm` returns.

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


class ClipFactors(NamedTuple):
  """How updates of known norms are clipped.

  Attributes:
    scales: What each update is multiplied by; 1 for those of norm at most S.
    was_clipped: Whether each update is scaled down.
    was_non_finite: Whether each update has a norm that is no number. It must be
      replaced by zeros: a product with 0 may be NaN.
  """

  scales: jax.Array
  was_clipped: jax.Array
  was_non_finite: jax.Array


def clip_factors(
  norms: jax.Array, clip_norm: _Scalar, unit: _Scalar = 1.0
) -> ClipFactors:
  """Returns what brings updates down to a norm of at most `clip_norm`.

  The one rule of clipping: for clients' updates as arrays, and for examples'
  gradients of which there are only the norms.

  Args:
    norms: Of the updates, each multiplied by its `unit`.
    clip_norm: S.
    unit: By which updates were rescaled so that their norms do not overflow;
      the scales are then for the rescaled updates.
  """
  finite = jnp.isfinite(norms)
  clipped = finite & (norms > clip_norm * unit)
  scales = jnp.where(clipped, clip_norm / norms, 1.0).astype(norms.dtype)
  return ClipFactors(scales, clipped, ~finite)


def clip_by_norm(updates: Any, clip_norm: _Scalar) -> ClippedUpdates:
  """Scales each client's update down to an L2 norm of at most `clip_norm`.

  The norm is global, that of all leaves of a client's update together. The
  bound holds, to rounding, for whatever a client sends: numbers whose squares
  overflow are clipped, and an update with a NaN or an infinity becomes zeros.

  Example:

    >>> updates = np.array([[3.0, 4.0], [0.3, 0.4]])
    >>> clipped = clip_by_norm(updates, clip_norm=1.0)
    >>> np.asarray(clipped.updates).round(2)
    array([[0.6, 0.8],
           [0.3, 0.4]], dtype=float32)
    >>> clipped.was_clipped.tolist()
    [True, False]

  Args:
    updates: A pytree of floating-point arrays of shape (clients, ...).
    clip_norm: S, positive; infinity clips nothing but non-finite updates.

  Returns:
    The `ClippedUpdates`.

  Raises:
    TypeError: If a leaf is not made of floating-point numbers.
    ValueError: If there are no leaves, if their client axes are absent or
      differ, or if `clip_norm` is not positive.
  """
  _num_clients(updates)
  _check_clip_norm(clip_norm)
  return _clip_by_norm(updates, clip_norm)


# Compiled, also for callers who do not: one by one, the operations would each
# leave another copy of all updates in memory.
@jax.jit
def _clip_by_norm(updates: Any, clip_norm: jax.Array) -> ClippedUpdates:
  """Does what `clip_by_norm` says, without checks."""
  # One type, and no less than float32, for the sums of many small squares.
  dtype = jnp.result_type(jnp.float32, *jax.tree_util.tree_leaves(updates))
  updates = jax.tree_util.tree_map(
    lambda leaf: jnp.asarray(leaf, dtype), updates
  )
  leaves = jax.tree_util.tree_leaves(updates)
  clip_norm = jnp.asarray(clip_norm, dtype)

  largest = jnp.zeros(leaves[0].shape[0], dtype)
  for leaf in leaves:
    magnitude = jnp.abs(leaf).max(axis=_all_but_first(leaf), initial=0)
    largest = jnp.maximum(largest, magnitude)

  # The squares of entries from 2^-48 to 2^48 (for float32) neither overflow nor
  # vanish. Others are brought there by a power of two, which is exact.
  max_exponent = jnp.finfo(dtype).maxexp
  bound = 2.0 ** (3 * max_exponent // 8)
  shift = 2.0 ** (5 * max_exponent // 8)
  rescale = jnp.where(
    largest > bound, 1 / shift, jnp.where(largest < 1 / bound, shift, 1.0)
  ).astype(dtype)
  squares = jnp.zeros_like(largest)
  for leaf in leaves:
    rescaled = leaf * _per_client(rescale, leaf)
    squares = squares + jnp.square(rescaled).sum(axis=_all_but_first(leaf))
  rescaled_norm = jnp.sqrt(squares)

  factors = clip_factors(
    jnp.where(jnp.isfinite(largest), rescaled_norm, jnp.nan), clip_norm, rescale
  )
  # Where nothing is clipped an update passes unchanged, bit for bit.
  before = jnp.where(factors.was_clipped, rescale, 1.0).astype(dtype)

  def clip(leaf):
    # Not one factor: 2^-80 times S / norm may be less than any float32.
    scaled = leaf * _per_client(before, leaf)
    scaled = scaled * _per_client(factors.scales, leaf)
    # Not a factor of 0: NaN times 0 is NaN.
    return jnp.where(_per_client(factors.was_non_finite, leaf), 0, scaled)

  return ClippedUpdates(
    updates=jax.tree_util.tree_map(clip, updates),
    was_clipped=factors.was_clipped,
    was_non_finite=factors.was_non_finite,
  )


def clip_one(update: Any, clip_norm: _Scalar) -> Any:
  """Clips an update that belongs to nobody, a noised mean: post-processing.

  Args:
    update: A pytree of floating-point arrays, without a client axis.
    clip_norm: The bound on its norm.
  """
  single = jax.tree_util.tree_map(lambda leaf: leaf[None], update)
  clipped = clip_by_norm(single, clip_norm).updates
  return jax.tree_util.tree_map(lambda leaf: leaf[0], clipped)


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
  updates: Any, mask: jax.Array, clip_norm: _Scalar
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
  num_clients = _num_clients(updates)
  mask = jnp.asarray(mask)
  if mask.shape != (num_clients,):
    raise ValueError(
      f'mask must have the shape ({num_clients},), one number per client. '
      f'Found {mask.shape}.'
    )
  _check_clip_norm(clip_norm)
  return _clipped_sum(updates, mask, clip_norm)


@jax.jit
def _clipped_sum(updates: Any, mask: jax.Array, clip_norm) -> ClippedSum:
  """Does what `clipped_sum` says, without checks."""
  # Booleans: a weight above 1 would break the bound on the sensitivity.
  present = mask != 0
  clipped = _clip_by_norm(updates, clip_norm)
  return ClippedSum(
    # Sums of products, not matrix products: on GPUs these may round to TF32.
    total=jax.tree_util.tree_map(
      lambda leaf: jnp.where(_per_client(present, leaf), leaf, 0).sum(axis=0),
      clipped.updates,
    ),
    num_clients=present.sum(),
    num_clipped=(clipped.was_clipped & present).sum(),
    num_non_finite=(clipped.was_non_finite & present).sum(),
  )


def noised_mean(
  total: Any,
  *,
  clip_norm: _Scalar,
  noise_multiplier: _Scalar,
  expected_cohort: _Scalar,
  key: jax.Array,
) -> Any:
  """Adds noise to a sum of clipped updates and divides by the expected cohort.

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
  _check_clip_norm(clip_norm)
  noise = _known_number(noise_multiplier)
  if noise is not None:
    _validate.non_negative(noise_multiplier=noise)
    if noise > 0 and _known_number(clip_norm) == math.inf:
      raise ValueError(
        'clip_norm must be finite where noise_multiplier is positive. Found '
        f'clip_norm={clip_norm}, noise_multiplier={noise_multiplier}.'
      )
  cohort = _known_number(expected_cohort)
  if cohort is not None:
    _validate.positive(expected_cohort=cohort)
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
  clip_norm: _Scalar,
  noise_multiplier: _Scalar,
  expected_cohort: _Scalar,
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
  count = count + count_stddev * jax.random.normal(key, (), clip_norm.dtype)
  share = count / expected_cohort + 0.5
  return clip_norm * jnp.exp(-learning_rate * (share - target_quantile))


def _add_noise(tree: Any, stddev: jax.Array, key: jax.Array) -> Any:
  """Adds independent normal noise to every coordinate."""
  leaves, structure = jax.tree_util.tree_flatten(tree)
  dtype = jnp.result_type(*leaves)
  ends = np.cumsum([leaf.size for leaf in leaves])
  # Drawn in one piece: a generator for each leaf takes long to compile.
  noise = jax.random.normal(key, (int(ends[-1]),), dtype)
  noise = jnp.split(jnp.asarray(stddev, dtype) * noise, ends[:-1])
  return structure.unflatten(
    leaf + own.reshape(leaf.shape).astype(leaf.dtype)
    for leaf, own in zip(leaves, noise, strict=True)
  )


def _all_but_first(leaf: jax.Array) -> tuple[int, ...]:
  return tuple(range(1, leaf.ndim))


def _per_client(vector: jax.Array, leaf: jax.Array) -> jax.Array:
  """Reshapes one value per client so that it broadcasts against the leaf."""
  return vector.reshape(vector.shape + (1,) * (leaf.ndim - 1))


def _num_clients(updates: Any) -> int:
  """Returns the size of the leading axis that all leaves share, or raises."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(updates)
  if not leaves:
    raise ValueError('updates must have at least one array. Found none.')
  num_clients = None
  for path, leaf in leaves:
    name = f'updates{jax.tree_util.keystr(path)}'
    if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
      raise TypeError(
        f'{name} must be made of floating-point numbers. Found the dtype '
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
        f'{num_clients}. Found the shape {shape}.'
      )
  return num_clients


def _known_number(value: _Scalar) -> Optional[float]:
  """Returns the number, or None where it is a tracer."""
  if not isinstance(value, (jax.Array, np.ndarray)):
    return value
  try:
    return float(value)
  except jax.errors.ConcretizationTypeError:
    return None


def _check_clip_norm(clip_norm: _Scalar) -> None:
  number = _known_number(clip_norm)
  if number is not None and number != math.inf:
    _validate.positive(clip_norm=number)
