"""Canaries of an audit beside the clients, or examples, of a round.

A canary's update goes the way of all updates: changed by the method before the
clip, clipped, summed. See `pda_fed.audit`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.methods import arrays
from pda_fed.vectorized import aggregation

# The name of scores among the metrics of a round.
SCORES = 'canary_scores'
# Numbers of the canaries that are formed at a time.
_MOST_NUMBERS = 2**24
_MOST_AT_A_TIME = 32


class Directions(Protocol):
  """What canaries send; `audit.Directions` is one."""

  num_coordinates: int

  def take(self, xp: Any, signs: Any, canaries: Any) -> Any:
    """Returns directions of norm 1, [canaries, coordinates]."""

  def scores(self, xp: Any, signs: Any, vector: Any) -> Any:
    """Returns the inner product of each direction with a vector."""


class CanarySettings(NamedTuple):
  """What a compiled round depends on.

  Example: see `stack_cohorts`.

  Attributes:
    directions: What canaries send.
    norm: The norm that it has before the clip.
  """

  directions: Directions
  norm: float

  @property
  def at_a_time(self) -> int:
    """How many canaries are formed at a time."""
    if jax.default_backend() == 'cpu':
      return 1  # XLA is slow to add up a few arrays of a CPU.
    most = _MOST_NUMBERS // self.directions.num_coordinates
    return max(1, min(_MOST_AT_A_TIME, most))


class CanaryInputs(NamedTuple):
  """The canaries of a round, or with a leading axis those of several.

  Example: see `stack_cohorts`.

  Attributes:
    canaries: Their numbers, [room].
    count: How many they are; the rest of the room is padding.
  """

  canaries: np.ndarray
  count: np.ndarray


def stack_cohorts(
  cohorts: Sequence[np.ndarray], settings: CanarySettings
) -> list[CanaryInputs]:
  """Pads the canaries of rounds to one room.

  Example:

  ```
  settings = CanarySettings(canaries.directions, canaries.norm)
  inputs = stack_cohorts([canaries.cohort(t) for t in range(5)], settings)
  ```

  Args:
    cohorts: The canaries of each round.
    settings: Gives how many are formed at a time.

  Returns:
    The inputs of each round.
  """
  unit = settings.at_a_time
  # A power of two of the unit: few programs serve all dispatches.
  room = unit
  while room < max(map(len, cohorts)):
    room *= 2
  return [
    CanaryInputs(
      np.pad(cohort, (0, room - len(cohort))).astype(np.int32),
      np.int32(len(cohort)),
    )
    for cohort in cohorts
  ]


def add_canaries(
  sums: aggregation.ClippedSum,
  inputs: CanaryInputs,
  signs: jax.Array,
  settings: CanarySettings,
  clip_norm: jax.Array,
  before_clip: Optional[Callable[[arrays.Update], arrays.Update]] = None,
) -> aggregation.ClippedSum:
  """Adds the clipped updates of canaries to a sum.

  Args:
    sums: The sum of clients, or examples.
    inputs: The canaries of the round.
    signs: Random signs of their directions.
    settings: What they send.
    clip_norm: S.
    before_clip: What the method does to an update before the clip.

  Returns:
    The sum of all.
  """
  leaves, structure = jax.tree_util.tree_flatten(sums.total)
  unit = settings.at_a_time

  def body(i, sums):
    places = i * unit + jnp.arange(unit)
    flat = settings.norm * settings.directions.take(
      jnp, signs, inputs.canaries[places]
    )
    updates = _split(flat, leaves)
    if before_clip is not None:
      updates = jax.vmap(before_clip)(updates)
    new = aggregation.clipped_sum(
      structure.unflatten(updates), places < inputs.count, clip_norm
    )
    return jax.tree_util.tree_map(jnp.add, sums, new)

  return jax.lax.fori_loop(0, -(-inputs.count // unit), body, sums)


def _split(flat: jax.Array, leaves: Sequence[jax.Array]) -> arrays.Update:
  """Takes vectors apart into arrays of the leaves' shapes."""
  ends = np.cumsum([leaf.size for leaf in leaves])
  parts = jnp.split(flat, ends[:-1], axis=1)
  return tuple(
    part.reshape(len(flat), *leaf.shape)
    for part, leaf in zip(parts, leaves, strict=True)
  )


def scores_of(
  mean: Any,
  known: aggregation.ClippedSum,
  signs: jax.Array,
  settings: CanarySettings,
  *,
  clip_norm: jax.Array,
  expected_cohort: float,
) -> jax.Array:
  """Returns the score of each canary, in units of the clip.

  Differential privacy holds against those who know everybody else: the sum of
  all others is taken off, so that noise and canaries are left.

  Args:
    mean: The noised mean.
    known: The sum of all but the canaries.
    signs: Random signs of the directions.
    settings: What canaries send.
    clip_norm: S.
    expected_cohort: The divisor of the mean.
  """
  unknown = jax.tree_util.tree_map(
    lambda m, total: (m * expected_cohort - total).ravel(), mean, known.total
  )
  flat = jnp.concatenate(jax.tree_util.tree_leaves(unknown))
  return settings.directions.scores(jnp, signs, flat) / clip_norm
