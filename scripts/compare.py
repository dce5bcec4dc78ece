r"""Compares methods over seeds: a table, figures and a page.

    python -m scripts.compare --output_dir=out/comparison \
        --data_dir=data/stackexchange \
        --flagfile=scripts/presets/stackexchange.flags

    python -m scripts.compare --output_dir=out/tuned \
        --tune=server.learning_rate=0.5,1,2 \
        --tune=pda:method.alpha_constant=0.2,0.5,0.8 \
        --data_dir=data/stackexchange \
        --flagfile=scripts/presets/stackexchange.flags

    python -m scripts.compare --output_dir=out/again \
        --chosen=out/tuned/chosen.json \
        --data_dir=data/stackexchange \
        --flagfile=scripts/presets/stackexchange.flags

    python -m scripts.compare --output_dir=out/private \
        --tune=server.learning_rate=0.5,1,3 --private_search=poisson \
        --search_runs=20 \
        --data_dir=data/stackexchange \
        --flagfile=scripts/presets/stackexchange.flags

All settings of scripts.train are flags here, too, and hold for every run;
--set=pda:server.learning_rate=0.5 sets one for one method. Each method runs
with three seeds (--seeds). The verdict compares methods seed by seed, with 95 %
intervals, by the metric of --select_by, by default the loss. With --tune, the
settings of each method are first searched by the same metric on validation
data, and methods are compared with the best settings; chosen.json holds them,
and --chosen reads them. --seeds=0 ends after the search. With --private_search
as well, the search makes a secret number of runs and releases only the best
one; epsilon then covers the search.

Before the first run, each method's settings, data and folders are checked.
Finished runs are skipped, stopped runs resume. The program writes table.md,
curves_*.png, curves_*.svg and index.html, a self-contained page.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from collections.abc import Mapping
import pathlib
import sys
from typing import Any, Optional

from absl import flags
from pda_fed import methods
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.compare import choices as choices_lib
from pda_fed.compare import experiment as experiment_lib
from pda_fed.compare import grids as grids_lib
from pda_fed.compare import names
from pda_fed.compare import options as options_lib
from pda_fed.compare import private_search
from pda_fed.compare import report as report_lib
from pda_fed.runs.engines import base as engine_lib
from scripts.lib import results
from scripts.lib import setting_flags
from scripts.lib import spec_flags

setting_flags.define(options_lib.CompareOptions)
spec_flags.define()
flags.adopt_module_key_flags(setting_flags)
flags.adopt_module_key_flags(spec_flags)

Specs = dict[str, runs_lib.RunSpec]
Grids = dict[str, grids_lib.Grid]


def _specs(options: options_lib.CompareOptions) -> Specs:
  """Returns the spec of each method."""
  if not options.methods:
    raise ValueError('methods must have at least one. Found none.')
  given = spec_flags.given()
  instead_of = {'method': '--methods'}
  if options.private_search is None:  # It refuses seeds itself.
    instead_of['seed'] = '--seeds'
  for name, instead in instead_of.items():
    if name in given:
      raise ValueError(f'--{name} must not be given here: use {instead}.')
  specs = {}
  own = grids_lib.by_owner(options.set, options.methods, 'set')
  for method, grid in own.items():
    values = grids_lib.single_values(grid)
    spec = spec_flags.spec(method=method)
    specs[method] = spec_flags.changed(spec, values, '--set: ')
  spec_flags.check_owned(specs)
  found = [
    methods.get(m, trust_code=spec_flags.trusts(specs[m])).name for m in specs
  ]
  if len(set(found)) < len(options.methods):
    raise ValueError(f'methods must be distinct. Found {", ".join(found)}.')
  return specs


def _grids(options: options_lib.CompareOptions) -> Grids:
  """Returns the grid of each method that has one."""
  if options.tune_set and not options.tune:
    raise ValueError('--tune_set must be given with --tune.')
  grids = grids_lib.by_owner(options.tune, options.methods, 'tune')
  _refuse_typed(grids, '--tune')
  return {method: grid for method, grid in grids.items() if grid}


def _refuse_typed(given: Mapping[str, Mapping[str, Any]], flag: str) -> None:
  """Raises if a setting of a method is both typed and given otherwise."""
  for method, settings in given.items():
    for name in settings:
      if name in spec_flags.typed():
        raise ValueError(
          f'--{name} must not be given with {flag}, which sets it for {method}.'
        )


def _chosen(
  options: options_lib.CompareOptions, specs: Specs
) -> tuple[Specs, Optional[choices_lib.Choices]]:
  """Returns specs with the settings of --chosen, and the file's content."""
  if options.chosen is None:
    return specs, None
  path = cli.shipped(options.chosen)
  found = choices_lib.load(path, list(specs))
  settings = {m: choice.settings for m, choice in found.methods.items()}
  _refuse_typed(settings, '--chosen')
  merged = {
    method: spec_flags.changed(spec, settings[method], f'{path}: ')
    for method, spec in specs.items()
  }
  return merged, found


