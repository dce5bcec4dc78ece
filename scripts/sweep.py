"""Searches a grid of flags of a training binary, by validation alone.

    python -m scripts.sweep --output_dir=out/sweep \
        --grid=server_learning_rate=0.5,1,3 --grid=clip_norm=0.3,1 -- \
        --data_dir=data/synthetic --flagfile=scripts/presets/laptop.flags \
        --method=warm --seed=0

--preset=paper is the paper's grid. What stands after `--` goes to every cell.
Cells that are finished are skipped, those that were stopped are gone on with,
and no cell is tested: the test is for the settings that were chosen. With
--extend=server_learning_rate the axis grows, by 1, 2, 5, 10 and so on, until
the best is not at its end. It writes sweep.csv and heat_map.png. Epsilon does
not cover the search.
"""

from scripts import cli  # First: it silences TensorFlow.

# isort: split
import pathlib
import shlex
import sys
import warnings

from absl import flags
from pda_fed.experiments import files
from pda_fed.experiments import jobs
from pda_fed.experiments import sweeping
from scripts import job_flags

_GRID = flags.DEFINE_multi_string(
  'grid', [], 'FLAG=VALUE,VALUE,...: an axis of the grid. May be repeated.'
)
_PRESET = flags.DEFINE_enum(
  'preset',
  None,
  ['paper', 'paper_pda'],
  "Instead of --grid, the paper's grid for StackOverflow: server rate, client"
  ' rate and clip; for paper_pda i of alpha_t too.',
)
_EXTEND = flags.DEFINE_multi_string(
  'extend',
  [],
  'A flag of the grid, of positive numbers: its axis grows by the next of 1, 2'
  ' and 5 times powers of ten until the best is not at its end. May be'
  ' repeated.',
)
_METRIC = flags.DEFINE_string(
  'metric', 'accuracy', 'Of validation, by which the best is picked.'
)

# By which an axis may grow: from 1 to 10,000 or 0.0001.
_MOST_STEPS = 12

_PAPER = [
  'server_learning_rate=0.5,1,3',
  'client_learning_rate=0.1,0.2,0.5',
  'clip_norm=0.3,1',
]
_PRESETS = {'paper': _PAPER, 'paper_pda': [*_PAPER, 'alpha_i=2,3,4,5,8']}


class _LiveTable:
  """The best cells so far, when a cell has ended."""

  def __init__(self, look, metric: str, total: int):
    self._look = look
    self._metric = metric
    self._total = total
    self._ended = 0

  def __call__(self, running, ended) -> None:
    del running
    if len(ended) == self._ended:
      return
    self._ended = len(ended)
    found = self._look()
    if any(f.is_finished for f in found) and self._ended < self._total:
      done = sum(f.is_finished for f in found)
      job_flags.say(
        f'best of {done} of {len(found)} cells:\n'
        f'{sweeping.format_best(found, self._metric, 3)}\n'
      )


def _check_extend(grid: sweeping.Grid) -> None:
  for flag in _EXTEND.value:
    if flag not in grid or not sweeping.positive_numbers(grid, flag):
      raise ValueError(
        'extend must be a flag of the grid whose values are above 0. Found'
        f' {flag!r}; the grid has {", ".join(grid)}.'
      )


