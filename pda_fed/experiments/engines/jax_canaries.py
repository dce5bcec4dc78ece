"""Converts an audit's canaries to inputs of the JAX engines."""

from collections.abc import Sequence
from typing import Optional

from pda_fed import audit
from pda_fed import vectorized


def settings_of(
  canaries: Optional[audit.Canaries],
) -> Optional[vectorized.CanarySettings]:
  """Returns the canaries' part of a compiled round; None without an audit."""
  if canaries is None:
    return None
  return vectorized.CanarySettings(canaries.directions, canaries.norm)


def inputs_of(
  canaries: Optional[audit.Canaries], rounds: Sequence[int]
) -> list[Optional[vectorized.CanaryInputs]]:
  """Returns the canaries of each round; None without an audit."""
  if canaries is None:
    return [None] * len(rounds)
  return vectorized.stack_cohorts(
    [canaries.cohort(t) for t in rounds], settings_of(canaries)
  )