def _private_search(
  options: options_lib.CompareOptions,
) -> Optional['privacy.PrivateSearch']:
  """Returns the private search of the flags, and refuses what does not fit."""
  search = options.search()
  if search is None:
    return None
  for name, why in (
    ('chosen', 'the search chooses the settings'),
    ('print_runs', 'the runs are secret'),
    ('tune_set', 'the runs of the search are the ones that are compared'),
  ):
    if getattr(options, name):
      raise ValueError(
        f'--{name} must not be given with --private_search: {why}.'
      )
  # It releases one run of each method: the default of 3 does not apply.
  if flags.FLAGS['seeds'].present and options.seeds != 1:
    raise ValueError(
      '--seeds must be 1 with --private_search, which releases one run of each'
      f' method. Found {options.seeds}.'
    )
  return search


def main() -> None:
  """Makes the runs, and shows how they compare."""
  options = setting_flags.make(options_lib.CompareOptions)
  names.to_show(engine_lib.METRICS, options.metrics, options.select_by)
  given, grids = _specs(options), _grids(options)
  specs, choices = _chosen(options, given)
  only_searched = grids_lib.single_values(
    grids_lib.parse(options.tune_set, 'tune_set')
  )
  # Specs that name all modules that any run may name.
  every = [*given.values(), *specs.values()]
  every += [spec.with_values(only_searched) for spec in specs.values()]
  every += [
    specs[method].with_values({name: value})
    for method, grid in grids.items()
    for name, values in grid.items()
    for value in values
  ]
  spec_flags.check_modules(every, 'a file')
  runner = options.runner(trust_code=any(map(spec_flags.modules, every)))
  search = _private_search(options)
  if search is not None:
    folders, notes = private_search.SecretRuns(
      search, specs, grids, options.select_by, options.folder, runner
    ).release()
    if not folders:
      cli.fail(' '.join([*notes, 'There is no run to compare.']), exit_code=1)
    about = {'command': cli.command_line(), 'notes': notes}
    report = report_lib.of_runs(
      folders, options.metrics, options.select_by, **about
    )
    results.show_report(report, options.folder)
    return
  warm_start = options.warm_start_dir
  report, failures = experiment_lib.Experiment(
    specs=specs,
    output_dir=options.folder,
    seeds=options.seeds,
    grids=grids,
    only_searched=only_searched,
    choices=choices,
    metrics=options.metrics,
    select_by=options.select_by,
    warm_start_dir=None if warm_start is None else pathlib.Path(warm_start),
    runner=runner,
    trust_code=True,  # Checked here.
    command=cli.command_line(),
  ).run(lambda run: results.show_plan(run, sys.stderr))
  if not options.seeds:
    print(f'The settings: {options.folder / "chosen.json"}')
  elif report is not None:
    results.show_report(report, options.folder)
  if failures:
    sys.exit(1)


if __name__ == '__main__':
  cli.run(main)
