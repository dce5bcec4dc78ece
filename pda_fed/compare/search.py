"""Grid search: chooses settings of a method by validation data alone."""

from collections.abc import Mapping, Sequence
import csv
import dataclasses
import io
import math
import os
import pathlib
import re
import sys
from typing import Any, Optional

from pda_fed import errors
from pda_fed.common import files
from pda_fed.common import typed
from pda_fed.compare import choices
from pda_fed.compare import grids as grids_lib
from pda_fed.compare import jobs as jobs_lib
from pda_fed.compare import names
from pda_fed.runs import outputs
from pda_fed.runs import spec as spec_lib

# What a search sets in each of its runs. The choice must not depend on the test
# data.
_SET_HERE: Mapping[str, Any] = {
  'seed': 0,
  'final_test': False,
  'test_curve': False,
}
# Validation metrics. Other columns are training metrics, which epsilon does not
# cover, or test metrics: neither may be used to choose settings.
_OF_VALIDATION = re.compile('loss|perplexity|accuracy.*')
_NO_VALIDATION = ' The runs have no validation data.'
NOT_COVERED = (
  'The search used the validation data once per trial. Epsilon is for one run'
  ' and does not cover the search.'
)


@dataclasses.dataclass(frozen=True)
class Found:
  """The state of a run of a search.

  Attributes:
    cell: Its values of the searched settings.
    metrics: The last row of metrics.csv; None before the first evaluation.
    is_finished: Whether the run is finished.
    data_hash: The hash of a finished run's data.
  """

  cell: Mapping[str, Any]
  metrics: Optional[Mapping[str, Optional[float]]]
  is_finished: bool
  data_hash: Optional[str] = None

  @property
  def of_validation(self) -> list[str]:
    """The names of its validation metrics."""
    return [
      name
      for name, value in (self.metrics or {}).items()
      if value is not None and _OF_VALIDATION.fullmatch(name)
    ]


def look(cell: Mapping[str, Any], path: os.PathLike | str) -> Found:
  """Reads the run of a cell, finished or not, from its folder."""
  folder = outputs.RunFolder(pathlib.Path(path))
  if folder.read_result() is not None:
    config, rows, _ = folder.read_finished()
    return Found(cell, rows[-1], True, config.data_hash)
  rows = folder.read_metrics()
  return Found(cell, rows[-1] if rows else None, False)


def rank(found: Sequence[Found], metric: str) -> list[Found]:
  """Returns the finished runs, the best first; those that diverged come last.

  Args:
    found: Some runs.
    metric: The name of a validation metric.

  Raises:
    OutputError: If finished runs have different data.
    ValueError: If a finished run does not have this validation metric. The
      message lists the metrics that it has.
  """
  finished = [f for f in found if f.is_finished]
  for f in finished:
    known = f.of_validation
    if metric not in known:
      without = '' if {'loss', 'accuracy'} & set(known) else _NO_VALIDATION
      raise ValueError(
        f'select_by must be a validation metric: {", ".join(known)}.'
        f' Found {metric!r}.{without}'
      )
  # Settings name the data folder, but its content may have changed.
  if len({f.data_hash for f in finished}) > 1:
    raise errors.OutputError(
      'Runs of a search must use the same data. Found different values of'
      ' data_hash in their config.json. Give another --output_dir.'
    )

  def key(f: Found) -> tuple[bool, float]:
    value = f.metrics[metric]
    return not math.isfinite(value), -names.sign(metric) * value

  return sorted(finished, key=key)


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns rows with the same columns as CSV; None is an empty cell."""
  text = io.StringIO()
  writer = csv.DictWriter(text, list(rows[0]), lineterminator='\n')
  writer.writeheader()
  for row in rows:
    writer.writerow(
      {n: f'{v:.9g}' if isinstance(v, float) else v for n, v in row.items()}
    )
  return text.getvalue()


def as_csv(found: Sequence[Found]) -> str:
  """Returns a row for each run, with its last validation metrics."""
  columns = dict.fromkeys(
    n for f in found for n in f.metrics or () if not n.startswith('test_')
  )
  return to_csv(
    [
      {
        **{n: grids_lib.format_value(v) for n, v in f.cell.items()},
        'finished': int(f.is_finished),
        **{name: (f.metrics or {}).get(name) for name in columns},
      }
      for f in found
    ]
  )


def _refuse_others(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  """Records a search's settings; raises if it has runs with other ones."""
  if path.exists() and any(path.parent.glob('cells/*/config.json')):
    lines = typed.differences(files.read_json(path), content)
    if lines:
      raise errors.OutputError(
        f'{path.parent} holds results of other settings: {"; ".join(lines)}.'
        ' Give the same settings, or another --output_dir.'
      )
  path.parent.mkdir(parents=True, exist_ok=True)
  files.write_json(path, content)


