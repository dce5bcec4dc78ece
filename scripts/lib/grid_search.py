"""Grids of runs of a training binary, which may grow: for sweep and compare."""

from collections.abc import Sequence
import math
import pathlib

from absl import flags
from pda_fed import errors
from pda_fed import experiments
from pda_fed.analysis import jobs
from pda_fed.analysis import sweeping
from scripts.lib import cli
from scripts.lib import job_flags

_EXTEND = flags.DEFINE_multi_string(
  'extend',
  [],
  'A flag of the grid, of positive numbers: the values beside the best are'
  ' tried too, at the ends the next of 1, 2 and 5 times powers of ten, until'
  ' none of them is better. May be repeated.',
)
# What a search sets in each run, by flag.
RESERVED = {
  'method': 'this program',
  'seed': 'this program',
  'output_dir': 'this program',
  'warm_start_dir': 'this program',
  'final_test': 'this program',
  'nofinal_test': 'this program',
}
# Cells that a grid may grow by: one that never stops is mistaken.
_MOST_CELLS = 50

# What a program ends with whose flags are refused; see `cli.run`.
_REFUSED = 2


class GridSearch:
  """The cells of a grid, and more beside the best; none is tested.

  Attributes:
    metric: Of validation.
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
      arguments: Of the training binary, for every cell.
      folder: Where the cells are.
      grid: Where it starts.
      metric: Of validation, by which the best is picked.
      warm_start_dir: Where pre-trained models are kept.
      label: Before the names of its runs.

    Raises:
      OutputError: If the folder has cells of other arguments.
    """
    self.metric = metric
    self._start = grid
    self._cells = sweeping.cells(grid)
    self._refused: list[sweeping.Cell] = []
    self._num_diverged = 0
    self._arguments = tuple(arguments)
    # Whoever chooses must not see the test.
    given = map(job_flags.name_of, cli.expanded(arguments))
    if 'test_curve' in given:
      self._arguments += ('--notest_curve',)
    self._folder = folder
    self._warm_start_dir = warm_start_dir
    self._label = label
    # Finished cells are not looked at again: their flags must be these.
    job_flags.refuse_others(
      folder / 'sweep.json',
      {'binary': job_flags.module(), 'flags': cli.expanded(arguments)},
      'cells/*/config.json',
    )
    self._leave_out_diverged()

  def _leave_out_diverged(self) -> None:
    """Leaves out cells whose runs diverged before, in another process."""
    for cell in list(self._cells):
      if experiments.RunFolder(self._path(cell)).has_diverged():
        self._leave_out(cell, has_diverged=True)
    self._check_not_empty()

  def _leave_out(self, cell: sweeping.Cell, *, has_diverged: bool) -> None:
    self._num_diverged += has_diverged
    self._cells.remove(cell)
    self._refused.append(cell)

  def _check_not_empty(self) -> None:
    if not self._cells:
      raise ValueError(
        f'All runs of {self._folder} diverged. Give smaller rates.'
      )

  def _path(self, cell: sweeping.Cell) -> pathlib.Path:
    return self._folder / 'cells' / cell.name

  @property
  def grid(self) -> sweeping.Grid:
    """All values of each flag; not every cell of them has been tried."""
    return sweeping.grid_of(self._cells, self._start)

  def look(self) -> list[sweeping.Found]:
    """Returns what is known of each cell."""
    found = [sweeping.look(cell, self._path(cell)) for cell in self._cells]
    # A folder is named in flags; what is in it may have changed.
    if len({f.data_hash for f in found if f.is_finished}) > 1:
      raise errors.OutputError(
        f'Runs of {self._folder} must be of the same data. Found several'
        ' data_hash in their config.json: give another --output_dir.'
      )
    return found

  @property
  def num_tries(self) -> int:
    """How many settings were tried, those that diverged among them."""
    return len(self._cells) + self._num_diverged

  def first(self) -> jobs.Job:
    """Returns the first run, whether it is finished or not."""
    return self._job(self._cells[0])

  def unfinished(self) -> list[jobs.Job]:
    """Returns the cells that are not finished."""
    return [self._job(f.cell) for f in self.look() if not f.is_finished]

  def _job(self, cell: sweeping.Cell) -> jobs.Job:
    return jobs.Job(
      name=self._label + cell.name,
      module=job_flags.module(),
      arguments=(
        # First: one that is given holds for the runs that are compared, too.
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
    """Adds what --extend does, as long as all cells are finished."""
    growing = [flag for flag in self._start if flag in _EXTEND.value]
    while growing and self._may_grow():
      best = sweeping.rank(self.look(), self.metric)[0]
      if not math.isfinite(best.metrics[self.metric]):
        return  # Nothing has worked: no side is the better one.
      beside = sweeping.neighbours(best.cell, self.grid, growing)
      new = [c for c in beside if c not in (*self._cells, *self._refused)]
      if not new:
        return
      self._cells += new
      self._leave_out_diverged()

  def drop(self, failures: Sequence[jobs.Failure]) -> None:
    """Leaves out cells that diverged or, beyond the grid, were refused.

    What else fails may succeed when it is run again: the search waits for it.
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
    """Raises a ValueError if finished cells have no such metric."""
    sweeping.rank(self.look(), self.metric)

  def warnings(self) -> list[str]:
    """Says where the best lies at an end of the grid."""
    at_ends = sweeping.ends(self.look(), self.grid, self.metric)
    return [
      f'The best has {flag}={value}, an end of its axis, {self._why(flag)}.'
      for flag, value in at_ends.items()
      if len(self.grid[flag]) > 1
    ]

  def _why(self, flag: str) -> str:
    if flag not in _EXTEND.value:
      return f'and --extend={flag} tries what is beyond'
    best = sweeping.rank(self.look(), self.metric)[0].cell
    beside = sweeping.neighbours(best, self.grid, [flag])
    if any(cell in self._refused for cell in beside):
      return 'and the program takes no value beyond'
    if self.unfinished():
      return 'and not all runs are finished'
    return f'even with {_MOST_CELLS} cells more'


def check_extend(grids: Sequence[sweeping.Grid]) -> None:
  """Raises if --extend names no axis, or one that cannot grow."""
  for flag in _EXTEND.value:
    with_it = [grid for grid in grids if flag in grid]
    if not with_it:
      known = dict.fromkeys(name for grid in grids for name in grid)
      raise ValueError(
        f'extend must be a flag of the grid, of {", ".join(known)}. Found'
        f' {flag!r}.'
      )
    for grid in with_it:
      if not sweeping.positive_numbers(grid, flag):
        raise ValueError(
          'extend must be a flag whose values are numbers above 0. Found'
          f' {flag!r}, with {", ".join(grid[flag])}.'
        )


def run(
  searches: Sequence[GridSearch], log_dir: pathlib.Path, on_change=None
) -> bool:
  """Makes the runs of grids until none grows.

  Args:
    searches: The grids.
    log_dir: Of the runs' output.
    on_change: As for `job_flags.run`.

  Returns:
    Whether all runs are finished.
  """
  seen = 0

  def changed(running, ended) -> None:
    nonlocal seen
    if len(ended) > seen:  # At the first run, not after hours of them.
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
    failures = job_flags.run(unfinished, log_dir, changed)
    for search in active:
      search.drop(failures)
    # What failed would fail again.
    active = [search for search in active if not search.unfinished()]
