"""Grids of settings, and their cells."""

from collections.abc import Mapping, Sequence
import itertools
import math
from typing import Any
import urllib.parse

from pda_fed.common import settings
from pda_fed.runs import spec as spec_lib

# The values of each setting, by its name.
Grid = Mapping[str, Sequence[Any]]


def check(grid: Grid, source: str = 'tune') -> None:
  """Raises ValueError unless names are settings, and values differ.

  Args:
    grid: The values of each setting.
    source: What gives the grid, for messages.
  """
  if not grid:
    raise ValueError(f'{source} must have at least one setting. Found none.')
  for name, values in grid.items():
    settings.find(spec_lib.RunSpec, name)
    if not values or len(set(values)) < len(values):
      shown = ','.join(map(format_value, values))
      raise ValueError(
        f'{source} must have each value once. Found {name}={shown}.'
      )


def parse(texts: Sequence[str], source: str = 'tune') -> dict[str, list[Any]]:
  """Parses 'setting=a,b,c' for each axis of a grid.

  Example:

    >>> parse(['clip_norm=0.3,1', 'method.alpha_i=2,5'])
    {'clip_norm': [0.3, 1.0], 'method.alpha_i': [2, 5]}

  Args:
    texts: A text for each axis.
    source: The name of the flag that gives the texts, for messages.

  Raises:
    ValueError: If a text is malformed, a setting is unknown, or a setting or
      value occurs twice.
  """
  grid: dict[str, list[Any]] = {}
  for text in texts:
    name, _, rest = text.partition('=')
    name = name.strip().lstrip('-')
    parts = [part.strip() for part in rest.split(',') if part.strip()]
    if not name or not parts:
      raise ValueError(
        f'{source} must be SETTING=VALUE,VALUE,... Found {text!r}.'
      )
    if name in grid:
      raise ValueError(f'{source} must have {name} once. Found {text!r}.')
    leaf, inner = settings.find(spec_lib.RunSpec, name)
    hint = Any if inner or leaf.type is settings.Choice else leaf.type
    try:
      grid[name] = [settings.parse(part, hint) for part in parts]
    except ValueError as e:
      raise ValueError(f'{source}: {name} {e}.') from e
  if texts:
    check(grid, source)
  return grid


def by_owner(
  texts: Sequence[str], owners: Sequence[str], source: str
) -> dict[str, dict[str, list[Any]]]:
  """Returns the grid of each method, or task; some axes hold for all.

  Example:

    >>> by_owner(['rounds=2', 'pda:method.alpha_i=5'], ['warm', 'pda'], 'tune')
    {'warm': {'rounds': [2]}, 'pda': {'rounds': [2], 'method.alpha_i': [5]}}

  Args:
    texts: SETTING=VALUE,..., or OWNER:SETTING=VALUE,...; see `parse`.
    owners: Names of the methods, or tasks.
    source: The name of the flag that gives the texts, for messages.

  Raises:
    ValueError: If an owner is unknown, or a text is refused by `parse`.
  """
  found: dict[str, list[str]] = {owner: [] for owner in owners}
  for text in texts:
    owner, colon, rest = text.partition(':')
    if not colon or '=' in owner:  # The colon may be part of a value.
      for own in found.values():
        own.append(text)
    elif owner in found:
      found[owner].append(rest)
    else:
      raise ValueError(
        f'{source} must be SETTING=VALUE, or begin with one of'
        f' {", ".join(found)} and a colon. Found {text!r}.'
      )
  return {owner: parse(own, source) for owner, own in found.items()}


def single_values(grid: Grid) -> dict[str, Any]:
  """Returns the values of axes as settings; several values are a list."""
  return {n: v[0] if len(v) == 1 else list(v) for n, v in grid.items()}


def format_value(value: Any) -> str:
  """Returns a value of a grid as a flag takes it."""
  if isinstance(value, bool) or value is None:
    return str(value).lower()
  return f'{value:.15g}' if isinstance(value, (int, float)) else str(value)


def as_flags(values: Mapping[str, Any]) -> list[str]:
  """Returns settings as flags."""
  return [f'--{name}={format_value(value)}' for name, value in values.items()]


def cells(grid: Grid) -> list[dict[str, Any]]:
  """Returns all points of a grid: a value for each setting."""
  return [
    dict(zip(grid, values, strict=True))
    for values in itertools.product(*grid.values())
  ]


def cell_name(cell: Mapping[str, Any]) -> str:
  """Returns the name of a cell's folder.

  Example:

    >>> cell_name({'clip_norm': 0.3, 'data_dir': 'a/b'})
    'clip_norm=0.3,data_dir=a%2Fb'
  """
  text = ','.join(f'{n}={format_value(v)}' for n, v in cell.items())
  # Quoting keeps cells distinct if values have characters such as '/'.
  return urllib.parse.quote(text, safe=',=+')


def is_at_end(value: Any, axis: Sequence[Any]) -> bool:
  """Returns whether a value is the least or the largest of several numbers."""
  are_numbers = all(
    isinstance(v, (int, float)) and not isinstance(v, bool) and 0 < v < math.inf
    for v in axis
  )
  return len(axis) > 1 and are_numbers and value in (min(axis), max(axis))