@dataclasses.dataclass(frozen=True)
class GridSearch:
  """A run for each cell of a grid; none sees the test data.

  The same folder takes a larger grid: finished runs are kept.

  Attributes:
    method: The method's name or module.
    spec: The settings of every cell, but for those of the grid.
    grid: The values of each searched setting.
    folder: Folder of the cells.
    metric: Validation metric that chooses the best cell.
    options: More flags of scripts.train.
  """

  method: str
  spec: spec_lib.RunSpec
  grid: grids_lib.Grid
  folder: pathlib.Path
  metric: str
  options: tuple[str, ...] = ()

  def jobs(self) -> list[jobs_lib.Job]:
    """Returns the runs, but for those that diverged.

    Raises:
      OutputError: If the folder has cells with other settings.
      ValueError: If all runs diverged.
    """
    spec = self.spec.with_values(_SET_HERE)
    _refuse_others(self.folder / 'search.json', spec.as_json())
    found = []
    for cell in grids_lib.cells(self.grid):
      name = grids_lib.cell_name(cell)
      job = jobs_lib.Job(
        f'{self.method},{name}',
        spec.with_values(cell),
        self.folder / 'cells' / name,
        self.options,
      )
      found += [] if job.run.has_diverged() else [job]
    if not found:
      raise ValueError(
        f'All runs of {self.folder} diverged. Give smaller learning rates.'
      )
    return found

  def check_metric(self, job: jobs_lib.Job) -> None:
    """Raises ValueError if a finished run lacks the metric."""
    rank([look({}, job.folder)], self.metric)

  def choose(self) -> choices.Choice:
    """Returns the settings of the best cell; writes search.csv.

    Raises:
      SystemExit: If not all runs are finished, or no cell has a finite metric.
    """
    folders = {job.folder for job in self.jobs()}
    cells = grids_lib.cells(self.grid)
    paths = [self.folder / 'cells' / grids_lib.cell_name(c) for c in cells]
    found = [
      look(cell, path)
      for cell, path in zip(cells, paths, strict=True)
      if path in folders
    ]
    files.write_atomically(self.folder / 'search.csv', as_csv(found).encode())
    if not all(f.is_finished for f in found):
      jobs_lib.say(
        'Methods will be compared once all runs of --tune are finished.'
      )
      sys.exit(1)
    best = rank(found, self.metric)[0]
    value = best.metrics[self.metric]
    if not math.isfinite(value):
      jobs_lib.say(
        f'{self.method}: no run of --tune has a finite {self.metric}.'
      )
      sys.exit(1)
    title = names.metric_title(self.metric, best.of_validation)
    jobs_lib.say(
      f'{self.method}: {" ".join(grids_lib.as_flags(best.cell))}, validation'
      f' {title} {names.format_value(self.metric, value)}, the best of'
      f' {len(cells)}.'
    )
    return choices.Choice(best.cell, len(cells), value)

  def warnings(self, chosen: Mapping[str, Any]) -> list[str]:
    """Returns warnings if a chosen value is at an end of its axis."""
    return [
      f'{self.method}: the best value,'
      f' {grids_lib.as_flags({name: value})[0]}, is at an end of its axis.'
      ' --tune with values beyond it keeps the runs that are finished.'
      for name, value in chosen.items()
      if grids_lib.is_at_end(value, self.grid[name])
    ]
