"""The settings of each method: given, searched, or chosen earlier."""

from collections.abc import Mapping
import dataclasses
import math
import pathlib
import sys
from typing import Any, Optional

from pda_fed import errors
from pda_fed import methods as methods_lib
from pda_fed.common import files
from pda_fed.common import typed
from pda_fed.compare import choices as choices_lib
from pda_fed.compare import grids as grids_lib
from pda_fed.compare import metrics as metrics_lib
from pda_fed.compare import ranking
from pda_fed.compare import running
from pda_fed.compare import search as search_lib
from pda_fed.runs import spec as spec_lib


def choose(
  method: str, search: search_lib.GridSearch, folder: pathlib.Path
) -> choices_lib.Choice:
  """Returns the settings of the best cell; writes and prints the search.

  Args:
    method: The method's name or module.
    search: Its search, with all runs finished.
    folder: Folder of the search.

  Raises:
    OutputError: If there are final runs with other settings.
    SystemExit: If no cell has a finite metric.
  """
  found = search.look()
  best = ranking.rank(found, search.metric)[0]
  files.write_atomically(folder / 'search.csv', ranking.as_csv(found).encode())
  value = best.metrics[search.metric]
  if not math.isfinite(value):
    running.say(f'{method}: no run of --tune has a finite {search.metric}.')
    sys.exit(1)
  chosen = dict(best.cell.values)
  _refuse_runs_of_others(method, chosen, folder)
  running.say(
    f'{method}: {" ".join(best.cell.arguments)},'
    f' {ranking.title_of(found, search.metric)}'
    f' {metrics_lib.format_value(search.metric, value)}, the best of'
    f' {search.num_trials}.'
  )
  return choices_lib.Choice(chosen, search.num_trials, value)


def _refuse_runs_of_others(
  method: str, chosen: Mapping[str, Any], folder: pathlib.Path
) -> None:
  """Raises if a method has final runs with other settings."""
  note, runs = folder / 'chosen.json', folder.parents[1] / 'runs'
  # Excludes runs/warm_start.
  if note.exists() and any(
    runs.glob(f'{methods_lib.get(method).name}_[0-9]*/config.json')
  ):
    lines = typed.differences(files.read_json(note), dict(chosen))
    if lines:
      raise errors.OutputError(
        f'--tune now chooses other settings for {method} than {runs} has:'
        f' {"; ".join(lines)}. Remove them, or give another --output_dir.'
      )
  files.write_json(note, dict(chosen))


@dataclasses.dataclass(frozen=True)
class Tuned:
  """The settings of each method, and where they come from.

  Attributes:
    specs: The spec of each method, by method.
    choices: How the settings were chosen; None if flags set them.
    remarks: Sentences on the choice, for the page.
    not_covered: Sentences on what epsilon does not cover.
  """

  specs: Mapping[str, spec_lib.RunSpec]
  choices: Optional[choices_lib.Choices] = None
  remarks: tuple[str, ...] = ()
  not_covered: tuple[str, ...] = ()


def with_chosen(
  specs: Mapping[str, spec_lib.RunSpec],
  path: str,
  found: choices_lib.Choices,
) -> Tuned:
  """Returns specs with the settings of a chosen.json.

  Args:
    specs: The spec of each method.
    path: The file, for messages.
    found: Its content.

  Raises:
    ValueError: If a value is invalid.
  """
  merged = {}
  for method, spec in specs.items():
    try:
      merged[method] = spec.with_values(found.methods[method].settings)
    except (TypeError, ValueError) as e:
      raise ValueError(f'{path}: {e}') from e
  return Tuned(merged, found, not_covered=(ranking.NOT_COVERED,))


def tune(
  searches: Mapping[str, search_lib.GridSearch],
  specs: Mapping[str, spec_lib.RunSpec],
  folder: pathlib.Path,
  runner: running.Runner,
  *,
  command: str,
  only_searched: Mapping[str, Any],
) -> Tuned:
  """Searches for the best settings of each method separately.

  Args:
    searches: The search of each method that has one.
    specs: The spec of each method.
    folder: Folder of the comparison.
    runner: Makes the runs.
    command: The command line, for chosen.json.
    only_searched: Settings that only the search's runs have.

  Returns:
    The settings that validation chose. They are also written to chosen.json.

  Raises:
    OutputError: If there are final runs with other settings.
    SystemExit: If not all runs are finished.
  """
  logs = folder / 'tuning/logs'
  if not search_lib.run(list(searches.values()), logs, runner):
    running.say(
      'Methods will be compared once all runs of --tune are finished.'
    )
    sys.exit(1)
  chosen = {method: choices_lib.Choice({}) for method in specs}
  remarks = []
  for method, search in searches.items():
    chosen[method] = choose(method, search, folder / 'tuning' / method)
    remarks += [f'{method}: {line}' for line in search.warnings()]
  metric = next(iter(searches.values())).metric
  found = choices_lib.Choices(command, metric, chosen)
  found.write(folder / 'chosen.json')
  for line in remarks:
    running.say(line)
  covered = ranking.NOT_COVERED
  if only_searched:
    shown = ' '.join(grids_lib.Cell(tuple(only_searched.items())).arguments)
    covered += (
      ' Runs that are compared may train on the examples that only the search'
      f' held out for validation ({shown}).'
    )
  merged = {m: s.with_values(chosen[m].settings) for m, s in specs.items()}
  return Tuned(merged, found, tuple(remarks), (covered,))
