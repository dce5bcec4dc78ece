"""Checks of arguments, with error messages in a common style.

Each function takes values by name. It raises a `ValueError` that gives the
name, the allowed values and the value found:

    >>> positive(clip_norm=-1.0)
    Traceback (most recent call last):
    ...
    ValueError: clip_norm must be positive and finite. Found -1.0.
"""

from collections.abc import Callable, Sequence
import math
import numbers
from typing import Any, Union

_Number = Union[int, float]


def _check(name: str, value: object, allowed: bool, rule: str) -> None:
  if not allowed:
    raise ValueError(f'{name} must be {rule}. Found {value!r}.')


def _numbers(
  rule: str, allows: Callable[[_Number], bool]
) -> Callable[..., None]:
  """Returns a function that raises unless every value is an allowed number."""

  def check(**named: _Number) -> None:
    for name, value in named.items():
      if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f'{name} must be a number. Found {value!r}.')
      _check(name, value, allows(value), rule)

  return check


positive = _numbers('positive and finite', lambda v: 0 < v < math.inf)
non_negative = _numbers('non-negative and finite', lambda v: 0 <= v < math.inf)
below_one = _numbers('in [0, 1)', lambda v: 0 <= v < 1)


def in_range(low: _Number, high: _Number, **named: _Number) -> None:
  """Raises unless every value lies in [low, high]."""
  _numbers(f'in [{low}, {high}]', lambda v: low <= v <= high)(**named)


def between(low: _Number, high: _Number, **named: _Number) -> None:
  """Raises unless every value lies in the open interval (low, high)."""
  _numbers(f'in ({low}, {high})', lambda v: low < v < high)(**named)


def positive_or(allowed: Sequence[Any], **named: Any) -> None:
  """Raises unless every value is positive and finite, or among `allowed`."""
  for name, value in named.items():
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if value not in allowed and not (is_number and 0 < value < math.inf):
      choices = ' or '.join(repr(choice) for choice in allowed)
      raise ValueError(
        f'{name} must be positive and finite, or {choices}. Found {value!r}.'
      )


def integers(low: int, **named: int) -> None:
  """Raises unless every value is an integer and at least `low`."""
  for name, value in named.items():
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
      raise TypeError(f'{name} must be an integer. Found {value!r}.')
    _check(name, value, value >= low, f'at least {low}')


def texts(**named: str) -> None:
  """Raises unless every value is a non-empty string."""
  for name, value in named.items():
    if not isinstance(value, str):
      raise TypeError(f'{name} must be a string. Found {value!r}.')
    _check(name, value, bool(value), 'a non-empty string')


def instances(kind: type, **named) -> None:
  """Raises unless every value is an instance of `kind`."""
  for name, value in named.items():
    if not isinstance(value, kind):
      raise TypeError(f'{name} must be a {kind.__name__}. Found {value!r}.')


def one_of(allowed, **named) -> None:
  """Raises unless every value is among `allowed`."""
  for name, value in named.items():
    if value not in allowed:
      choices = ', '.join(repr(choice) for choice in allowed)
      raise ValueError(f'{name} must be one of {choices}. Found {value!r}.')
