"""Converts an audit's canaries to inputs of the JAX engines."""

from collections.abc import Sequence
from typing import Optional

from pda_fed import audit
from pda_fed import jax as pda_jax


def settings_of(
  canaries: Optional[audit.Canaries],
) -> Optional[pda_jax.CanarySettings]:
  """Returns the canaries' part of a compiled round; None without an audit."""
  if canaries is None:
    return None
  return pda_jax.CanarySettings(canaries.directions, canaries.norm)


def inputs_of(
  canaries: Optional[audit.Canaries], rounds: Sequence[int]
) -> list[Optional[pda_jax.CanaryInputs]]:
  """Returns the canaries of each round; None without an audit."""
  if canaries is None:
    return [None] * len(rounds)
  return pda_jax.stack_cohorts(
    [canaries.cohort(t) for t in rounds], settings_of(canaries)
  )
