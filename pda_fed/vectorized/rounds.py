"""Rounds behind each other in one compiled program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


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
