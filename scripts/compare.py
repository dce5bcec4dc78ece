r"""Compares methods over seeds: a table, figures and a page.

    python -m scripts.compare --output_dir=out/comparison -- \
        --data_dir=data/stackexchange \
        --flagfile=scripts/presets/stackexchange.flags

    python -m scripts.compare --output_dir=out/tuned \
        --tune=server_learning_rate=0.5,1 --extend=server_learning_rate \
        --tune=pda:alpha_constant=0.2,0.5,0.8 -- \
        --data_dir=data/stackexchange \
        --flagfile=scripts/presets/stackexchange.flags

    python -m scripts.compare --output_dir=out/again \
        --chosen=out/tuned/chosen.json -- \
        --data_dir=data/stackexchange \
        --flagfile=scripts/presets/stackexchange.flags

    python -m scripts.compare --output_dir=out/private \
        --tune=server_learning_rate=0.5,1,3 --private_search=poisson \
        --search_runs=20 -- \
        --data_dir=data/stackexchange \
        --flagfile=scripts/presets/stackexchange.flags

    python -m scripts.compare --output_dir=out/table \
        --combine=out/cifar10,out/cifar10_private

Flags after `--` go to every run of the training binary, and --method_flags adds
flags for one method. Each method runs with three seeds (--seeds). The verdict
compares methods seed by seed, with 95 % intervals, by the metric of
--select_by, by default the loss. With --tune, the settings of each method are
first searched by the same metric on validation data, and methods are compared
with the best settings; chosen.json holds them, and --chosen reads them. With
--private_search as well, the search makes a secret number of runs and releases
only the best one; epsilon then covers the search.

Before the first run, a dry run of each method checks its flags, data and
folder. Finished runs are skipped, stopped runs resume. The program writes
table.md, table.tex, curves_*.png, curves_*.svg and index.html, a self-contained
page. --combine merges finished comparisons into one table and one figure, like
the paper's Table 2.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from collections.abc import Sequence
import sys
import warnings

from absl import flags
from pda_fed import errors
from pda_fed import methods
from pda_fed import runs as runs_lib
from pda_fed.common import files
from pda_fed.compare import audits
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import figures
from pda_fed.compare import findings
from pda_fed.compare import jobs
from pda_fed.compare import metrics as metrics_lib
from pda_fed.compare import report
from pda_fed.compare import result_tables
from scripts.lib import audit_flags
from scripts.lib import combining
from scripts.lib import dry_runs
from scripts.lib import grid_search
from scripts.lib import job_flags
from scripts.lib import method_flags
from scripts.lib import private_search
from scripts.lib import search_flags
from scripts.lib import select_flags
from scripts.lib import trust_flags
from scripts.lib import tuning

_METHODS = flags.DEFINE_list(
  'methods',
  'cold,warm,pda',
  f'Methods to compare: {", ".join(methods.names())}, or modules that define'
  ' methods.',
)
_SEEDS = flags.DEFINE_integer(
  'seeds',
  3,
  'Number of seeds of each method: 0, 1, ... One seed gives no verdict.',
  lower_bound=1,
)
_METHOD_FLAGS = flags.DEFINE_multi_string(
  'method_flags',
  [],
  'METHOD:FLAGS, flags for one method, such as --method_flags="pda:--alpha_i=2'
  ' --server_learning_rate=0.5".',
)
_METRICS = flags.DEFINE_list(
  'metrics',
  [],
  'Metrics of the final test to show, in addition to --select_by. Default:'
  ' perplexity or loss, and accuracies.',
)
# Flags that only make sense for runs.
_OF_RUNS = ('binary', 'method_flags', 'methods', 'num_processes')
_OF_RUNS += ('print_runs', 'seeds', *tuning.NAMES, *search_flags.NAMES)
_OF_RUNS += audit_flags.NAMES
# Flags that this program sets in each run, and where they are given.
_RESERVED = {
  'method': '--methods',
  'seed': '--seeds',
  'output_dir': '--output_dir before --',
  'final_test': 'no flag: runs are compared by it',
  **dict.fromkeys(audit_flags.NAMES, '--audit before --'),
}
flags.adopt_module_key_flags(audit_flags)
flags.adopt_module_key_flags(combining)
flags.adopt_module_key_flags(job_flags)
flags.adopt_module_key_flags(grid_search)
flags.adopt_module_key_flags(tuning)
flags.adopt_module_key_flags(search_flags)
flags.adopt_module_key_flags(select_flags)


def _flags_of_methods() -> dict[str, list[str]]:
  if not _METHODS.value:
    raise ValueError('methods must have at least one. Found none.')
  names = [method_flags.load(method).name for method in _METHODS.value]
  if len(set(names)) < len(names):
    raise ValueError(f'methods must be distinct. Found {", ".join(names)}.')
  found = {method: [] for method in _METHODS.value}
  for text in _METHOD_FLAGS.value:
    method, _, rest = text.partition(':')
    if method not in found:
      raise ValueError(
        f'method_flags must begin with one of {", ".join(found)} and a colon.'
        f' Found {text!r}.'
      )
    found[method] += job_flags.split('method_flags', rest)
    job_flags.refuse(found[method], _RESERVED, 'in --method_flags')
  return found


def _jobs(
  arguments: list[str], of_methods: dict[str, list[str]]
) -> list[jobs.Job]:
  folder = job_flags.output_dir() / 'runs'
  module = job_flags.module()

  def job(method: str, own: list[str], seed: int) -> jobs.Job:
    name = f'{methods.get(method).name}_{seed}'
    return jobs.Job(
      name=name,
      module=module,
      arguments=trust_flags.for_run(
        *method_flags.arguments_for(method, arguments),
        *own,
        *audit_flags.arguments(),
        f'--method={method}',
        f'--seed={seed}',
        f'--output_dir={folder / name}',
      ),
      folder=folder / name,
    )

  return [
    job(method, own, seed)
    for seed in range(_SEEDS.value)
    # The last method pre-trains and takes longest, so it starts first.
    for method, own in reversed(of_methods.items())
  ]


class _MetricsCheck:
  """Raises as soon as a finished run lacks a metric."""

  def __init__(self):
    self._num_ended = 0

  def __call__(self, running, ended) -> None:
    del running
    for job in ended[self._num_ended :]:
      result = runs_lib.RunFolder(job.folder).read_result()
      if result is not None and result['test'] is not None:
        metrics_lib.to_show(
          list(result['test']), _METRICS.value, select_flags.SELECT_BY.value
        )
    self._num_ended = len(ended)


def _has_curves(comparison: comparison_lib.Comparison) -> bool:
  names = [f'{p}{m}' for m in comparison.metrics for p in ('', 'test_')]
  runs = [run for group in comparison.runs.values() for run in group]
  rows = [row for run in runs for row in run.rows]
  return any(row.get(name) is not None for row in rows for name in names)


def _write(
  comparison: comparison_lib.Comparison,
  notes: Sequence[str],
  settings: tuning.Settings,
  missing: Sequence[str],
) -> None:
  folder, drawn = job_flags.output_dir(), {}
  try:
    if _has_curves(comparison):
      drawn = figures.draw_comparison(comparison, folder)
    else:
      warnings.warn(
        'No figures: runs without validation data have no curves. --test_curve'
        ' draws test metrics.',
        stacklevel=1,
      )
  except ImportError as e:
    warnings.warn(f'No figures: {e}.', stacklevel=1)
  page = report.build_page(
    comparison,
    drawn,
    job_flags.command_line(),
    notes,
    settings.choices,
    settings.remarks,
    missing,
  )
  lines = [*_verdict(comparison), *missing, *findings.note(comparison, 'Bold')]
  markdown = [result_tables.as_markdown(comparison), *(f'{n}\n' for n in lines)]
  for name, text in {
    'table.md': '\n'.join(markdown),
    'table.tex': result_tables.as_latex(comparison),
    'index.html': page,
  }.items():
    files.write_atomically(folder / name, text.encode())


def _guarantees(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns the guarantees of methods and what they leave out."""
  found = comparison_lib.guarantees(comparison)
  promises = list(found)
  if len(found) > 1:
    promises = [
      f'{", ".join(methods.title(m) for m in of)}: {line}'
      for line, of in found.items()
    ]
  return [*promises, *comparison_lib.caveats(comparison)]


