"""The runs of a grid's cells: their results, and which is the best.

A search uses the validation metrics of every cell. Epsilon is for one run and
does not cover the search.
"""

from collections.abc import Sequence
import csv
import dataclasses
import io
import math
import os
import pathlib
import re
from typing import Any, Optional

from pda_fed.compare import grids
from pda_fed.compare import metrics as metrics_lib
from pda_fed.runs import outputs

# Validation metrics. Other columns are training metrics, which epsilon does not
# cover, or test metrics: neither may be used to choose settings.
_OF_VALIDATION = re.compile('loss|perplexity|accuracy.*')
_OF_TEST = 'test_'
_NO_VALIDATION = ' The runs have no validation data.'
NOT_COVERED = (
  'The search used the validation data once per trial. Epsilon is for one run'
  ' and does not cover the search.'
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

  cell: grids.Cell
  metrics: Optional[dict[str, Optional[float]]]
  is_finished: bool
  data_hash: Optional[str] = None


def look(cell: grids.Cell, path: os.PathLike | str) -> Found:
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


def ends(
  found: Sequence[Found], grid: grids.Grid, metric: str
) -> dict[str, Any]:
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
    if grids.positive_numbers(grid, flag)
    and value in (min(grid[flag]), max(grid[flag]))
  }


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
        *(grids.format_value(value) for _, value in f.cell.values),
        int(f.is_finished),
        *('' if v is None else f'{v:.9g}' for v in values),
      ]
    )
  return text.getvalue()
