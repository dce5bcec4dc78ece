"""Grids of settings: cells, their ranking by validation, tables.

A search uses the validation metrics of every cell. Epsilon is for one run and
does not cover the search.
"""

from collections.abc import Mapping, Sequence
import csv
import dataclasses
import io
import itertools
import math
import os
import pathlib
import re
from typing import Any, Optional
import urllib.parse

from pda_fed.common import settings
from pda_fed.compare import metrics as metrics_lib
from pda_fed.runs import outputs
from pda_fed.runs import spec as spec_lib

# The values of each setting, by its name.
Grid = Mapping[str, Sequence[Any]]

# Validation metrics. Other columns are training metrics, which epsilon does not
# cover, or test metrics: neither may be used to choose settings.
_OF_VALIDATION = re.compile('loss|perplexity|accuracy.*')
_OF_TEST = 'test_'
_NO_VALIDATION = ' The runs have no validation data.'

NOT_COVERED = (
  'The search used the validation data once per trial. Epsilon is for one run'
  ' and does not cover the search.'
)


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


@dataclasses.dataclass(frozen=True)
class Found:
  """The state of a cell's run.

  Attributes:
    cell: The cell.
    metrics: The last row of metrics.csv; None before the first evaluation.
    is_finished: Whether the run is finished.
    data_hash: The hash of a finished run's data.
  """

  cell: Cell
  metrics: Optional[dict[str, Optional[float]]]
  is_finished: bool
  data_hash: Optional[str] = None


def look(cell: Cell, path: os.PathLike | str) -> Found:
  """Reads the run of a cell, finished or not.

  Args:
    cell: The cell.
    path: The folder of its run.

  Raises:
    OutputError: If a file is damaged.
  """
  folder = outputs.RunFolder(pathlib.Path(path))
  if folder.read_result() is not None:
    _, rows, _ = folder.read_finished()
    data_hash = folder.read_config().data_hash
    return Found(cell, rows[-1], True, data_hash)
  rows = folder.read_metrics()
  return Found(cell, rows[-1] if rows else None, False)


def rank(found: Sequence[Found], metric: str) -> list[Found]:
  """Returns the finished cells, the best first.

  Args:
    found: Some cells.
    metric: The name of a validation metric.

  Raises:
    ValueError: If a finished cell does not have this validation metric. The
      message lists the metrics that it has.
  """
  finished = [f for f in found if f.is_finished]
  for f in finished:
    known = _metrics_of(f)
    if metric not in known:
      without = '' if {'loss', 'accuracy'} & set(known) else _NO_VALIDATION
      raise ValueError(
        f'select_by must be a validation metric: {", ".join(known)}.'
        f' Found {metric!r}.{without}'
      )
  sign = -1 if metrics_lib.larger_is_better(metric) else 1
  # Runs that diverged come last.
  return sorted(
    finished,
    key=lambda f: (
      not math.isfinite(f.metrics[metric]),
      sign * f.metrics[metric],
    ),
  )


def ends(found: Sequence[Found], grid: Grid, metric: str) -> dict[str, Any]:
  """Returns the axes on whose ends the best cell lies.

  Better values may lie beyond these ends.

  Args:
    found: All cells.
    grid: The grid.
    metric: The name of a validation metric.

  Returns:
    The best cell's value by flag, only for axes of positive numbers. Empty if
    all cells diverged.
  """
  best = rank(found, metric)[0]
  if not math.isfinite(best.metrics[metric]):
    return {}
  return {
    flag: value
    for flag, value in best.cell.values
    if positive_numbers(grid, flag)
    and value in (min(grid[flag]), max(grid[flag]))
  }


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


def _metrics_of(found: Found) -> list[str]:
  return [
    name
    for name, value in found.metrics.items()
    if value is not None and _OF_VALIDATION.fullmatch(name)
  ]


def title_of(found: Sequence[Found], metric: str) -> str:
  """Returns the title of a validation metric for a column or an axis.

  Args:
    found: Some cells. The finished ones determine which metrics there are.
    metric: The metric's name.
  """
  known = {n for f in found if f.is_finished for n in _metrics_of(f)}
  return f'validation {metrics_lib.title_of(metric, known)}'


def as_csv(found: Sequence[Found]) -> str:
  """Returns a row for each cell, with its last validation metrics."""
  flags = [flag for flag, _ in found[0].cell.values]
  names = {
    n: None
    for f in found
    for n in f.metrics or ()
    if not n.startswith(_OF_TEST)
  }
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow([*flags, 'finished', *names])
  for f in found:
    values = [(f.metrics or {}).get(name) for name in names]
    writer.writerow(
      [
        *(format_value(value) for _, value in f.cell.values),
        int(f.is_finished),
        *('' if v is None else f'{v:.9g}' for v in values),
      ]
    )
  return text.getvalue()
