"""Runs several rounds in one compiled program; keys and public draws."""

from collections.abc import Callable, Sequence
import contextlib
from typing import Any
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import privacy
from pda_fed.common import validate
from pda_fed.jax import philox


def lasting_noise() -> contextlib.AbstractContextManager:
  """Returns a context in which keys give the same noise in all JAX versions.

  Call compiled functions that draw noise inside it. JAX 0.5 changed its
  default. Without this context, a run resumed with a newer JAX would repeat
  rounds with different noise, which epsilon does not cover.
  """
  if hasattr(jax, 'threefry_partitionable'):
    return jax.threefry_partitionable(True)
  return contextlib.nullcontext()  # Newer versions have only this mode.


def run_rounds(
  one_round: Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]],
  state: Any,
  inputs: Any,
  num_rounds: jax.Array,
) -> tuple[Any, dict[str, jax.Array]]:
  """Runs the first `num_rounds` rounds of the inputs.

  The number of rounds is data, not a shape: running fewer rounds at the end of
  a run does not compile another program.

  Args:
    one_round: A function of a state and a round's inputs. It returns the next
      state and metrics.
    state: State before the first round.
    inputs: A pytree of arrays whose first axis is the round.
    num_rounds: Number of rounds to run.

  Returns:
    The state, and metrics with one value per round each.
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


def check_round(plan: privacy.PrivacyPlan, round_num: int) -> None:
  """Raises ValueError if epsilon of a plan does not cover a round.

  Args:
    plan: The plan of a trainer. A cohort may be of another plan.
    round_num: The index of the round.
  """
  if round_num >= plan.rounds:
    raise ValueError(
      f'cohort.round_num must be below the rounds of the plan, {plan.rounds}:'
      f' its epsilon covers no more. Found {round_num}.'
    )


def warn_non_finite(count: float, non_finite: float, hint: str) -> None:
  """Says that no update of a round is finite, so that only noise was added.

  Args:
    count: Number of clients or examples.
    non_finite: How many of their updates are not finite.
    hint: What to do.
  """
  if 0 < count == non_finite:
    warnings.warn(
      'In some rounds no update or gradient was finite, and only noise was'
      f' added. {hint}',
      stacklevel=3,
    )


def noise_key(seed: int) -> np.ndarray:
  """Returns the noise key for a 64-bit seed.

  `jax.random.PRNGKey` uses only 32 bits unless JAX is in 64-bit mode.

  Example:

    >>> noise_key(2**32 + 7)
    array([1, 7], dtype=uint32)

  Args:
    seed: The seed, 64 bits.

  Raises:
    ValueError: If the seed is negative or has more than 64 bits.
  """
  validate.integers(0, noise_seed=seed)
  validate.in_range(0, 2**64 - 1, noise_seed=seed)
  return np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)


def stack_rounds(rounds: Sequence[Any], room: int) -> Any:
  """Stacks rounds along a new axis, padded to a fixed length.

  Example:

    >>> rounds = stack_rounds([{'t': 5}, {'t': 6}], room=3)
    >>> rounds['t'].tolist()
    [5, 6, 6]

  Args:
    rounds: One or more rounds of equal shapes.
    room: Length of the new axis, at least the number of rounds. Padding repeats
      the last round.

  Returns:
    The rounds as one structure, with a leading axis of length `room`.
  """
  padded = [*rounds, *[rounds[-1]] * (room - len(rounds))]
  return jax.tree_util.tree_map(lambda *a: np.stack(a), *padded)


def draw_users(
  seed: int, round_num: int, num_users: int, users_per_round: int
) -> np.ndarray:
  """Draws users without replacement, for the mode 'local_training'.

  The draws equal those of `pda_tff.PublicUpdate`: with the same seed, both
  engines train on the same public users.

  Example:

    >>> drawn = draw_users(seed=0, round_num=3, num_users=9, users_per_round=9)
    >>> sorted(drawn.tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8]

  Args:
    seed: Sampling seed of public users, 63 bits.
    round_num: Index of the round.
    num_users: Number of public users.
    users_per_round: Number of users to draw.

  Returns:
    Indices of the users, in the order of the draw.
  """
  draws = philox.uniform((seed, round_num), num_users)
  return np.argsort(draws, kind='stable')[:users_per_round]


def draw_rows(
  seed: int, round_num: int, num_sentences: int, count: int
) -> np.ndarray:
  """Draws sentences of all users with replacement, for the mode 'gradient'.

  Example:

    >>> draw_rows(seed=0, round_num=3, num_sentences=100, count=4).shape
    (4,)

  Args:
    seed: Sampling seed of public users, 63 bits.
    round_num: Index of the round.
    num_sentences: Number of sentences of all public users.
    count: Number of sentences to draw.

  Returns:
    Indices of the sentences.
  """
  return philox.integers((seed, round_num), count, num_sentences)
