r"""Compares methods over seeds: a table, figures and a page.

    python -m scripts.compare --output_dir=out/comparison --seeds=3 -- \
        --data_dir=data/laptop --flagfile=scripts/presets/laptop.flags

    python -m scripts.compare --output_dir=out/tuned --seeds=3 \
        --tune=server_learning_rate=0.5,1 --extend=server_learning_rate \
        --tune=pda:alpha_constant=0.2,0.5,0.8 -- \
        --data_dir=data/laptop --flagfile=scripts/presets/laptop.flags

    python -m scripts.compare --output_dir=out/private \
        --tune=server_learning_rate=0.5,1,3 --private_search=poisson \
        --search_runs=20 -- \
        --data_dir=data/laptop --flagfile=scripts/presets/laptop.flags

    python -m scripts.compare --output_dir=out/table \
        --combine=out/cifar10,out/cifar10_private

What stands after `--` goes to every run of the training binary, and
--method_flags adds flags for one method. With --tune each method first has a
search of its own, by validation alone, and is compared with what it found. With
--private_search as well, the search makes a secret number of runs and releases
the best one alone; epsilon then covers the search. It skips runs that are
finished and resumes those that were stopped. It writes table.md,
table.tex, curves_*.png, curves_*.svg and index.html, one page that needs no
other file. --combine puts finished comparisons into one table and one figure,
as the paper's Table 2.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
import pathlib
import sys
import warnings

from absl import flags
from pda_fed import experiments
from pda_fed import methods
from pda_fed.analysis import audits
from pda_fed.analysis import cells
from pda_fed.analysis import comparison as comparison_lib
from pda_fed.analysis import figures
from pda_fed.analysis import jobs
from pda_fed.analysis import report
from pda_fed.common import files
from scripts.lib import audit_flags
from scripts.lib import grid_search
from scripts.lib import job_flags
from scripts.lib import method_flags
from scripts.lib import private_search
from scripts.lib import search_flags
from scripts.lib import tuning

_METHODS = flags.DEFINE_list(
  'methods',
  'cold,warm,pda',
  f'What is compared: {", ".join(methods.names())}, or modules that define'
  ' methods.',
)
_SEEDS = flags.DEFINE_integer(
  'seeds', 1, 'Seeds of each method: 0, 1, ...', lower_bound=1
)
_METHOD_FLAGS = flags.DEFINE_multi_string(
  'method_flags',
  [],
  'METHOD:FLAGS, for one method alone; for example'
  ' --method_flags="pda:--alpha_i=2 --server_learning_rate=0.5". May be'
  ' repeated.',
)
_METRICS = flags.DEFINE_list(
  'metrics', [], 'Of the final test; by default accuracy and perplexity.'
)
_COMBINE = flags.DEFINE_list(
  'combine',
  None,
  'Folders of finished comparisons: nothing is run, and they become one table,'
  ' table.md and table.tex, and one figure, cells.png and cells.svg. --metrics'
  ' chooses what they show.',
)
# What has a meaning for runs alone.
_OF_RUNS = ('binary', 'method_flags', 'methods', 'num_processes')
_OF_RUNS += ('print_runs', 'seeds', *tuning.NAMES, *search_flags.NAMES)
_OF_RUNS += audit_flags.NAMES
# What this program sets in each run.
_RESERVED = {
  'method': '--methods',
  'seed': '--seeds',
  'output_dir': '--output_dir before --',
  'final_test': 'no flag: runs are compared by it',
  **dict.fromkeys(audit_flags.NAMES, '--audit before --'),
}
flags.adopt_module_key_flags(audit_flags)
flags.adopt_module_key_flags(job_flags)
flags.adopt_module_key_flags(grid_search)
flags.adopt_module_key_flags(tuning)
flags.adopt_module_key_flags(search_flags)


def _flags_of_methods() -> dict[str, list[str]]:
  if not _METHODS.value:
    raise ValueError('methods must have at least one. Found none.')
  for method in _METHODS.value:
    method_flags.define(methods.get(method))
  names = [methods.get(method).name for method in _METHODS.value]
  if len(set(names)) < len(names):
    raise ValueError(f'methods must differ. Found {", ".join(names)}.')
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
      arguments=(
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
    # The last method pre-trains, which takes longest: it comes first.
    for method, own in reversed(of_methods.items())
  ]


class _MetricsCheck:
  """Raises after the first run, not after all, if it lacks a metric."""

  def __init__(self):
    self._num_ended = 0

  def __call__(self, running, ended) -> None:
    del running
    for job in ended[self._num_ended :] if _METRICS.value else ():
      result = experiments.RunFolder(job.folder).read_result()
      if result is not None and result['test'] is not None:
        comparison_lib.check_metrics(list(result['test']), _METRICS.value)
    self._num_ended = len(ended)


def _has_curves(comparison: comparison_lib.Comparison) -> bool:
  names = [f'{p}{m}' for m in comparison.metrics for p in ('', 'test_')]
  runs = [run for group in comparison.runs.values() for run in group]
  rows = [row for run in runs for row in run.rows]
  return any(row.get(name) is not None for row in rows for name in names)


def _write(comparison: comparison_lib.Comparison, notes: list[str]) -> None:
  folder, drawn = job_flags.output_dir(), {}
  try:
    if _has_curves(comparison):
      drawn = figures.draw_comparison(comparison, folder)
    else:
      warnings.warn(
        'No figures: runs without validation data have no curves. Theirs of the'
        ' test are drawn with --test_curve.',
        stacklevel=1,
      )
  except ImportError as e:
    warnings.warn(f'No figures: {e}.', stacklevel=1)
  page = report.build_page(comparison, drawn, job_flags.command_line(), notes)
  for name, text in {
    'table.md': comparison_lib.as_markdown(comparison),
    'table.tex': comparison_lib.as_latex(comparison),
    'index.html': page,
  }.items():
    files.write_atomically(folder / name, text.encode())


def _check_combine(arguments: list[str], folder: pathlib.Path) -> None:
  """Raises if --combine comes with what is for runs."""
  given = [f'--{name}' for name in _OF_RUNS if flags.FLAGS[name].present]
  if given or arguments:
    raise ValueError(
      '--combine runs nothing: it takes --output_dir and --metrics alone, and'
      f' commas between folders. Found {" ".join([*given, *arguments])}.'
    )
  if folder.exists() and not folder.is_dir():
    raise ValueError(f'output_dir must be a folder. Found the file {folder}.')
  if (folder / 'runs').exists():
    raise ValueError(
      f'output_dir must be a folder of its own. Found {folder}, whose tables'
      ' are those of its runs.'
    )


def _combine(arguments: list[str]) -> None:
  """Makes one table and figure of finished comparisons."""
  folder = job_flags.output_dir()
  _check_combine(arguments, folder)
  found = cells.load_cells(_COMBINE.value, _METRICS.value)
  folder.mkdir(parents=True, exist_ok=True)
  files.write_atomically(folder / 'table.md', cells.as_markdown(found).encode())
  files.write_atomically(folder / 'table.tex', cells.as_latex(found).encode())
  print(cells.as_text(found))
  try:
    figures.draw_cells(found, folder)
  except ImportError as e:
    warnings.warn(f'No figures: {e}.', stacklevel=1)
  print(f'\nThe table and the figure: {folder.resolve()}')


def _guarantees(comparison: comparison_lib.Comparison) -> list[str]:
  """What methods promise, named where they differ, and what is left out."""
  found = comparison_lib.guarantees(comparison)
  promises = list(found)
  if len(found) > 1:
    promises = [
      f'{", ".join(methods.title(m) for m in of)}: {line}'
      for line, of in found.items()
    ]
  return [*promises, *comparison_lib.caveats(comparison)]


def _show(
  runs: list[comparison_lib.Run], notes: list[str], said: list[str]
) -> None:
  """Writes a comparison with notes, and prints it with some of them."""
  comparison = comparison_lib.compare(runs, _METRICS.value)
  _write(comparison, notes)
  print(comparison_lib.as_text(comparison))
  audited = audits.sentences(audits.found(comparison.runs))
  for line in dict.fromkeys([*_guarantees(comparison), *audited, *said]):
    print(f'\n{line}')
  page = job_flags.output_dir() / 'index.html'
  print(f'\nThe page: {page.resolve()}')


def _compare_released(search, arguments, of_methods, grids) -> None:
  """Compares the runs that private searches release."""
  private_search.check(arguments, of_methods, grids, _SEEDS.value)
  folders, notes = private_search.release(search, arguments, of_methods, grids)
  if not folders:
    for line in (*notes, 'There is no run to compare.'):
      job_flags.say(line)
    sys.exit(1)
  runs = [comparison_lib.load_run(folder) for folder in folders]
  _show(runs, notes, said=notes)


def main(arguments: list[str]) -> None:
  """Compares; `arguments` are those of the training binary."""
  if _COMBINE.value is not None:
    _combine(arguments)
    return
  search = search_flags.build()
  job_flags.refuse(arguments, _RESERVED)
  job_flags.check_metrics(_METRICS.value)
  cli.expanded(arguments)  # One error instead of one for each run.
  of_methods, notes = _flags_of_methods(), []
  method_flags.check_owned(_METHODS.value, arguments)
  grids = tuning.grids(_METHODS.value)
  if search is not None:
    _compare_released(search, arguments, of_methods, grids)
    return
  if grids:
    of_methods, notes = tuning.tune(arguments, of_methods, grids)
  all_jobs = _jobs(arguments, of_methods)
  folder = job_flags.output_dir()
  failures = job_flags.run(all_jobs, folder / 'logs', _MetricsCheck())
  failed = {failure.job for failure in failures}
  runs = [
    comparison_lib.load_run(job.folder) for job in all_jobs if job not in failed
  ]
  if runs:
    _show(runs, notes, said=notes[-1:])
  if failures:
    sys.exit(1)


if __name__ == '__main__':
  cli.run(main, takes_arguments=True)