class _Search:
  """Makes the runs of a grid, which may grow."""

  def __init__(self, module: str, arguments: list[str], folder: pathlib.Path):
    self._module = module
    self._arguments = arguments
    self._folder = folder

  def _path(self, cell: sweeping.Cell) -> pathlib.Path:
    return self._folder / 'cells' / cell.name

  def look(self, grid: sweeping.Grid) -> list[sweeping.Found]:
    """Returns what is known of each cell."""
    return [
      sweeping.look(cell, self._path(cell)) for cell in sweeping.cells(grid)
    ]

  def run(self, grid: sweeping.Grid) -> bool:
    """Makes the runs that are not finished; returns whether all are now."""
    found = self.look(grid)
    unfinished = [f.cell for f in found if not f.is_finished]
    skipped = len(found) - len(unfinished)
    if skipped:
      job_flags.say(f'{skipped} of {len(found)} cells are finished.')
    job_flags.run(
      [self._job(cell) for cell in unfinished],
      self._folder / 'logs',
      _LiveTable(lambda: self.look(grid), _METRIC.value, len(unfinished)),
    )
    return all(f.is_finished for f in self.look(grid))

  def _job(self, cell: sweeping.Cell) -> jobs.Job:
    return jobs.Job(
      name=cell.name,
      module=self._module,
      arguments=(
        *self._arguments,
        *cell.arguments,
        '--nofinal_test',
        f'--output_dir={self._path(cell)}',
        f'--warm_start_dir={self._folder / "warm_start"}',
      ),
      folder=self._path(cell),
    )

  def grow(self, grid: sweeping.Grid) -> sweeping.Grid:
    """Returns the grid with what --extend adds, up to cells that are to run."""
    start = {flag: len(values) for flag, values in grid.items()}
    while True:
      found = self.look(grid)
      if not all(f.is_finished for f in found):
        return grid
      at_ends = sweeping.ends(found, grid, _METRIC.value)
      growing = {
        flag: value
        for flag, value in at_ends.items()
        if flag in _EXTEND.value and len(grid[flag]) < start[flag] + _MOST_STEPS
      }
      if not growing:
        return grid
      grid = sweeping.extend(grid, growing)


def main(arguments: list[str]) -> None:
  """Sweeps; `arguments` are those of the training binary."""
  if bool(_GRID.value) == (_PRESET.value is not None):
    raise ValueError('--grid or --preset must be given, and not both.')
  start = sweeping.parse_grid(_GRID.value or _PRESETS[_PRESET.value])
  _check_extend(start)
  reserved = dict.fromkeys(start, '--grid')
  reserved['output_dir'] = '--output_dir before --'
  reserved['final_test'] = reserved['nofinal_test'] = 'this program'
  job_flags.refuse(arguments, reserved)
  folder = job_flags.output_dir()
  module = job_flags.module()
  # Finished cells are not looked at again, so that their flags must be these.
  job_flags.refuse_others(
    folder / 'sweep.json',
    {'binary': module, 'flags': cli.expanded(arguments)},
  )
  search = _Search(module, arguments, folder)
  grid = search.grow(start)
  while search.run(grid):
    # From the start: what is finished leads to the same cells.
    grown = search.grow(start)
    if grown == grid:
      break
    grid = grown
  found = search.look(grid)
  if not any(f.is_finished for f in found):
    sys.exit(1)
  best = sweeping.rank(found, _METRIC.value)[0]
  files.write_atomically(folder / 'sweep.csv', sweeping.as_csv(found).encode())
  written = [folder / 'sweep.csv']
  try:
    sweeping.draw(found, grid, _METRIC.value, folder / 'heat_map.png')
    written.append(folder / 'heat_map.png')
  except ImportError as e:
    warnings.warn(f'No heat map: {e}.', stacklevel=1)
  print(sweeping.format_best(found, _METRIC.value, len(found)))
  print(f'\n{sweeping.NOT_COVERED}')
  for flag, value in sweeping.ends(found, grid, _METRIC.value).items():
    if len(grid[flag]) > 1:
      beyond = (
        f'even with {_MOST_STEPS} values more'
        if flag in _EXTEND.value
        else f'and --extend={flag} tries what is beyond'
      )
      print(f'The best has {flag}={value}, an end of its axis, {beyond}.')
  print(f'The best: {shlex.join([*arguments, *best.cell.arguments])}')
  print(f'Wrote {" and ".join(map(str, written))}.')
  if not all(f.is_finished for f in found):
    sys.exit(1)


if __name__ == '__main__':
  cli.run(main, takes_arguments=True)