def _verdict(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns the findings, with reservations."""
  return [
    findings.headline(comparison),
    *findings.others(comparison),
    *findings.by_other_metrics(comparison),
    findings.selection(comparison),
    *findings.unequal_privacy(comparison),
  ]


def _show(
  runs: list[comparison_lib.Run],
  notes: Sequence[str],
  settings: tuning.Settings,
  missing: Sequence[str] = (),
) -> None:
  """Writes and prints a comparison.

  Args:
    runs: The runs to compare.
    notes: Sentences on privacy.
    settings: Settings of methods, and how they were chosen.
    missing: Sentences on runs that failed.
  """
  comparison = comparison_lib.compare(
    runs, _METRICS.value, select_flags.SELECT_BY.value
  )
  _write(comparison, notes, settings, missing)
  print(result_tables.as_text(comparison))
  print()
  for line in (*_verdict(comparison), *missing):
    print(line)
  audited = audits.sentences(audits.found(comparison.runs))
  chosen = []
  if settings.choices is not None:
    command = f'The search was: {settings.choices.command}'
    chosen = [*settings.choices.lines(), command]
  lines = [*chosen, *_guarantees(comparison), *audited, *notes]
  for line in dict.fromkeys(lines):
    print(f'\n{line}')
  page = job_flags.output_dir() / 'index.html'
  print(f'\nThe page: {page.resolve()}')


def _missing(failures: Sequence[jobs.Failure]) -> list[str]:
  """Returns which runs failed: without them, a method may look too good."""
  if not failures:
    return []
  diverged = errors.DivergenceError.exit_code
  names = [
    f.job.name + (' (diverged)' if f.exit_code == diverged else '')
    for f in failures
  ]
  return [f'Left out because they failed: {", ".join(names)}.']


def _compare_released(search, arguments, of_methods, grids) -> None:
  """Compares the runs that private searches release."""
  # It releases one run of each method: the default of 3 does not apply.
  num_seeds = _SEEDS.value if flags.FLAGS['seeds'].present else 1
  private_search.check(arguments, of_methods, grids, num_seeds)
  folders, notes = private_search.release(search, arguments, of_methods, grids)
  if not folders:
    for line in (*notes, 'There is no run to compare.'):
      job_flags.say(line)
    sys.exit(1)
  runs = [comparison_lib.load_run(folder) for folder in folders]
  _show(runs, notes, tuning.Settings(of_methods))


def _refuse_flags_of_runs() -> None:
  """Raises if settings of methods were given to this program.

  The flags are only defined here to sort them by method.
  """
  names = [method_flags.METHOD.name]
  for name in methods.names():
    names += method_flags.settings_of(methods.get(name))
  for name in names:
    if flags.FLAGS[name].present:
      raise ValueError(
        f'--{name} is a flag of the training binary: put it after --.'
      )


def _first_jobs(
  arguments: list[str], of_methods: dict[str, list[str]]
) -> list[jobs.Job]:
  """Returns the run of the first seed of each method."""
  return _jobs(arguments, of_methods)[: len(of_methods)][::-1]


def _settings(
  arguments: list[str], of_methods: dict[str, list[str]], grids
) -> tuning.Settings:
  """Returns the settings of each method, after a search if asked for."""
  settings = tuning.read(arguments, of_methods, _RESERVED)
  if not grids:
    dry_runs.check(_first_jobs(arguments, settings.flags))
    return settings
  others = {m: own for m, own in of_methods.items() if m not in grids}
  return tuning.tune(
    arguments, of_methods, grids, _first_jobs(arguments, others)
  )


def main(arguments: list[str]) -> None:
  """Compares; `arguments` are the flags of the training binary."""
  _refuse_flags_of_runs()
  if combining.COMBINE.value is not None:
    combining.combine(arguments, _OF_RUNS, _METRICS.value)
    return
  search = search_flags.build()
  job_flags.refuse(arguments, _RESERVED)
  job_flags.check_metrics(_METRICS.value)
  select_flags.metric()  # It must be known.
  cli.expanded(arguments)  # One error instead of one for each run.
  of_methods = _flags_of_methods()
  method_flags.check_owned(_METHODS.value, arguments)
  grids = tuning.grids(_METHODS.value)
  if search is not None:
    _compare_released(search, arguments, of_methods, grids)
    return
  settings = _settings(arguments, of_methods, grids)
  all_jobs = _jobs(arguments, settings.flags)
  folder = job_flags.output_dir()
  new_jobs = all_jobs
  if set(grids) == set(of_methods) and not audit_flags.arguments():
    # Searches have checked the flags: finished runs need not start.
    new_jobs = [job for job in all_jobs if not job_flags.is_finished(job)]
  if grids and new_jobs:
    job_flags.say(f'Comparison: {len(new_jobs)} runs.')
  failures = job_flags.run(new_jobs, folder / 'logs', _MetricsCheck())
  failed = {failure.job for failure in failures}
  runs = [
    comparison_lib.load_run(job.folder) for job in all_jobs if job not in failed
  ]
  if runs:
    _show(runs, settings.not_covered, settings, _missing(failures))
  if failures:
    sys.exit(1)


if __name__ == '__main__':
  cli.run(main, takes_arguments=True)
