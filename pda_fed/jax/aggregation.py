"""The privatised mean of clients' updates in JAX.

The privatised mean of "Public Data-Assisted Mirror Descent for Private Model
Training" (Amid et al., ICML 2022, arXiv:2112.00193), g_t + b_t of Algorithm 1
and of equation (3), in the form of DP-FedAvg: each client's update is clipped
to the norm S, the clipped updates are summed, N(0, (sigma S)^2) is added to
each coordinate, the result is rounded to a grid that hides the low bits of
float32 (see `privacy.rounding`) and divided by the *expected* cohort size. The
actual number of clients is private too, so the divisor must not depend on it.

Updates are a pytree of floating-point arrays with a leading client axis.
Everything is computed and returned in float32 (float64 if a leaf is float64).
Every function works under `jax.jit` and `jax.vmap`. Values are checked only if
they are concrete, not tracers.
"""

from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import privacy
from pda_fed.clipping import checks
from pda_fed.jax import clipping
from pda_fed.privacy import rounding


class ClippedSum(NamedTuple):
  """A sum of clipped updates, with counts of what was clipped.

  Sums of disjoint sets of clients can be added leaf by leaf, however the
  clients are split. Nothing here is private until `noised_mean` adds noise.

  Example: see `clipped_sum`.

  Attributes:
    total: The sum, a pytree without the client axis.
    num_clients: Number of clients in the sum.
    num_clipped: Number of clients whose update was scaled down.
    num_non_finite: Number of clients whose update was replaced by zeros.
  """

  total: Any
  num_clients: jax.Array
  num_clipped: jax.Array
  num_non_finite: jax.Array


def clipped_sum(
  updates: Any, mask: jax.Array, clip_norm: clipping.Scalar
) -> ClippedSum:
  """Clips each client's update and sums them.

  Adding or removing one client changes the total by at most `clip_norm`.

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
    mask: A vector, non-zero for clients and 0 for padding. Padding contributes
      nothing, whatever values it holds.
    clip_norm: S, positive. If infinite, only non-finite updates are changed.

  Returns:
    The `ClippedSum`.

  Raises:
    TypeError: If a leaf is not a floating-point array.
    ValueError: If the shapes do not match, or `clip_norm` is not positive.
  """
  num_clients = clipping.count_clients(updates)
  mask = jnp.asarray(mask)
  if mask.shape != (num_clients,):
    raise ValueError(
      f'mask must have the shape ({num_clients},), one number per client. '
      f'Found {mask.shape}.'
    )
  checks.check_options(clip_norm, 1, None, None)
  return _clipped_sum(updates, mask, clip_norm)


@jax.jit
def _clipped_sum(updates: Any, mask: jax.Array, clip_norm) -> ClippedSum:
  """`clipped_sum` without checks."""
  # Booleans: a weight above 1 would break the bound on the sensitivity.
  present = mask != 0
  clipped = clipping.clip_unchecked(updates, clip_norm)
  return ClippedSum(
    # Not a matrix product, which may round to TF32 on GPUs.
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
  plan: privacy.PrivacyPlan,
  total: Any,
  clip_norm: clipping.Scalar,
  key: jax.Array,
  noise_multiplier: Optional[clipping.Scalar] = None,
) -> Any:
  """Adds noise to a sum of clipped updates and divides by the expected cohort.

  The noised sum is rounded to multiples of a power of two, at most 2^-12 sigma
  S. The divisor does not depend on the actual cohort, whose size is private.

  Example:

    >>> plan = privacy.PrivacyPlan(
    ...   population=100, expected_cohort=4, rounds=5, delta=1e-3,
    ...   noise_multiplier=0.0, clip_norm=1.0,
    ... )
    >>> mean = noised_mean(
    ...   plan, np.array([2.0, 4.0]), plan.clip_norm, jax.random.key(0)
    ... )
    >>> mean.tolist()
    [0.5, 1.0]

  Args:
    plan: The privacy plan: sigma and qN.
    total: The sum returned by `clipped_sum`.
    clip_norm: S, the norm that updates were clipped to.
    key: The noise key, from `jax.random.key` or `jax.random.PRNGKey`. Never use
      it for another round.
    noise_multiplier: A traced sigma, for a program that several runs share; by
      default the plan's.

  Returns:
    The mean, with the same structure as `total`.
  """
  if noise_multiplier is None:
    noise_multiplier = plan.update_noise_multiplier
  # A concrete 0 skips drawing the noise, which is costly.
  if isinstance(noise_multiplier, jax.Array) or noise_multiplier > 0:
    total = _add_noise(total, noise_multiplier * clip_norm, key)
  return _divided(total, plan.expected_cohort)


