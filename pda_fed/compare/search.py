"""Grid search: chooses settings of a method by validation data alone."""

from collections.abc import Mapping, Sequence
import math
import pathlib
from typing import Any

from pda_fed import errors
from pda_fed.common import files
from pda_fed.common import typed
from pda_fed.compare import grids as grids_lib
from pda_fed.compare import jobs
from pda_fed.compare import ranking
from pda_fed.compare import running
from pda_fed.runs import outputs
from pda_fed.runs import spec as spec_lib

# Maximum number of cells added by `extend`, in case it does not converge.
_MOST_CELLS = 50
# Exit code of a program that refuses its settings.
_REFUSED = 2
# What a search sets in each of its runs. The choice must not depend on the test
# data.
_SET_HERE: Mapping[str, Any] = {
  'seed': 0,
  'final_test': False,
  'test_curve': False,
}
_WARM_START = 'warm_start_dir'


def refuse_others(
  path: pathlib.Path, content: Mapping[str, Any], results: str
) -> None:
  """Records a folder's settings; raises if it has results of other ones.

  Args:
    path: File of the settings, in the folder.
    content: The settings, as JSON values.
    results: Glob pattern of results. If no file matches, the settings are
      overwritten.

  Raises:
    OutputError: If the settings differ. The message lists how.
  """
  if path.exists() and any(path.parent.glob(results)):
    lines = typed.differences(files.read_json(path), content)
    if lines:
      raise errors.OutputError(
        f'{path.parent} holds results of other settings: {"; ".join(lines)}.'
        ' Give the same settings, or another --output_dir.'
      )
    return
  path.parent.mkdir(parents=True, exist_ok=True)
  files.write_json(path, content)


class GridSearch:
  """A grid of runs, extended around the best; none sees the test data.

  Attributes:
    metric: Validation metric that chooses the best cell.
  """

  def __init__(
    self,
    spec: spec_lib.RunSpec,
    folder: pathlib.Path,
    grid: grids_lib.Grid,
    metric: str,
    runner: running.Runner,
    *,
    extend: Sequence[str] = (),
    warm_start_dir: pathlib.Path,
    label: str = '',
  ):
    """Initializes the search.

    Args:
      spec: The settings of every cell, but for those of the grid.
      folder: Folder of the cells.
      grid: The initial grid.
      metric: Validation metric that chooses the best cell.
      runner: Makes the runs.
      extend: Settings whose axes grow around the best value.
      warm_start_dir: Folder of pre-trained models.
      label: Prefix of the names of the runs.

    Raises:
      OutputError: If the folder has cells with other settings.
    """
    self.metric = metric
    self._spec = spec.with_values(_SET_HERE)
    self._folder = folder
    self._start = grid
    self._runner = runner
    self._extend = extend
    self._warm_start_dir = warm_start_dir
    self._label = label
    self._cells = grids_lib.cells(grid)
    self._refused: list[grids_lib.Cell] = []
    self._num_diverged = 0
    # Finished cells are not run again, so check that their settings match.
    refuse_others(
      folder / 'search.json', self._spec.as_json(), 'cells/*/config.json'
    )
    self._leave_out_diverged()

  def _leave_out_diverged(self) -> None:
    """Drops cells whose runs diverged in an earlier process."""
    for cell in list(self._cells):
      if outputs.RunFolder(self._path(cell)).has_diverged():
        self._leave_out(cell, has_diverged=True)
    self._check_not_empty()

  def _leave_out(self, cell: grids_lib.Cell, *, has_diverged: bool) -> None:
    self._num_diverged += has_diverged
    self._cells.remove(cell)
    self._refused.append(cell)

  def _check_not_empty(self) -> None:
    if not self._cells:
      raise ValueError(
        f'All runs of {self._folder} diverged. Give smaller learning rates.'
      )

  def _path(self, cell: grids_lib.Cell) -> pathlib.Path:
    return self._folder / 'cells' / cell.name

  @property
  def grid(self) -> grids_lib.Grid:
    """All values of each setting. Not every combination has been tried."""
    return grids_lib.grid_of(self._cells, self._start)

  def look(self) -> list[ranking.Found]:
    """Returns the results so far of each cell."""
    found = [ranking.look(cell, self._path(cell)) for cell in self._cells]
    # Settings name the data folder, but its content may have changed.
    if len({f.data_hash for f in found if f.is_finished}) > 1:
      raise errors.OutputError(
        f'Runs of {self._folder} must use the same data. Found different'
        ' values of data_hash in their config.json. Give another --output_dir.'
      )
    return found

  @property
  def num_trials(self) -> int:
    """Number of settings that were tried, including those that diverged."""
    return len(self._cells) + self._num_diverged

  def first(self) -> jobs.Job:
    """Returns the first run, finished or not."""
    return self._job(self._cells[0])

  def unfinished(self) -> list[jobs.Job]:
    """Returns the runs that are not finished."""
    return [self._job(f.cell) for f in self.look() if not f.is_finished]

  def _job(self, cell: grids_lib.Cell) -> jobs.Job:
    return self._runner.job(
      self._label + cell.name,
      self._spec.with_values(dict(cell.values)),
      self._path(cell),
      f'--{_WARM_START}={self._warm_start_dir}',
    )

  def _may_grow(self) -> bool:
    most = len(grids_lib.cells(self._start)) + _MOST_CELLS
    return len(self._cells) < most and not self.unfinished()

  def grow(self) -> None:
    """Adds cells next to the best, once all are finished."""
    growing = [name for name in self._start if name in self._extend]
    while growing and self._may_grow():
      best = ranking.rank(self.look(), self.metric)[0]
      if not math.isfinite(best.metrics[self.metric]):
        return  # No cell has a finite metric.
      beside = grids_lib.neighbours(best.cell, self.grid, growing)
      new = [c for c in beside if c not in (*self._cells, *self._refused)]
      if not new:
        return
      self._cells += new
      self._leave_out_diverged()

  def drop(self, failures: Sequence[jobs.Failure]) -> None:
    """Drops cells that diverged or, outside the initial grid, were refused.

    Other failures may succeed when run again, so the search keeps these cells.
    """
    codes = {f.job.folder: f.exit_code for f in failures}
    start = grids_lib.cells(self._start)
    for cell in list(self._cells):
      code = codes.get(self._path(cell))
      is_refused = code == _REFUSED and cell not in start
      has_diverged = code == errors.DivergenceError.exit_code
      if is_refused or has_diverged:
        self._leave_out(cell, has_diverged=has_diverged)
    self._check_not_empty()

  def check_metric(self) -> None:
    """Raises ValueError if finished cells lack the metric."""
    ranking.rank(self.look(), self.metric)

  def warnings(self) -> list[str]:
    """Returns warnings if the best value is at an end of its axis."""
    at_ends = ranking.ends(self.look(), self.grid, self.metric)
    return [
      f'The best value, --{name}={grids_lib.format_value(value)}, is at an end'
      f' of its axis, {self._why(name)}.'
      for name, value in at_ends.items()
      if len(self.grid[name]) > 1
    ]

  def _why(self, name: str) -> str:
    if name not in self._extend:
      return f'and --extend={name} would try values beyond it'
    best = ranking.rank(self.look(), self.metric)[0].cell
    beside = grids_lib.neighbours(best, self.grid, [name])
    if any(cell in self._refused for cell in beside):
      return 'and the program refuses values beyond it'
    if self.unfinished():
      return 'and not all runs are finished'
    return f'even with {_MOST_CELLS} more cells'


