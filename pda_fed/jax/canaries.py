"""Adds the canaries of an audit to the clients or examples of a round.

A canary's update is processed like any other: the method may change it, then it
is clipped and summed. See `pda_fed.audit`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.jax import aggregation
from pda_fed.methods import arrays

# Key of the scores in a round's metrics.
SCORES = 'canary_scores'
# Limits on the canaries formed at a time: total coordinates, and canaries.
_MOST_NUMBERS = 2**24
_MOST_AT_A_TIME = 32


class Directions(Protocol):
  """Directions of the canaries' updates, such as `audit.Directions`."""

  @property
  def num_coordinates(self) -> int:
    """Of a direction."""

  def take(self, xp: Any, signs: Any, canaries: Any) -> Any:
    """Returns directions of norm 1, [canaries, coordinates]."""

  def scores(self, xp: Any, signs: Any, vector: Any) -> Any:
    """Returns the inner product of each direction with a vector."""


class CanarySettings(NamedTuple):
  """Canary settings that a compiled round depends on.

  Example: see `stack_cohorts`.

  Attributes:
    directions: Directions of the canaries' updates.
    norm: Norm of a canary's update before clipping.
  """

  directions: Directions
  norm: float

  @property
  def at_a_time(self) -> int:
    """Number of canaries formed at a time."""
    if jax.default_backend() == 'cpu':
      return 1  # XLA is slow at adding a few arrays on a CPU.
    most = _MOST_NUMBERS // self.directions.num_coordinates
    return max(1, min(_MOST_AT_A_TIME, most))


class CanaryInputs(NamedTuple):
  """The canaries of a round, or of several rounds with a leading axis.

  Example: see `stack_cohorts`.

  Attributes:
    canaries: Indices of the canaries, [room].
    count: Number of canaries; the rest of the room is padding.
  """

  canaries: np.ndarray
  count: Any  # type: ignore[assignment]  # Not that of tuples.


def stack_cohorts(
  cohorts: Sequence[np.ndarray], settings: CanarySettings
) -> list[CanaryInputs]:
  """Pads the canaries of several rounds to the same size.

  Example:

  ```
  settings = CanarySettings(canaries.directions, canaries.norm)
  inputs = stack_cohorts([canaries.cohort(t) for t in range(5)], settings)
  ```

  Args:
    cohorts: The canaries of each round.
    settings: Canary settings; they set how many canaries are formed at a time.

  Returns:
    The inputs of each round.
  """
  unit = settings.at_a_time
  # The unit times a power of two, so that few programs are compiled.
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


class Canaries(NamedTuple):
  """The canaries of one round in a compiled program.

  Attributes:
    settings: Canary settings.
    inputs: The round's canaries.
    signs: Random signs of the canaries' directions.
  """

  settings: CanarySettings
  inputs: CanaryInputs
  signs: jax.Array

  def add_to(
    self,
    sums: aggregation.ClippedSum,
    clip_norm: jax.Array,
    before_clip: Optional[Callable[[arrays.Update], arrays.Update]] = None,
  ) -> aggregation.ClippedSum:
    """Adds the clipped updates of canaries to a sum.

    Args:
      sums: The sum over clients or examples.
      clip_norm: S, the clipping norm.
      before_clip: How the method changes an update before it is clipped.

    Returns:
      The sum including canaries.
    """
    leaves, structure = jax.tree_util.tree_flatten(sums.total)
    unit = self.settings.at_a_time
    canaries, count = self.inputs

    def body(i, sums):
      places = i * unit + jnp.arange(unit)
      flat = self.settings.norm * self.settings.directions.take(
        jnp, self.signs, canaries[places]
      )
      updates = _split(flat, leaves)
      if before_clip is not None:
        updates = jax.vmap(before_clip)(updates)
      new = aggregation.clipped_sum(
        structure.unflatten(updates), places < count, clip_norm
      )
      return jax.tree_util.tree_map(jnp.add, sums, new)

    return jax.lax.fori_loop(0, -(-count // unit), body, sums)

  def scores(
    self,
    mean: Any,
    known: aggregation.ClippedSum,
    clip_norm: jax.Array,
    expected_cohort: float,
  ) -> jax.Array:
    """Returns the score of each canary, in units of the clipping norm.

    Differential privacy holds against an adversary who knows all other data. So
    the sum over real clients is subtracted, which leaves noise and canaries.

    Args:
      mean: The noised mean.
      known: The sum without canaries.
      clip_norm: S.
      expected_cohort: qN, the divisor of the mean.
    """
    unknown = jax.tree_util.tree_map(
      lambda m, total: (m * expected_cohort - total).ravel(), mean, known.total
    )
    flat = jnp.concatenate(jax.tree_util.tree_leaves(unknown))
    return self.settings.directions.scores(jnp, self.signs, flat) / clip_norm


def _split(flat: jax.Array, leaves: Sequence[jax.Array]) -> arrays.Update:
  """Splits vectors into arrays of the leaves' shapes."""
  ends = np.cumsum([leaf.size for leaf in leaves])
  parts = jnp.split(flat, ends[:-1], axis=1)
  return tuple(
    part.reshape(len(flat), *leaf.shape)
    for part, leaf in zip(parts, leaves, strict=True)
  )
