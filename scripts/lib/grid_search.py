"""Grid search over flags of a training binary, for sweep and compare."""

from collections.abc import Sequence
import math
import pathlib

from absl import flags
from pda_fed import errors
from pda_fed import runs as runs_lib
from pda_fed.compare import jobs
from pda_fed.compare import sweeping
from scripts.lib import cli
from scripts.lib import job_flags
from scripts.lib import trust_flags

_EXTEND = flags.DEFINE_multi_string(
  'extend',
  [],
  'Flag of the grid, with positive values. The search goes on with the values'
  ' next to the best one until none is better. Beyond the ends of the grid it'
  ' tries 1, 2 and 5 times powers of ten.',
)
# Flags that a search sets in each run, and what sets them.
RESERVED = {
  'method': 'this program',
  'seed': 'this program',
  'output_dir': 'this program',
  'warm_start_dir': 'this program',
  'final_test': 'this program',
  'nofinal_test': 'this program',
}
# Maximum number of cells added by --extend, in case it does not converge.
_MOST_CELLS = 50

# Exit code of a program that refuses its flags; see `cli.run`.
_REFUSED = 2


class GridSearch:
  """A grid of runs, extended around the best; none sees the test data.

  Attributes:
    metric: Validation metric that chooses the best cell.
  """

  def __init__(
    self,
    arguments: Sequence[str],
    folder: pathlib.Path,
    grid: sweeping.Grid,
    metric: str,
    *,
    warm_start_dir: pathlib.Path,
    label: str = '',
  ):
    """Initializes the search.

    Args:
      arguments: Flags of the training binary for every cell.
      folder: Folder of the cells.
      grid: The initial grid.
      metric: Validation metric that chooses the best cell.
      warm_start_dir: Folder of pre-trained models.
      label: Prefix of the names of the runs.

    Raises:
      OutputError: If the folder has cells with other arguments.
    """
    self.metric = metric
    self._start = grid
    self._cells = sweeping.cells(grid)
    self._refused: list[sweeping.Cell] = []
    self._num_diverged = 0
    self._arguments = tuple(arguments)
    # The choice must not depend on the test data.
    given = map(job_flags.name_of, cli.expanded(arguments))
    if 'test_curve' in given:
      self._arguments += ('--notest_curve',)
    self._folder = folder
    self._warm_start_dir = warm_start_dir
    self._label = label
    # Finished cells are not run again, so check that their flags match.
    job_flags.refuse_others(
      folder / 'sweep.json',
      {'binary': job_flags.module(), 'flags': cli.expanded(arguments)},
      'cells/*/config.json',
    )
    self._leave_out_diverged()

  def _leave_out_diverged(self) -> None:
    """Drops cells whose runs diverged in an earlier process."""
    for cell in list(self._cells):
      if runs_lib.RunFolder(self._path(cell)).has_diverged():
        self._leave_out(cell, has_diverged=True)
    self._check_not_empty()

  def _leave_out(self, cell: sweeping.Cell, *, has_diverged: bool) -> None:
    self._num_diverged += has_diverged
    self._cells.remove(cell)
    self._refused.append(cell)

  def _check_not_empty(self) -> None:
    if not self._cells:
      raise ValueError(
        f'All runs of {self._folder} diverged. Give smaller learning rates.'
      )

  def _path(self, cell: sweeping.Cell) -> pathlib.Path:
    return self._folder / 'cells' / cell.name

  @property
  def grid(self) -> sweeping.Grid:
    """All values of each flag. Not every combination has been tried."""
    return sweeping.grid_of(self._cells, self._start)

  def look(self) -> list[sweeping.Found]:
    """Returns the results so far of each cell."""
    found = [sweeping.look(cell, self._path(cell)) for cell in self._cells]
    # Flags name the data folder, but its content may have changed.
    if len({f.data_hash for f in found if f.is_finished}) > 1:
      raise errors.OutputError(
        f'Runs of {self._folder} must use the same data. Found different'
        ' values of data_hash in their config.json. Give another --output_dir.'
      )
    return found

  @property
  def num_tries(self) -> int:
    """Number of settings that were tried, including those that diverged."""
    return len(self._cells) + self._num_diverged

  def first(self) -> jobs.Job:
    """Returns the first run, finished or not."""
    return self._job(self._cells[0])

  def unfinished(self) -> list[jobs.Job]:
    """Returns the runs that are not finished."""
    return [self._job(f.cell) for f in self.look() if not f.is_finished]

  def _job(self, cell: sweeping.Cell) -> jobs.Job:
    return jobs.Job(
      name=self._label + cell.name,
      module=job_flags.module(),
      arguments=trust_flags.for_run(
        # First, so that the user's --warm_start_dir overrides it, which also
        # holds for the runs that are compared.
        f'--warm_start_dir={self._warm_start_dir}',
        *self._arguments,
        *cell.arguments,
        '--nofinal_test',
        f'--output_dir={self._path(cell)}',
      ),
      folder=self._path(cell),
    )

  def _may_grow(self) -> bool:
    most = len(sweeping.cells(self._start)) + _MOST_CELLS
    return len(self._cells) < most and not self.unfinished()

  def grow(self) -> None:
    """Adds cells next to the best (--extend), once all are finished."""
    growing = [flag for flag in self._start if flag in _EXTEND.value]
    while growing and self._may_grow():
      best = sweeping.rank(self.look(), self.metric)[0]
      if not math.isfinite(best.metrics[self.metric]):
        return  # No cell has a finite metric.
      beside = sweeping.neighbours(best.cell, self.grid, growing)
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
    start = sweeping.cells(self._start)
    for cell in list(self._cells):
      code = codes.get(self._path(cell))
      is_refused = code == _REFUSED and cell not in start
      has_diverged = code == errors.DivergenceError.exit_code
      if is_refused or has_diverged:
        self._leave_out(cell, has_diverged=has_diverged)
    self._check_not_empty()

  def check_metric(self) -> None:
    """Raises ValueError if finished cells lack the metric."""
    sweeping.rank(self.look(), self.metric)

  def warnings(self) -> list[str]:
    """Returns warnings if the best value is at an end of its axis."""
    at_ends = sweeping.ends(self.look(), self.grid, self.metric)
    return [
      f'The best value, {flag}={value}, is at an end of its axis,'
      f' {self._why(flag)}.'
      for flag, value in at_ends.items()
      if len(self.grid[flag]) > 1
    ]

  def _why(self, flag: str) -> str:
    if flag not in _EXTEND.value:
      return f'and --extend={flag} would try values beyond it'
    best = sweeping.rank(self.look(), self.metric)[0].cell
    beside = sweeping.neighbours(best, self.grid, [flag])
    if any(cell in self._refused for cell in beside):
      return 'and the program refuses values beyond it'
    if self.unfinished():
      return 'and not all runs are finished'
    return f'even with {_MOST_CELLS} more cells'


