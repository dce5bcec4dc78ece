r"""Compares methods over seeds: a table, figures and a page.

    python -m scripts.compare --output_dir=out/comparison \
        --data_dir=data/stackexchange \
        --flagfile=scripts/presets/stackexchange.flags

    python -m scripts.compare --output_dir=out/tuned \
        --tune=server.learning_rate=0.5,1 --extend=server.learning_rate \
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

    python -m scripts.compare --output_dir=out/table \
        --combine=out/cifar10,out/cifar10_private

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
table.tex, curves_*.png, curves_*.svg and index.html, a self-contained page.
--combine merges finished comparisons into one table and one figure, like the
paper's Table 2.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from collections.abc import Mapping, Sequence
import pathlib
import sys
from typing import Any, Optional

from absl import flags
from pda_fed import methods
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.compare import choices as choices_lib
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import experiment as experiment_lib
from pda_fed.compare import grids as grids_lib
from pda_fed.compare import metrics as metrics_lib
from pda_fed.compare import private_runs
from pda_fed.compare import private_settings
from pda_fed.compare import running
from pda_fed.compare import search as search_lib
from pda_fed.compare import tuning
from pda_fed.runs.engines import base as engine_lib
from scripts.lib import combining
from scripts.lib import pages
from scripts.lib import results
from scripts.lib import spec_flags

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir',
  None,
  'Folder of the runs and results. Runs in it are resumed.',
)
_METHODS = flags.DEFINE_list(
  'methods',
  'cold,warm,pda',
  f'Methods to compare: {", ".join(methods.names())}, or modules that define'
  ' methods.',
)
_SEEDS = flags.DEFINE_integer(
  'seeds',
  3,
  'Number of seeds of each method: 0, 1, ... One seed gives no verdict; 0 ends'
  ' after the search of --tune.',
  lower_bound=0,
)
_SET = flags.DEFINE_multi_string(
  'set',
  [],
  'METHOD:SETTING=VALUE, a setting of the runs of one method, such as'
  ' --set=pda:method.alpha_i=2.',
)
_METRICS = flags.DEFINE_list(
  'metrics',
  [],
  'Metrics of the final test to show, in addition to --select_by. Default:'
  ' perplexity or loss, and accuracies.',
)
_SELECT_BY = flags.DEFINE_string(
  'select_by',
  'loss',
  'Metric that decides which settings are best (on validation data) and which'
  ' method is best (on test data): loss, perplexity, accuracy (for text, over'
  ' known words) or accuracy_with_oov (over all tokens).',
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes',
  0,
  'Number of runs at a time. 0 means one per GPU if the runs use JAX on GPUs,'
  ' and one per core otherwise. Larger numbers make runs share GPUs or cores.',
  lower_bound=0,
)
_PRINT_RUNS = flags.DEFINE_bool(
  'print_runs',
  False,
  'Print the flags of the unfinished runs for scripts.train, one run per line,'
  ' and exit. Train them on a cluster, one line per job, or in one process with'
  ' --runs_file. Then repeat this command without --print_runs: it reads the'
  ' finished runs.',
)
_TUNE = flags.DEFINE_multi_string(
  'tune',
  [],
  'SETTING=VALUE,VALUE,..., or METHOD:SETTING=VALUE,... for one method: an axis'
  ' of the search grid. Validation with seed 0 chooses the settings, separately'
  ' for each method.',
)
_TUNE_SET = flags.DEFINE_multi_string(
  'tune_set',
  [],
  'SETTING=VALUE, a setting that only the runs of --tune have, such as'
  ' --tune_set=validation_examples=5000.',
)
_EXTEND = flags.DEFINE_multi_string(
  'extend',
  [],
  'Setting of the grid, with positive values. The search then tries the'
  ' values next to the best one until none is better. Beyond the ends of the'
  ' grid it tries 1, 2 and 5 times powers of ten.',
)
_CHOSEN = flags.DEFINE_string(
  'chosen',
  None,
  'A chosen.json that --tune wrote. Each method gets the settings in it.',
)
_WARM_START_DIR = flags.DEFINE_string(
  'warm_start_dir',
  None,
  'Folder of pre-trained models. Default: in --output_dir.',
)
_PRIVATE_SEARCH = flags.DEFINE_enum(
  'private_search',
  None,
  ['negative_binomial', 'poisson'],
  'Distribution of the number of runs of a private search. The number is'
  ' secret, and only the best run is released. Epsilon then covers the search.'
  " With 'poisson' the number may be 0, and nothing is released.",
)
_SEARCH_RUNS = flags.DEFINE_float(
  'search_runs', None, 'With --private_search: expected number of runs.'
)
_COMBINE = flags.DEFINE_list(
  'combine',
  None,
  'Folders of finished comparisons, separated by commas. Runs nothing, but'
  ' merges them into one table (table.md, table.tex) and one figure'
  ' (cells.png, cells.svg). --metrics chooses the metrics to show.',
)
spec_flags.define()
flags.adopt_module_key_flags(spec_flags)

Specs = dict[str, runs_lib.RunSpec]


def _output_dir() -> pathlib.Path:
  if not _OUTPUT_DIR.value:
    raise ValueError('--output_dir must be given.')
  return pathlib.Path(_OUTPUT_DIR.value)


def _values(texts: list[str], flag: str) -> dict[str, Any]:
  """Returns the values of SETTING=VALUE texts."""
  found = grids_lib.parse(texts, flag) if texts else {}
  return {n: v[0] if len(v) == 1 else v for n, v in found.items()}


def _specs() -> Specs:
  """Returns the spec of each method."""
  if not _METHODS.value:
    raise ValueError('methods must have at least one. Found none.')
  given = spec_flags.given()
  for name, instead in (('method', '--methods'), ('seed', '--seeds')):
    if name in given and not (name == 'seed' and _PRIVATE_SEARCH.value):
      raise ValueError(f'--{name} must not be given here: use {instead}.')
  own = grids_lib.by_owner(_SET.value, _METHODS.value, 'set')
  specs = {}
  for method, texts in own.items():
    spec = spec_flags.spec(method=method)
    values = _values(texts, 'set')
    specs[method] = spec_flags.changed(spec, values, '--set: ')
  spec_flags.check_owned(specs)
  titles = [
    methods.get(m, trust_code=spec_flags.trusts(specs[m])).name for m in specs
  ]
  if len(set(titles)) < len(_METHODS.value):
    raise ValueError(f'methods must be distinct. Found {", ".join(titles)}.')
  return specs


def _grids() -> dict[str, grids_lib.Grid]:
  """Returns the grid of each method that has one."""
  if not _TUNE.value:
    for flag in (_EXTEND, _TUNE_SET):
      if flag.value:
        raise ValueError(f'--{flag.name} must be given with --tune.')
  texts = grids_lib.by_owner(_TUNE.value, _METHODS.value, 'tune')
  found = {m: grids_lib.parse(axes) for m, axes in texts.items() if axes}
  search_lib.check_extend(_EXTEND.value, list(found.values()))
  return found


def _runner(all_specs: Sequence[runs_lib.RunSpec]) -> running.Runner:
  named = any(map(spec_flags.modules, all_specs))
  return running.Runner(
    num_processes=_NUM_PROCESSES.value,
    only_prints=_PRINT_RUNS.value,
    options=('--trust_code',) if named else (),  # Checked here.
  )


def _all_specs(specs: Specs, grids, chosen) -> list[runs_lib.RunSpec]:
  """Returns specs that name all modules that any run may name."""
  found = []
  for method, spec in specs.items():
    found += [spec, spec.with_values(_values(_TUNE_SET.value, 'tune_set'))]
    axes = grids.get(method, {}).items()
    found += [spec.with_values({n: v}) for n, values in axes for v in values]
    if chosen is not None:
      settings = chosen[1].methods[method].settings
      found.append(spec_flags.changed(spec, settings, f'{chosen[0]}: '))
  return found


def _chosen(specs: Specs) -> Optional[tuple[str, choices_lib.Choices]]:
  """Returns the file of --chosen, and its content."""
  if _CHOSEN.value is None:
    return None
  path = cli.shipped(_CHOSEN.value)
  found = choices_lib.load(path, list(specs))
  _refuse_given(found)
  return path, found


def _private_search() -> privacy.PrivateSearch:
  if _SEARCH_RUNS.value is None:
    raise ValueError(
      '--private_search must be given with --search_runs, the expected number'
      ' of runs.'
    )
  for flag, why in (
    (_CHOSEN, 'the search chooses the settings'),
    (_EXTEND, 'the grid must not depend on results of runs'),
    (_PRINT_RUNS, 'the runs are secret'),
    (_TUNE_SET, 'the runs of the search are the ones that are compared'),
  ):
    if flag.value:
      raise ValueError(
        f'--{flag.name} must not be given with --private_search: {why}.'
      )
  # It releases one run of each method: the default of 3 does not apply.
  if flags.FLAGS['seeds'].present and _SEEDS.value != 1:
    raise ValueError(
      '--seeds must be 1 with --private_search, which releases one run of each'
      f' method. Found {_SEEDS.value}.'
    )
  try:
    return privacy.PrivateSearch(
      distribution=_PRIVATE_SEARCH.value, expected_runs=_SEARCH_RUNS.value
    )
  except ModuleNotFoundError as e:
    raise ValueError(
      f'--private_search needs {e.name}, which is not installed.'
    ) from e


def _compare_released(specs: Specs, grids, runner: running.Runner) -> None:
  """Compares the runs that private searches release."""
  search = _private_search()
  private_settings.check(specs, grids)
  searches = private_runs.SecretRuns(
    search, specs, grids, _SELECT_BY.value, _output_dir(), runner
  )
  folders, notes = searches.release()
  if not folders:
    for line in (*notes, 'There is no run to compare.'):
      running.say(line)
    sys.exit(1)
  _show(folders, notes, tuning.Tuned(specs))


def _refuse_given(chosen: choices_lib.Choices) -> None:
  """Raises if the user types a setting that --chosen sets."""
  typed = spec_flags.typed()
  for method, choice in chosen.methods.items():
    both = [name for name in choice.settings if name in typed]
    if both:
      raise ValueError(
        f'--{both[0]} must not be given with --chosen, which sets it for'
        f' {method}.'
      )


def _show(folders, notes, tuned: tuning.Tuned, missing=()) -> None:
  pages.show(
    [comparison_lib.load_run(folder) for folder in folders],
    _output_dir(),
    metrics=_METRICS.value,
    select_by=_SELECT_BY.value,
    notes=notes,
    tuned=tuned,
    missing=missing,
  )


def _experiment(specs: Specs, grids, chosen, runner):
  """Returns the experiment of the flags."""
  warm = _WARM_START_DIR.value
  return experiment_lib.Experiment(
    specs=specs,
    output_dir=_output_dir(),
    seeds=_SEEDS.value,
    grids=grids,
    extend=_EXTEND.value,
    only_searched=_values(_TUNE_SET.value, 'tune_set'),
    chosen=chosen,
    select_by=_SELECT_BY.value,
    warm_start_dir=None if warm is None else pathlib.Path(warm),
    runner=runner,
    trust_code=True,  # Checked here.
    command=cli.command_line(),
  )


def main() -> None:
  """Compares."""
  folder = _output_dir()
  if _COMBINE.value is not None:
    combining.combine(_COMBINE.value, folder, _METRICS.value, _SELECT_BY.value)
    return
  metrics_lib.check(engine_lib.METRICS, [_SELECT_BY.value], _SELECT_BY.name)
  metrics_lib.check(engine_lib.METRICS, _METRICS.value, _METRICS.name)
  specs, grids = _specs(), _grids()
  _refuse_typed(grids)
  chosen = _chosen(specs)
  all_specs = _all_specs(specs, grids, chosen)
  spec_flags.check_modules(all_specs, 'a file')
  runner = _runner(all_specs)
  if _PRIVATE_SEARCH.value is not None:
    _compare_released(specs, grids, runner)
    return
  if _SEARCH_RUNS.value is not None:
    raise ValueError('--search_runs must be given with --private_search.')
  experiment = _experiment(specs, grids, chosen, runner)
  finished = experiment.run(
    show=lambda run: results.show_plan(run, sys.stderr),
    on_change=pages.MetricsCheck(_METRICS.value, _SELECT_BY.value),
  )
  if not _SEEDS.value:
    print(f'The settings: {folder / "chosen.json"}')
  elif finished.folders:
    missing = pages.missing(finished.failures)
    notes = finished.tuned.not_covered
    _show(finished.folders, notes, finished.tuned, missing)
  if finished.failures:
    sys.exit(1)


def _refuse_typed(grids: Mapping[str, grids_lib.Grid]) -> None:
  """Raises if a setting is both typed and searched."""
  for method, grid in grids.items():
    for name in grid:
      if name in spec_flags.typed():
        raise ValueError(
          f'--{name} must not be given beside --tune, which sets it for'
          f' {method}.'
        )


if __name__ == '__main__':
  cli.run(main)