def check_extend(
  extend: Sequence[str], all_grids: Sequence[grids_lib.Grid]
) -> None:
  """Raises ValueError if an axis that should grow cannot.

  Args:
    extend: Settings whose axes grow.
    all_grids: The grids of all methods.
  """
  for name in extend:
    with_it = [grid for grid in all_grids if name in grid]
    if not with_it:
      known = dict.fromkeys(n for grid in all_grids for n in grid)
      raise ValueError(
        f'extend must be a setting of the grid: {", ".join(known)}. Found'
        f' {name!r}.'
      )
    for grid in with_it:
      if not grids_lib.positive_numbers(grid, name):
        raise ValueError(
          'extend must be a setting whose values are positive numbers. Found'
          f' {name!r}, with {grids_lib.format_all(grid[name])}.'
        )


def run(
  searches: Sequence[GridSearch],
  log_dir: pathlib.Path,
  runner: running.Runner,
) -> bool:
  """Makes the runs of grids until no grid grows.

  Args:
    searches: The grids.
    log_dir: Folder of the runs' logs.
    runner: Makes the runs.

  Returns:
    Whether all runs are finished.
  """
  seen = 0

  def changed(running_jobs, ended) -> None:
    nonlocal seen
    del running_jobs
    if len(ended) > seen:  # Fail after the first run, not the last.
      for search in searches:
        search.check_metric()
    seen = len(ended)

  active = list(searches)
  while True:
    for search in active:
      search.grow()
    unfinished = [job for search in active for job in search.unfinished()]
    if not unfinished:
      return not any(search.unfinished() for search in searches)
    seen = 0
    running.say(f'Search: {len(unfinished)} runs.')
    failures = runner.run(unfinished, log_dir, changed)
    for search in active:
      search.drop(failures)
    # Runs that failed would fail again.
    active = [search for search in active if not search.unfinished()]
