"""Reads recorded results, and formats them as the pages show them."""

from collections.abc import Iterable, Mapping, Sequence
import csv
import pathlib
import statistics
from typing import Any, Optional

from pda_fed.compare import verdicts

RESULTS = pathlib.Path(__file__).parents[2] / 'results'

Run = Mapping[str, str]
# Cells of rows, by the cells that a row begins with. None keeps what the page
# has.
Cells = Mapping[tuple[str, ...], Sequence[Optional[str]]]


def runs(name: str, **wanted: str) -> list[dict[str, str]]:
  """Returns the rows of a file of results that have the wanted values.

  Args:
    name: The file in the folder of results, without its ending.
    **wanted: Values by column.
  """
  with (RESULTS / f'{name}.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  return [r for r in rows if all(r[key] == v for key, v in wanted.items())]


def lowest(tries: Sequence[dict[str, str]], column: str) -> dict[str, str]:
  """Returns the try with the lowest value in a column."""
  return min(tries, key=lambda row: float(row[column]))


def only(values: Iterable[Any], name: str) -> Any:
  """Returns the value that all runs of a row have.

  Raises:
    ValueError: If they differ, or there is none.
  """
  found = set(values)
  if len(found) != 1:
    raise ValueError(
      f'{name} must be the same in all runs of a row. Found {sorted(found)}.'
    )
  return found.pop()


def by_seed(found: Sequence[Run], metric: str) -> dict[str, float]:
  """Returns the values of a metric by seed, of runs of one method."""
  return {run['seed']: float(run[metric]) for run in found}


def mean(found: Sequence[Run], metric: str, digits: int, times: int = 1) -> str:
  """Returns a mean over runs, times a number, with so many digits."""
  value = statistics.mean(times * float(run[metric]) for run in found)
  return f'{value:.{digits}f}'


def spread(
  found: Sequence[Run], metric: str, digits: int, times: int = 1
) -> str:
  """Returns `mean`, and the standard deviation if there are several runs."""
  shown = mean(found, metric, digits, times)
  if len(found) == 1:
    return shown
  deviation = statistics.stdev(times * float(run[metric]) for run in found)
  return f'{shown} ± {deviation:.{digits}f}'


def gain(
  warm: verdicts.BySeed,
  other: verdicts.BySeed,
  digits: int,
  sign: str = '',
) -> tuple[str, str]:
  """Returns how much lower values are than warm start's, and the interval.

  Args:
    warm: Warm start's values by seed.
    other: The other method's values by seed.
    digits: Number of digits after the point.
    sign: '+' to show the sign of positive numbers too.
  """
  found = verdicts.difference(warm, other)
  middle, low, high = (
    f'{value:{sign}.{digits}f}' for value in (found.mean, found.low, found.high)
  )
  return middle, f'{low} to {high}'
