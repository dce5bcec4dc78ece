"""Grids of runs of a training binary, which may grow: for sweep and compare."""

from collections.abc import Sequence
import math
import pathlib

from absl import flags
from pda_fed.experiments import jobs
from pda_fed.experiments import sweeping
from scripts import job_flags

_EXTEND = flags.DEFINE_multi_string(
  'extend',
  [],
  'A flag of the grid, of positive numbers: the values beside the best are'
  ' tried too, at the ends the next of 1, 2 and 5 times powers of ten, until'
  ' none of them is better. May be repeated.',
)
# Cells that a grid may grow by: one that never stops is mistaken.
_MOST_CELLS = 50


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
    """
    self.metric = metric
    self._start = grid
    self._cells = sweeping.cells(grid)
    self._arguments = arguments
    self._folder = folder
    self._warm_start_dir = warm_start_dir
    self._label = label

  def _path(self, cell: sweeping.Cell) -> pathlib.Path:
    return self._folder / 'cells' / cell.name

  @property
  def grid(self) -> sweeping.Grid:
    """All values of each flag; not every cell of them has been tried."""
    return sweeping.grid_of(self._cells, self._start)

  def look(self) -> list[sweeping.Found]:
    """Returns what is known of each cell."""
    return [sweeping.look(cell, self._path(cell)) for cell in self._cells]

  def unfinished(self) -> list[jobs.Job]:
    """Returns the cells that are not finished."""
    return [self._job(f.cell) for f in self.look() if not f.is_finished]

  def _job(self, cell: sweeping.Cell) -> jobs.Job:
    return jobs.Job(
      name=self._label + cell.name,
      module=job_flags.module(),
      arguments=(
        *self._arguments,
        *cell.arguments,
        '--nofinal_test',
        f'--output_dir={self._path(cell)}',
        f'--warm_start_dir={self._warm_start_dir}',
      ),
      folder=self._path(cell),
    )

  def grow(self) -> None:
    """Adds what --extend does, as long as all cells are finished."""
    flags_here = [flag for flag in self._start if flag in _EXTEND.value]
    most = len(sweeping.cells(self._start)) + _MOST_CELLS
    while len(self._cells) < most and not self.unfinished():
      best = sweeping.rank(self.look(), self.metric)[0]
      if math.isnan(best.metrics[self.metric]):
        return  # Nothing has worked: no side is the better one.
      beside = sweeping.neighbours(best.cell, self.grid, flags_here)
      new = [cell for cell in beside if cell not in self._cells]
      if not new:
        return
      self._cells += new

  def warnings(self) -> list[str]:
    """Says where the best lies at an end of the grid."""
    return [
      f'The best has {flag}={value}, an end of its axis, '
      + (
        f'even with {_MOST_CELLS} cells more.'
        if flag in _EXTEND.value
        else f'and --extend={flag} tries what is beyond.'
      )
      for flag, value in sweeping.ends(
        self.look(), self.grid, self.metric
      ).items()
      if len(self.grid[flag]) > 1
    ]


def check_extend(grids: Sequence[sweeping.Grid]) -> None:
  """Raises if --extend names no axis, or one that cannot grow."""
  for flag in _EXTEND.value:
    with_it = [grid for grid in grids if flag in grid]
    if not with_it or not all(
      sweeping.positive_numbers(grid, flag) for grid in with_it
    ):
      known = dict.fromkeys(name for grid in grids for name in grid)
      raise ValueError(
        'extend must be a flag of the grid whose values are above 0. Found'
        f' {flag!r}; the grid has {", ".join(known)}.'
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
  while True:
    for search in searches:
      search.grow()
    unfinished = [job for search in searches for job in search.unfinished()]
    if not unfinished:
      return True
    job_flags.run(unfinished, log_dir, on_change)
    if any(search.unfinished() for search in searches):
      return False  # They failed, and would again.
