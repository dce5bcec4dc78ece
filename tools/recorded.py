"""Reads recorded results, and formats them as the pages show them."""

from collections.abc import Iterable, Sequence
import csv
import pathlib
import statistics
from typing import Any

from pda_fed.compare import verdicts

RESULTS = pathlib.Path(__file__).parents[1] / 'results'

Runs = Sequence[dict[str, str]]
BySeed = dict[str, float]


def runs(name: str, **wanted: str) -> Runs:
  """Returns the rows of a file of results that have the wanted values.

  Args:
    name: The file in the folder of results, without its ending.
    **wanted: Values by column.
  """
  with (RESULTS / f'{name}.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  return [r for r in rows if all(r[key] == v for key, v in wanted.items())]


def lowest(tries: Runs, column: str) -> dict[str, str]:
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


def by_seed(found: Runs, metric: str) -> BySeed:
  """Returns the values of a metric by seed, of runs of one method."""
  return {run['seed']: float(run[metric]) for run in found}


def mean_and_deviation(found: Runs, metric: str) -> tuple[float, float]:
  """Returns the mean of a metric, and the standard deviation; 0 of one run."""
  values = [float(run[metric]) for run in found]
  return (
    statistics.mean(values),
    statistics.stdev(values) if len(values) > 1 else 0.0,
  )


def mean(found: Runs, metric: str, digits: int, times: int = 1) -> str:
  """Returns a mean over runs, times a number, with so many digits."""
  return f'{times * mean_and_deviation(found, metric)[0]:.{digits}f}'


def spread(found: Runs, metric: str, digits: int, times: int = 1) -> str:
  """Returns `mean`, and the standard deviation if there are several runs."""
  shown = mean(found, metric, digits, times)
  if len(found) == 1:
    return shown
  deviation = times * mean_and_deviation(found, metric)[1]
  return f'{shown} ± {deviation:.{digits}f}'


def gain(warm: BySeed, other: BySeed, digits: int) -> str:
  """Returns how much lower values are than warm start's, and the interval.

  Args:
    warm: Warm start's values.
    other: The other method's values, for the same seeds.
    digits: Number of digits after the point.

  Raises:
    ValueError: If warm start lacks a seed.
  """
  if missing := set(other) - set(warm):
    raise ValueError(f'Warm start must have {sorted(missing)} as others do.')
  found = verdicts.difference(warm, other)
  middle, low, high = (
    f'{value:+.{digits}f}' for value in (found.mean, found.low, found.high)
  )
  return f'({middle}, {low} to {high})'
