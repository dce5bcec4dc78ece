"""Measures functions in turn."""

from collections.abc import Callable, Mapping
import statistics


def in_turn(
  measures: Mapping[str, Callable[[], float]], times: int
) -> tuple[dict[str, float], dict[str, float]]:
  """Measures alternately, so that other load affects all of them alike.

  Args:
    measures: Functions that return seconds. The first call compiles.
    times: Number of calls after the first.

  Returns:
    The medians without the first calls, and how much longer those took.
  """
  seconds = {name: [] for name in measures}
  for _ in range(times + 1):
    for name, measure in measures.items():
      seconds[name].append(measure())
  medians = {name: statistics.median(s[1:]) for name, s in seconds.items()}
  return medians, {name: s[0] - medians[name] for name, s in seconds.items()}
