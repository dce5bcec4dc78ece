"""Checks whether runs are comparable: same data, same privacy."""

from collections.abc import Mapping, Sequence
import math
from typing import Any, Optional

from pda_fed import methods as methods_lib
from pda_fed import privacy

# Relative difference up to which epsilons count as equal: accountants round.
_EPSILON_TOLERANCE = 0.01


def check_data(runs: Sequence[Any]) -> None:
  """Raises ValueError if runs use different data.

  Args:
    runs: Runs, each a `comparison.Run`.
  """
  found: dict[str, Any] = {}
  for run in runs:
    found.setdefault(run.config.data_hash, run)
  if len(found) > 1:
    (a, first), (b, second), *_ = found.items()
    raise ValueError(
      'runs must use the same data. Found data_hash'
      f' {a!r} in {first.path} and {b!r} in {second.path}.'
    )


def format_epsilon(epsilon: Optional[float]) -> str:
  """Formats epsilon, rounded up; '?' if it was not computed."""
  return '?' if epsilon is None else privacy.round_up(epsilon)


def largest(epsilons: Sequence[Optional[float]]) -> Optional[float]:
  """Returns the largest epsilon, or None if one is unknown."""
  return None if None in epsilons else max(epsilons)


def is_same(a: Optional[float], b: Optional[float]) -> bool:
  """Returns whether two epsilons are equal up to rounding."""
  if a is None or b is None:
    return a is b
  return math.isclose(a, b, rel_tol=_EPSILON_TOLERANCE)


def differences(runs: Mapping[str, Sequence[Any]]) -> list[str]:
  """Returns a sentence for each privacy parameter in which methods differ.

  Args:
    runs: Runs by method, each a `comparison.Run`.
  """
  lines = []
  every = [run for group in runs.values() for run in group]
  if not all(is_same(every[0].epsilon, run.epsilon) for run in every):
    of_methods = {
      method: format_epsilon(largest([run.epsilon for run in group]))
      for method, group in runs.items()
    }
    lines.append(_sentence('epsilon', of_methods, every))
  for name in ('delta', 'unit', 'neighbouring'):
    if len({getattr(run.plan, name) for run in every}) > 1:
      of_methods = {
        method: _shown(getattr(group[0].plan, name))
        for method, group in runs.items()
      }
      lines.append(_sentence(name, of_methods, every))
  return lines


def _shown(value: Any) -> str:
  return f'{value:g}' if isinstance(value, float) else str(value)


def _sentence(name: str, of_methods: Mapping[str, str], every: Sequence) -> str:
  groups: dict[str, list[str]] = {}
  for method, value in of_methods.items():
    groups.setdefault(value, []).append(methods_lib.title(method))
  parts = [f'{value} for {" and ".join(of)}' for value, of in groups.items()]
  if len(parts) == 1:  # Only runs of the same method differ.
    parts = [f'at most {parts[0]}, less in some of {len(every)} runs']
  return f'Not equally private: {name} is {", ".join(parts)}.'