# A function of its own, so that XLA does not merge the division with the step:
# without noise, that would change the last digits of recorded results.
@jax.jit
def _divided(total: Any, count: jax.Array) -> Any:
  return jax.tree_util.tree_map(
    lambda leaf: leaf / jnp.asarray(count, leaf.dtype), total
  )


def adapted_clip_norm(
  plan: privacy.PrivacyPlan,
  clip_norm: jax.Array,
  sums: ClippedSum,
  key: jax.Array,
) -> jax.Array:
  """Moves the clipping norm towards a quantile of the updates' norms.

  "Differentially Private Learning with Adaptive Clipping" (Andrew et al.,
  NeurIPS 2021, arXiv:1905.03871), Algorithm 1: a geometric update driven by the
  noised fraction of clients that were not clipped.

  Args:
    plan: A plan with adaptive clipping.
    clip_norm: The norm that updates were clipped to.
    sums: The clipped sum of the round.
    key: Noise key. Never use the key of another round or of the updates' noise.

  Returns:
    The clipping norm of the next round.
  """
  settings = plan.adaptive_clipping
  # Each client adds +1/2 or -1/2, so the sensitivity is 1/2.
  count = sums.num_clients / 2 - sums.num_clipped
  count = count + plan.count_stddev * draw_normal(key, (), clip_norm.dtype)
  count = round_noised(count, plan.count_stddev)
  share = count / plan.expected_cohort + 0.5
  change = settings.learning_rate * (share - settings.target_quantile)
  return clip_norm * jnp.exp(-change)


def draw_normal(key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
  """Draws normal samples whose tails are long enough for privacy.

  One float32 draw inverts one of 2^23 probabilities and never exceeds 5.2 or
  5.4 standard deviations. A value beyond that can only come from a sum that
  contains a certain example, and with little noise this happens more often than
  delta. Half the sum of four draws reaches 10 standard deviations. Holohan and
  Braghin, "Secure Random Sampling in Differential Privacy" (2021), use such a
  sum against attacks on single bits.

  Args:
    key: Key used only for these samples.
    shape: Shape of the result.
    dtype: Dtype of the result.

  Returns:
    Independent samples with mean 0 and variance 1.
  """
  return jax.random.normal(key, (4, *shape), dtype).sum(axis=0) / 2


def round_noised(values: jax.Array, stddev: clipping.Scalar) -> jax.Array:
  """Rounds noised values to the grid of their noise.

  The low bits of float32 noise reveal where a sum is exactly zero; see
  `privacy.rounding`.

  Args:
    values: Values with noise.
    stddev: Standard deviation of the noise. If 0, values are not rounded.

  Returns:
    Multiples of a power of two, at most 2^-12 of `stddev`.
  """
  # Take the power of two below from the bits: logarithms are not always exact.
  bits = jax.lax.bitcast_convert_type(jnp.float32(stddev), jnp.uint32)
  power = jax.lax.bitcast_convert_type(bits & 0x7F800000, jnp.float32)
  step = (power * rounding.GRID_STEP).astype(values.dtype)
  # The step is a power of two, so division and product are exact.
  rounded = jnp.round(values / jnp.where(step > 0, step, 1)) * step
  return jnp.where(step > 0, rounded, values)


def _add_noise(tree: Any, stddev: jax.Array, key: jax.Array) -> Any:
  """Adds independent normal noise to every coordinate, and rounds."""
  leaves, structure = jax.tree_util.tree_flatten(tree)
  dtype = jnp.result_type(*leaves)
  ends = np.cumsum([leaf.size for leaf in leaves])
  # Draw all noise at once: one generator per leaf is slow to compile.
  noise = draw_normal(key, (int(ends[-1]),), dtype)
  noise = jnp.split(jnp.asarray(stddev, dtype) * noise, ends[:-1])
  return structure.unflatten(
    round_noised(leaf + own.reshape(leaf.shape).astype(leaf.dtype), stddev)
    for leaf, own in zip(leaves, noise, strict=True)
  )
