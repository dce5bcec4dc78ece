"""Rounds behind each other in one compiled program."""

from collections.abc import Callable, Sequence
import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.common import validate


def lasting_noise() -> contextlib.AbstractContextManager:
  """A block in which a key gives the same numbers in all versions of JAX.

  Compiled functions that draw noise are called in it. JAX 0.5 has changed its
  default: a run that goes on where JAX is newer would else run rounds again
  with other noise, which epsilon does not cover.
  """
  if hasattr(jax, 'threefry_partitionable'):
    return jax.threefry_partitionable(True)
  return contextlib.nullcontext()  # There is nothing else any longer.


def run_rounds(
  one_round: Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]],
  state: Any,
  inputs: Any,
  num_rounds: jax.Array,
) -> tuple[Any, dict[str, jax.Array]]:
  """Runs the first rounds of those that there is room for.

  How many there are is data and not a shape: fewer rounds, at the end of a run,
  need no other program.

  Args:
    one_round: Of a state and a round's inputs, the next state and metrics.
    state: Before the first round.
    inputs: A pytree of arrays whose first axis is that of rounds.
    num_rounds: How many rounds to run.

  Returns:
    The state, and metrics, each of one number a round.
  """

  def at(i):
    return jax.tree_util.tree_map(lambda a: a[i], inputs)

  shapes = jax.eval_shape(lambda s: one_round(s, at(0)), state)[1]
  room = jax.tree_util.tree_leaves(inputs)[0].shape[0]
  metrics = jax.tree_util.tree_map(
    lambda s: jnp.zeros((room, *s.shape), s.dtype), shapes
  )

  def body(i, carry):
    state, metrics = carry
    state, new = one_round(state, at(i))
    return state, jax.tree_util.tree_map(
      lambda all_, value: all_.at[i].set(value), metrics, new
    )

  return jax.lax.fori_loop(0, num_rounds, body, (state, metrics))


def noise_key(seed: int) -> np.ndarray:
  """Returns the key of all noise; all 64 bits of the seed count.

  `jax.random.PRNGKey` takes 32 bits unless JAX is set to 64.

  Example:

    >>> noise_key(2**32 + 7)
    array([1, 7], dtype=uint32)

  Args:
    seed: 64 bits.

  Raises:
    ValueError: If it is negative or has more bits.
  """
  validate.integers(0, noise_seed=seed)
  validate.in_range(0, 2**64 - 1, noise_seed=seed)
  return np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)


def stack_rounds(rounds: Sequence[Any], room: int) -> Any:
  """Puts rounds behind each other, with room for more.

  Example: see `build_rounds`.

  Args:
    rounds: At least one, all of equal shapes.
    room: At least as many; the rest is a copy of the last one.

  Returns:
    The rounds as one structure, with a leading axis of that size.
  """
  padded = [*rounds, *[rounds[-1]] * (room - len(rounds))]
  return jax.tree_util.tree_map(lambda *a: np.stack(a), *padded)
