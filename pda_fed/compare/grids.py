"""Grids of settings, and their cells."""

from collections.abc import Mapping, Sequence
import dataclasses
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
      raise ValueError(
        f'{source} must have each value once. Found'
        f' {name}={format_all(values)}.'
      )


def canonical(name: str) -> str:
  """Returns the name of a setting as flags have it: 'rounds' of 'plan.rounds'.

  Args:
    name: The name, with or without the names of all groups; '' stays as it is.

  Raises:
    ValueError: If there is no such setting.
  """
  if not name:
    return name
  leaf, inner = settings.find(spec_lib.RunSpec, name)
  known = settings.by_name(spec_lib.RunSpec).items()
  short = next(n for n, other in known if other is leaf)
  return f'{short}.{inner}' if inner else short


def parse(texts: Sequence[str], source: str = 'tune') -> dict[str, list[Any]]:
  """Parses 'setting=a,b,c' for each axis of a grid.

  Example:

    >>> parse(['clip_norm=0.3,1', 'method.alpha_i=2,5'])
    {'clip_norm': [0.3, 1.0], 'method.alpha_i': [2, 5]}

  Args:
    texts: A text for each axis.
    source: The name of the flag that gives the texts, for messages.

  Returns:
    The values of each setting.

  Raises:
    ValueError: If a text is malformed, a setting is unknown, or a setting or
      value occurs twice.
  """
  grid: dict[str, list[Any]] = {}
  for text in texts:
    name, _, rest = text.partition('=')
    name = canonical(name.strip().lstrip('-'))
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
  check(grid, source)
  return grid


def by_owner(
  texts: Sequence[str], owners: Sequence[str], source: str
) -> dict[str, list[str]]:
  """Returns the texts of each method, or task; some hold for all.

  Example:

    >>> by_owner(['rounds=2', 'pda:method.alpha_i=5'], ['warm', 'pda'], 'tune')
    {'warm': ['rounds=2'], 'pda': ['rounds=2', 'method.alpha_i=5']}

  Args:
    texts: SETTING=VALUE, or OWNER:SETTING=VALUE.
    owners: Names of the methods, or tasks.
    source: The name of the flag that gives the texts, for messages.

  Raises:
    ValueError: If an owner is unknown.
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
  return found


def format_value(value: Any) -> str:
  """Returns a value of a grid as a flag takes it."""
  if isinstance(value, bool) or value is None:
    return str(value).lower()
  return f'{value:.15g}' if isinstance(value, (int, float)) else str(value)


def format_all(values: Sequence[Any]) -> str:
  """Returns values of an axis, with commas."""
  return ','.join(map(format_value, values))


@dataclasses.dataclass(frozen=True)
class Cell:
  """A point of a grid.

  Attributes:
    values: Pairs of a setting and its value.
  """

  values: tuple[tuple[str, Any], ...]

  @property
  def name(self) -> str:
    """The name of the cell's folder."""
    text = ','.join(f'{n}={format_value(v)}' for n, v in self.values)
    # Quoting keeps cells distinct if values have characters such as '/'.
    return urllib.parse.quote(text, safe=',=+')

  @property
  def arguments(self) -> list[str]:
    """The cell as flags."""
    return [f'--{n}={format_value(v)}' for n, v in self.values]


def cells(grid: Grid) -> list[Cell]:
  """Returns all points of a grid."""
  return [
    Cell(tuple(zip(grid, values, strict=True)))
    for values in itertools.product(*grid.values())
  ]


def next_value(value: float, up: bool) -> float:
  """Returns the next value in the series 1, 2, 5, 10, 20, 50, ...

  Example:

    >>> next_value(0.5, up=True), next_value(0.3, up=False)
    (1.0, 0.2)

  Args:
    value: A positive number, in the series or not.
    up: True for the next larger value, False for the next smaller one.
  """
  exponent = math.floor(math.log10(value))
  series = [
    float(f'{digit}e{power}')
    for power in range(exponent - 1, exponent + 3)
    for digit in (1, 2, 5)
  ]
  if up:
    return next(v for v in series if v > value)
  return next(v for v in reversed(series) if v < value)


def _like(value: Any, number: float) -> Any:
  """Returns a number in the type of a value, if it is whole."""
  is_whole = isinstance(value, int) and number == int(number) and number >= 1
  return int(number) if is_whole else number


def positive_numbers(grid: Grid, flag: str) -> bool:
  """Returns whether all values of an axis are positive numbers."""
  return all(
    isinstance(v, (int, float)) and not isinstance(v, bool) and 0 < v < math.inf
    for v in grid[flag]
  )


def neighbours(cell: Cell, grid: Grid, growing: Sequence[str]) -> list[Cell]:
  """Returns the neighbours of a cell, which differ from it in one flag.

  Example:

    >>> cell = Cell((('rate', 0.5), ('K', 200)))
    >>> grid = {'rate': (0.3, 0.5), 'K': (200, 1000)}
    >>> [c.name for c in neighbours(cell, grid, ['rate'])]
    ['rate=0.3,K=200', 'rate=1,K=200', 'rate=0.5,K=1000']

  Args:
    cell: The cell.
    grid: All values of each flag. Neighbours of a positive number are the next
      smaller and larger values; neighbours of other values are all the rest.
    growing: Flags whose axes continue beyond their ends, with the series of
      `next_value`.
  """
  found = []
  for flag, value in cell.values:
    if not positive_numbers(grid, flag):
      beside = [v for v in grid[flag] if v != value]
    else:
      values = sorted(grid[flag], key=float)
      at = values.index(value)
      below, above = values[:at][-1:], values[at + 1 :][:1]
      if flag in growing:
        below = below or [_like(value, next_value(float(value), up=False))]
        above = above or [_like(value, next_value(float(value), up=True))]
      beside = [*below, *above]
    found += [
      Cell(tuple((f, new if f == flag else v) for f, v in cell.values))
      for new in beside
    ]
  return found


def grid_of(all_cells: Sequence[Cell], start: Grid) -> dict[str, list[str]]:
  """Returns the grid of some cells: the values of each flag.

  Args:
    all_cells: The cells.
    start: The initial grid of the search. Axes with more values are sorted;
      others keep their order.
  """
  grid = {}
  for flag, first in start.items():
    values = dict.fromkeys([*first, *(dict(c.values)[flag] for c in all_cells)])
    grown = len(values) > len(first)
    grid[flag] = sorted(values, key=float) if grown else list(values)
  return grid
