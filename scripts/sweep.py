"""Searches a grid of flags of a training binary, by validation alone.

    python -m scripts.sweep --output_dir=out/sweep \
        --grid=server_learning_rate=0.5,1,3 --grid=clip_norm=0.3,1 -- \
        --data_dir=data/synthetic --flagfile=scripts/presets/laptop.flags \
        --method=warm --seed=0

--preset=paper is the paper's grid. What stands after `--` goes to every cell.
Cells that are finished are skipped, those that were stopped are gone on with,
and no cell is tested: the test is for the settings that were chosen. It writes
sweep.csv and heat_map.png. Epsilon does not cover the search.
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
_METRIC = flags.DEFINE_string(
  'metric', 'accuracy', 'Of validation, by which the best is picked.'
)

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
        f'best of {done} of {self._total} cells:\n'
        f'{sweeping.format_best(found, self._metric, 3)}\n'
      )


def main(arguments: list[str]) -> None:
  """Sweeps; `arguments` are those of the training binary."""
  if bool(_GRID.value) == (_PRESET.value is not None):
    raise ValueError('--grid or --preset must be given, and not both.')
  grid = sweeping.parse_grid(_GRID.value or _PRESETS[_PRESET.value])
  reserved = dict.fromkeys(grid, '--grid')
  reserved['output_dir'] = '--output_dir before --'
  reserved['final_test'] = reserved['nofinal_test'] = 'this program'
  job_flags.refuse(arguments, reserved)
  folder = job_flags.output_dir()
  cells = sweeping.cells(grid)
  module = job_flags.module()
  # Finished cells are not looked at again, so that their flags must be these.
  job_flags.refuse_others(
    folder / 'sweep.json',
    {'binary': module, 'flags': cli.expanded(arguments)},
  )

  def path(cell: sweeping.Cell) -> pathlib.Path:
    return folder / 'cells' / cell.name

  def look() -> list[sweeping.Found]:
    return [sweeping.look(cell, path(cell)) for cell in cells]

  all_jobs = [
    jobs.Job(
      name=cell.name,
      module=module,
      arguments=(
        *arguments,
        *cell.arguments,
        '--nofinal_test',
        f'--output_dir={path(cell)}',
        f'--warm_start_dir={folder / "warm_start"}',
      ),
      folder=path(cell),
    )
    for cell in cells
  ]
  unfinished = [
    job
    for job, found in zip(all_jobs, look(), strict=True)
    if not found.is_finished
  ]
  skipped = len(cells) - len(unfinished)
  if skipped:
    print(f'{skipped} of {len(cells)} cells are finished.', file=sys.stderr)
  failures = job_flags.run(
    unfinished,
    folder / 'logs',
    _LiveTable(look, _METRIC.value, len(cells)),
  )
  found = look()
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
  print(f'The best: {shlex.join([*arguments, *best.cell.arguments])}')
  print(f'Wrote {" and ".join(map(str, written))}.')
  if failures:
    sys.exit(1)


if __name__ == '__main__':
  cli.run(main, takes_arguments=True)