def check_extend(grids: Sequence[sweeping.Grid]) -> None:
  """Raises ValueError if --extend names a flag that cannot be extended."""
  for flag in _EXTEND.value:
    with_it = [grid for grid in grids if flag in grid]
    if not with_it:
      known = dict.fromkeys(name for grid in grids for name in grid)
      raise ValueError(
        f'extend must be a flag of the grid: {", ".join(known)}. Found'
        f' {flag!r}.'
      )
    for grid in with_it:
      if not sweeping.positive_numbers(grid, flag):
        raise ValueError(
          'extend must be a flag whose values are positive numbers. Found'
          f' {flag!r}, with {", ".join(grid[flag])}.'
        )


def run(
  searches: Sequence[GridSearch], log_dir: pathlib.Path, on_change=None
) -> bool:
  """Makes the runs of grids until no grid grows.

  Args:
    searches: The grids.
    log_dir: Folder of the runs' logs.
    on_change: See `job_flags.run`.

  Returns:
    Whether all runs are finished.
  """
  seen = 0

  def changed(running, ended) -> None:
    nonlocal seen
    if len(ended) > seen:  # Fail after the first run, not the last.
      for search in searches:
        search.check_metric()
    seen = len(ended)
    if on_change is not None:
      on_change(running, ended)

  active = list(searches)
  while True:
    for search in active:
      search.grow()
    unfinished = [job for search in active for job in search.unfinished()]
    if not unfinished:
      return not any(search.unfinished() for search in searches)
    seen = 0
    job_flags.say(f'Search: {len(unfinished)} runs.')
    failures = job_flags.run(unfinished, log_dir, changed)
    for search in active:
      search.drop(failures)
    # Runs that failed would fail again.
    active = [search for search in active if not search.unfinished()]
