"""Whether runs may be compared: the same data, the same privacy."""

from collections.abc import Mapping, Sequence
import math
from typing import Any, Optional

from pda_fed import methods as methods_lib
from pda_fed import privacy

# Epsilons that differ by less are one: accountants round.
_EPSILON_TOLERANCE = 0.01


def check_data(runs: Sequence[Any]) -> None:
  """Raises ValueError if runs are on different data.

  Args:
    runs: Each a `comparison.Run`; one that does not say is left out.
  """
  found: dict[str, Any] = {}
  for run in runs:
    data_hash = run.config['settings'].get('data_hash')
    if data_hash is not None:
      found.setdefault(str(data_hash), run)
  if len(found) > 1:
    (a, first), (b, second), *_ = found.items()
    raise ValueError(
      'runs must be on the same data. Found data_hash'
      f' {a!r} in {first.path} and {b!r} in {second.path}.'
    )


def format_epsilon(epsilon: Optional[float]) -> str:
  """Formats epsilon, rounded up; '?' where it was not computed."""
  return '?' if epsilon is None else privacy.round_up(epsilon)


def largest(epsilons: Sequence[Optional[float]]) -> Optional[float]:
  """Returns the largest epsilon; None if one is not known."""
  return None if None in epsilons else max(epsilons)


def is_same(a: Optional[float], b: Optional[float]) -> bool:
  """Returns whether two epsilons are the same but for rounding."""
  if a is None or b is None:
    return a is b
  return math.isclose(a, b, rel_tol=_EPSILON_TOLERANCE)


def differences(runs: Mapping[str, Sequence[Any]]) -> list[str]:
  """Returns in which guarantees methods differ, a sentence each.

  Args:
    runs: By method, each a `comparison.Run`.
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
  if len(parts) == 1:  # Seeds of a method differ.
    parts = [f'at most {parts[0]}, less in some of {len(every)} runs']
  return f'Not equally private: {name} is {", ".join(parts)}.'
