r"""Searches a grid of flags of a training binary, on validation data.

    python -m scripts.sweep --output_dir=out/sweep \
        --grid=server_learning_rate=0.5,1,3 --grid=clip_norm=0.3,1 -- \
        --data_dir=data/stackexchange --method=warm --seed=0 \
        --flagfile=scripts/presets/stackexchange.flags

--preset=paper is the paper's grid. Flags after `--` go to every cell (run) of
the grid, and --select_by names the validation metric that chooses, by default
the loss. Finished cells are skipped and stopped ones resume. No cell is
evaluated on the test data, which are for the chosen settings. With
--extend=server_learning_rate the rates next to the best are tried too, 1, 2 and
5 times powers of ten, until none of them is better. With --print_runs a cluster
can train the cells. The program writes sweep.csv and heat_map.png. Epsilon does
not cover the search.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from collections.abc import Sequence
import pathlib
import shlex
import sys
import warnings

from absl import flags
from pda_fed.common import files
from pda_fed.compare import sweeping
from scripts.lib import dry_runs
from scripts.lib import grid_search
from scripts.lib import job_flags
from scripts.lib import select_flags

_GRID = flags.DEFINE_multi_string(
  'grid', [], 'FLAG=VALUE,VALUE,...: an axis of the grid.'
)
_PRESET = flags.DEFINE_enum(
  'preset',
  None,
  ['paper', 'paper_pda'],
  "Use the paper's grid for StackOverflow instead of --grid: server and client"
  ' learning rates and the clip norm; paper_pda also has i of alpha_t.',
)

_PAPER = [
  'server_learning_rate=0.5,1,3',
  'client_learning_rate=0.1,0.2,0.5',
  'clip_norm=0.3,1',
]
_PRESETS = {'paper': _PAPER, 'paper_pda': [*_PAPER, 'alpha_i=2,3,4,5,8']}


# Flags that a grid must not have. Unlike a search of `compare`, a sweep may
# vary the method and the seed.
_NOT_OF_GRIDS = {
  flag: setter
  for flag, setter in grid_search.RESERVED.items()
  if flag not in ('method', 'seed')
}
flags.adopt_module_key_flags(job_flags)
flags.adopt_module_key_flags(grid_search)
flags.adopt_module_key_flags(select_flags)


class _LiveTable:
  """Prints the best cells so far whenever a cell ends."""

  def __init__(self, search: grid_search.GridSearch):
    self._search = search
    self._num_ended = 0
    self._num_finished = 0

  def __call__(self, running, ended) -> None:
    del running
    if len(ended) == self._num_ended:
      return
    self._num_ended = len(ended)
    found = self._search.look()
    finished = sum(f.is_finished for f in found)
    if self._num_finished < finished < len(found):
      job_flags.say(
        f'best of {finished} of {len(found)} cells:\n'
        f'{sweeping.format_best(found, self._search.metric, 3)}\n'
      )
    self._num_finished = finished


def _write(
  search: grid_search.GridSearch,
  found: Sequence[sweeping.Found],
  folder: pathlib.Path,
) -> list[pathlib.Path]:
  """Writes the results, and returns the paths."""
  table = folder / 'sweep.csv'
  files.write_atomically(table, sweeping.as_csv(found).encode())
  picture = folder / 'heat_map.png'
  try:
    sweeping.draw(found, search.grid, search.metric, picture)
  except ImportError as e:
    warnings.warn(f'No heat map: {e}.', stacklevel=1)
    return [table]
  return [table, picture]


def main(arguments: list[str]) -> None:
  """Sweeps; `arguments` are the flags of the training binary."""
  if bool(_GRID.value) == (_PRESET.value is not None):
    raise ValueError('Give exactly one of --grid and --preset.')
  grid = sweeping.parse_grid(_GRID.value or _PRESETS[_PRESET.value])
  grid_search.check_extend([grid])
  reserved = dict.fromkeys(grid, '--grid')
  reserved['output_dir'] = '--output_dir before --'
  reserved['final_test'] = reserved['nofinal_test'] = 'this program'
  job_flags.refuse(arguments, reserved)
  job_flags.refuse([f'--{flag}' for flag in grid], _NOT_OF_GRIDS, 'in --grid')
  folder = job_flags.output_dir()
  search = grid_search.GridSearch(
    arguments,
    folder,
    grid,
    select_flags.metric(),
    warm_start_dir=folder / 'warm_start',
  )
  dry_runs.check([search.first()])
  search.grow()
  skipped = sum(f.is_finished for f in search.look())
  if skipped:
    job_flags.say(f'{skipped} of {len(search.look())} cells are finished.')
  is_done = grid_search.run([search], folder / 'logs', _LiveTable(search))
  job_flags.end_if_printing()
  found = search.look()
  if not any(f.is_finished for f in found):
    sys.exit(1)
  best = sweeping.rank(found, search.metric)[0]
  written = _write(search, found, folder)
  print(sweeping.format_best(found, search.metric, len(found)))
  print(f'\n{sweeping.NOT_COVERED}')
  for line in search.warnings():
    print(line)
  title = sweeping.title_of(found, search.metric)
  flags_of_best = shlex.join([*arguments, *best.cell.arguments])
  print(f'The best by {title}: {flags_of_best}')
  print(f'Wrote {" and ".join(map(str, written))}.')
  if not is_done:
    sys.exit(1)


if __name__ == '__main__':
  cli.run(main, takes_arguments=True)
