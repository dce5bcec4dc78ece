"""Checks of arguments, with error messages in a common style.

Each function takes values by name. It raises a `ValueError` that gives the
name, the allowed values and the value found:

    >>> positive(clip_norm=-1.0)
    Traceback (most recent call last):
    ...
    ValueError: clip_norm must be positive and finite. Found -1.0.
"""

import math
import numbers
from typing import Union

_Number = Union[int, float]


def _check(name: str, value: object, allowed: bool, rule: str) -> None:
  if not allowed:
    raise ValueError(f'{name} must be {rule}. Found {value!r}.')


def _number(name: str, value: _Number) -> None:
  if isinstance(value, bool) or not isinstance(value, numbers.Real):
    raise TypeError(f'{name} must be a number. Found {value!r}.')


def positive(**named: _Number) -> None:
  """Raises unless every value is finite and greater than 0."""
  for name, value in named.items():
    _number(name, value)
    _check(
      name, value, math.isfinite(value) and value > 0, 'positive and finite'
    )


def positive_or(allowed, **named) -> None:
  """Raises unless every value is positive and finite, or among `allowed`."""
  for name, value in named.items():
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    is_positive = is_number and math.isfinite(value) and value > 0
    if value not in allowed and not is_positive:
      choices = ' or '.join(repr(choice) for choice in allowed)
      raise ValueError(
        f'{name} must be positive and finite, or {choices}. Found {value!r}.'
      )


def non_negative(**named: _Number) -> None:
  """Raises unless every value is finite and at least 0."""
  for name, value in named.items():
    _number(name, value)
    _check(
      name,
      value,
      math.isfinite(value) and value >= 0,
      'non-negative and finite',
    )


def in_range(low: _Number, high: _Number, **named: _Number) -> None:
  """Raises unless every value lies in [low, high]."""
  for name, value in named.items():
    _number(name, value)
    _check(name, value, low <= value <= high, f'in [{low}, {high}]')


def between(low: _Number, high: _Number, **named: _Number) -> None:
  """Raises unless every value lies in the open interval (low, high)."""
  for name, value in named.items():
    _number(name, value)
    _check(name, value, low < value < high, f'in ({low}, {high})')


def below_one(**named: _Number) -> None:
  """Raises unless every value lies in [0, 1)."""
  for name, value in named.items():
    _number(name, value)
    _check(name, value, 0 <= value < 1, 'in [0, 1)')


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
