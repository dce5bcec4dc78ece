"""The search that each method of a comparison has before it is compared."""

from collections.abc import Sequence
import math
import pathlib
import shlex
import sys

from absl import flags
from pda_fed import methods
from pda_fed.analysis import comparison
from pda_fed.analysis import sweeping
from pda_fed.common import files
from pda_fed.experiments import errors
from scripts.lib import grid_search
from scripts.lib import job_flags
from scripts.lib import method_flags

_TUNE = flags.DEFINE_multi_string(
  'tune',
  [],
  'FLAG=VALUE,VALUE,..., or METHOD:FLAG=VALUE,... for one method: an axis of'
  ' the grid of which validation of seed 0 chooses, for each method by itself.'
  ' May be repeated.',
)
_METRIC = flags.DEFINE_string(
  'tune_metric', 'loss', 'Of validation, by which --tune chooses.'
)
_TUNE_FLAGS = flags.DEFINE_string(
  'tune_flags',
  '',
  'Flags for the runs of --tune alone, --validation_examples=5000 for example.',
)
_WITH_TUNE = ('extend', 'tune_flags', 'tune_metric')
# Flags of this module and of the search, by name.
NAMES = ('tune', *_WITH_TUNE)

Flags = dict[str, list[str]]


def metric() -> str:
  """Returns the metric of validation by which a search chooses."""
  return _METRIC.value


def grids(methods: Sequence[str]) -> dict[str, sweeping.Grid]:
  """Returns what --tune asks for, by method; none for what is not tuned.

  Args:
    methods: Those that are compared.

  Raises:
    ValueError: If an axis or a method is not known, or a flag comes without
      --tune.
  """
  if not _TUNE.value:
    for name in _WITH_TUNE:
      if flags.FLAGS[name].present:
        raise ValueError(f'--{name} must come with --tune.')
  texts = {method: [] for method in methods}
  for text in _TUNE.value:
    method, colon, axis = text.partition(':')
    if not colon or '=' in method:  # A value may have a colon, too.
      for axes in texts.values():
        axes.append(text)
    elif method in texts:
      texts[method].append(axis)
    else:
      raise ValueError(
        f'tune must be FLAG=VALUE,... or begin with one of {", ".join(texts)}'
        f' and a colon. Found {text!r}.'
      )
  found = {
    method: sweeping.parse_grid(axes, 'tune')
    for method, axes in texts.items()
    if axes
  }
  grid_search.check_extend(list(found.values()))
  return found


def tune(
  arguments: Sequence[str],
  of_methods: Flags,
  of_grids: dict[str, sweeping.Grid],
) -> tuple[Flags, list[str]]:
  """Searches for each method by itself.

  Args:
    arguments: Of the training binary.
    of_methods: Of one method alone, by method.
    of_grids: As `grids` returns them.

  Returns:
    The flags of methods with those that validation chose, and lines that tell
    what was chosen.

  Raises:
    OutputError: If there are final runs of another choice.
    ValueError: If the search sets a flag that is given.
  """
  folder = job_flags.output_dir() / 'tuning'
  searches = {
    method: _create(
      method,
      grid,
      [*method_flags.arguments_for(method, arguments), *of_methods[method]],
      folder,
    )
    for method, grid in of_grids.items()
  }
  if not grid_search.run(list(searches.values()), folder / 'logs'):
    job_flags.say('Methods are compared once all runs of --tune are finished.')
    sys.exit(1)
  chosen, lines = dict(of_methods), []
  for method, search in searches.items():
    best, told = _choose(method, search, folder / method)
    chosen[method] = [*of_methods[method], *best]
    lines += told
  for line in lines:
    job_flags.say(line)
  covered = sweeping.NOT_COVERED
  if _TUNE_FLAGS.value:
    covered += (
      ' What the search alone held out for validation'
      f' ({_TUNE_FLAGS.value}) the runs that are compared may train on.'
    )
  return chosen, [*lines, covered]


def _create(
  method: str,
  grid: sweeping.Grid,
  arguments: Sequence[str],
  folder: pathlib.Path,
) -> grid_search.GridSearch:
  own = job_flags.split('tune_flags', _TUNE_FLAGS.value)
  job_flags.refuse(own, grid_search.RESERVED, 'in --tune_flags')
  job_flags.refuse([f'--{f}' for f in grid], grid_search.RESERVED, 'in --tune')
  everything = [*arguments, *own, f'--method={method}', '--seed=0']
  job_flags.refuse(
    [*arguments, *own], dict.fromkeys(grid, '--tune'), 'beside it'
  )
  return grid_search.GridSearch(
    everything,
    folder / method,
    grid,
    _METRIC.value,
    warm_start_dir=folder / 'warm_start',
    label=f'{method},',
  )


def _choose(
  method: str, search: grid_search.GridSearch, folder: pathlib.Path
) -> tuple[list[str], list[str]]:
  """Returns the best cell's flags, and lines about them."""
  found = search.look()
  best = sweeping.rank(found, search.metric)[0]
  files.write_atomically(folder / 'sweep.csv', sweeping.as_csv(found).encode())
  value = best.metrics[search.metric]
  if not math.isfinite(value):
    job_flags.say(
      f'{method}: no run of --tune has a {search.metric} that is a number.'
    )
    sys.exit(1)
  arguments = best.cell.arguments
  _refuse_runs_of_others(method, arguments, folder / 'chosen.json')
  text = (
    f'{method}: {shlex.join(arguments)}, validation'
    f' {comparison.title_of(search.metric)}'
    f' {comparison.format_value(search.metric, value)}, the best of'
    f' {len(found)}.'
  )
  lines = [text, *(f'{method}: {line}' for line in search.warnings())]
  return arguments, lines


def _refuse_runs_of_others(
  method: str, arguments: list[str], note: pathlib.Path
) -> None:
  """Raises if a method's final runs are those of another choice."""
  runs = job_flags.output_dir() / 'runs'
  # Not runs/warm_start.
  if note.exists() and any(runs.glob(f'{methods.get(method).name}_[0-9]*')):
    before = files.read_json(note)
    if before != arguments:
      raise errors.OutputError(
        f'--tune now chooses {shlex.join(arguments)} for {method}, and'
        f' {runs / method}_* are of {shlex.join(before)}. Remove them, or give'
        ' another --output_dir.'
      )
  files.write_json(note, arguments)
