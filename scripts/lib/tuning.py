"""Settings of each method of a comparison: searched or read from a file."""

from collections.abc import Sequence
import dataclasses
import math
import pathlib
import shlex
import sys
from typing import Optional

from absl import flags
from pda_fed import methods
from pda_fed.common import files
from pda_fed.compare import choices as choices_lib
from pda_fed.compare import jobs
from pda_fed.compare import metrics as metrics_lib
from pda_fed.compare import sweeping
from pda_fed.runs import errors
from scripts.lib import cli
from scripts.lib import dry_runs
from scripts.lib import grid_search
from scripts.lib import job_flags
from scripts.lib import method_flags
from scripts.lib import select_flags
from scripts.lib import trust_flags

_TUNE = flags.DEFINE_multi_string(
  'tune',
  [],
  'FLAG=VALUE,VALUE,..., or METHOD:FLAG=VALUE,... for one method: an axis of'
  ' the search grid. Validation with seed 0 chooses the settings, separately'
  ' for each method.',
)
_TUNE_FLAGS = flags.DEFINE_string(
  'tune_flags',
  '',
  'Flags that only the runs of --tune get, such as --validation_examples=5000.',
)
_CHOSEN = flags.DEFINE_string(
  'chosen',
  None,
  'A chosen.json that --tune wrote. Each method gets the settings in it.',
)
_WITH_TUNE = ('extend', 'tune_flags')
# Names of the flags of this module and of `grid_search`.
NAMES = ('chosen', 'tune', *_WITH_TUNE)

Flags = dict[str, list[str]]


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings of each method, and where they come from.

  Attributes:
    flags: Flags of each method, by method.
    choices: How the settings were chosen; None if flags set them.
    remarks: Sentences on the choice, for the page.
    not_covered: Sentences on what epsilon does not cover.
  """

  flags: Flags
  choices: Optional[choices_lib.Choices] = None
  remarks: tuple[str, ...] = ()
  not_covered: tuple[str, ...] = ()


def read(
  arguments: Sequence[str], of_methods: Flags, reserved: dict[str, str]
) -> Settings:
  """Returns the settings of --chosen, or those of the flags.

  Args:
    arguments: Flags of every run.
    of_methods: Flags for the runs of one method only, by method.
    reserved: Flags that the file must not set, and what sets them.

  Raises:
    OutputError: If the file cannot be read.
    UntrustedCodeError: If the file names a module, without --trust_code.
    ValueError: If --tune did not write the file, or it lacks a method, or it
      sets a flag that is also given.
  """
  if _CHOSEN.value is None:
    return Settings(of_methods)
  if _TUNE.value:
    raise ValueError(
      '--chosen must not be given with --tune, which searches for settings.'
    )
  found = choices_lib.load(cli.shipped(_CHOSEN.value), list(of_methods))
  merged = {}
  for method, own in of_methods.items():
    chosen = found.methods[method].flags
    job_flags.refuse(chosen, reserved, f'in {_CHOSEN.value}')
    trust_flags.check_words(chosen, _CHOSEN.value)
    names = [job_flags.name_of(flag) for flag in chosen]
    job_flags.refuse(
      [*arguments, *own], dict.fromkeys(names, '--chosen'), 'beside it'
    )
    merged[method] = [*chosen, *own]
  return Settings(merged, found, not_covered=(sweeping.NOT_COVERED,))


def grids(methods: Sequence[str]) -> dict[str, sweeping.Grid]:
  """Returns the grids of --tune, for each method that has one.

  Args:
    methods: Names of the compared methods.

  Raises:
    ValueError: If an axis or a method is unknown, or a flag needs --tune.
  """
  if not _TUNE.value:
    for name in _WITH_TUNE:
      if flags.FLAGS[name].present:
        raise ValueError(f'--{name} must be given with --tune.')
  texts = {method: [] for method in methods}
  for text in _TUNE.value:
    method, colon, axis = text.partition(':')
    if not colon or '=' in method:  # The colon may be part of a value.
      for axes in texts.values():
        axes.append(text)
    elif method in texts:
      texts[method].append(axis)
    else:
      raise ValueError(
        f'tune must be FLAG=VALUE,..., or begin with one of {", ".join(texts)}'
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
  others: Sequence[jobs.Job] = (),
) -> Settings:
  """Searches for the best settings of each method separately.

  Args:
    arguments: Flags of every run.
    of_methods: Flags for the runs of one method only, by method.
    of_grids: The result of `grids`.
    others: First runs of the methods without a grid, for a dry run.

  Returns:
    The settings that validation chose. They are also written to chosen.json.

  Raises:
    OutputError: If there are final runs with other settings.
    ValueError: If a flag is both given and searched, or the training binary
      refuses a run.
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
  firsts = [s.first() for s in searches.values() if s.unfinished()]
  dry_runs.check([*firsts, *others])
  if not grid_search.run(list(searches.values()), folder / 'logs'):
    job_flags.say(
      'Methods will be compared once all runs of --tune are finished.'
    )
    sys.exit(1)
  chosen = {
    method: choices_lib.Choice(tuple(own), 0, None)
    for method, own in of_methods.items()
  }
  remarks = []
  for method, search in searches.items():
    best = _choose(method, search, folder / method)
    chosen[method] = dataclasses.replace(
      best, flags=(*of_methods[method], *best.flags)
    )
    remarks += [f'{method}: {line}' for line in search.warnings()]
  found = choices_lib.Choices(
    job_flags.command_line(), select_flags.metric(), chosen
  )
  found.write(job_flags.output_dir() / 'chosen.json')
  for line in remarks:
    job_flags.say(line)
  covered = sweeping.NOT_COVERED
  if _TUNE_FLAGS.value:
    covered += (
      ' Runs that are compared may train on the examples that only the search'
      f' held out for validation ({_TUNE_FLAGS.value}).'
    )
  flags_of = {method: list(choice.flags) for method, choice in chosen.items()}
  return Settings(flags_of, found, tuple(remarks), (covered,))


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
    select_flags.metric(),
    warm_start_dir=folder / 'warm_start',
    label=f'{method},',
  )


def _choose(
  method: str, search: grid_search.GridSearch, folder: pathlib.Path
) -> choices_lib.Choice:
  """Returns the settings of the best cell, and prints them."""
  found = search.look()
  best = sweeping.rank(found, search.metric)[0]
  files.write_atomically(folder / 'sweep.csv', sweeping.as_csv(found).encode())
  value = best.metrics[search.metric]
  if not math.isfinite(value):
    job_flags.say(f'{method}: no run of --tune has a finite {search.metric}.')
    sys.exit(1)
  arguments = best.cell.arguments
  _refuse_runs_of_others(method, arguments, folder / 'chosen.json')
  job_flags.say(
    f'{method}: {shlex.join(arguments)},'
    f' {sweeping.title_of(found, search.metric)}'
    f' {metrics_lib.format_value(search.metric, value)}, the best of'
    f' {search.num_tries}.'
  )
  return choices_lib.Choice(tuple(arguments), search.num_tries, value)


def _refuse_runs_of_others(
  method: str, arguments: list[str], note: pathlib.Path
) -> None:
  """Raises if a method has final runs with other settings."""
  runs = job_flags.output_dir() / 'runs'
  # Excludes runs/warm_start.
  if note.exists() and any(runs.glob(f'{methods.get(method).name}_[0-9]*')):
    before = files.read_json(note)
    if before != arguments:
      raise errors.OutputError(
        f'--tune now chooses {shlex.join(arguments)} for {method}, but'
        f' {runs / method}_* have {shlex.join(before)}. Remove them, or give'
        ' another --output_dir.'
      )
  files.write_json(note, arguments)
