r"""Compares public-data methods on several tasks, with equal numbers of trials.

    python -m scripts.benchmark --output_dir=out/benchmark --data_dir=data

    python -m scripts.benchmark --output_dir=out/benchmark --data_dir=data \
        --tasks=cifar10_eps2,stackexchange --methods=my_package.my_method \
        --tune=method.weight=0.3,0.6,0.9

For each task, the settings of each method are searched on validation data, and
final runs are evaluated on test data. The first command does so for the methods
that the tasks have grids for. The second adds a method to existing results:
finished runs are kept, and the new table has all methods. See docs/benchmark.md
for the protocol.

The program writes table.md, gains.png, gains.svg, search.csv and final.csv to
--output_dir, and a folder for each task. The same command resumes a benchmark
that was stopped.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
import pathlib
import sys
import warnings

from absl import flags
from pda_fed import errors
from pda_fed import methods
from pda_fed.compare import benchmark_files
from pda_fed.compare import benchmark_results
from pda_fed.compare import benchmark_tasks
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import experiment as experiment_lib
from pda_fed.compare import running
from pda_fed.runs import building
from scripts.lib import pages
from scripts.lib import results as results_lib
from scripts.lib import spec_flags
from scripts.lib import trust_flags

_FOLDER = pathlib.Path(__file__).parent / 'benchmark_tasks'

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder of the runs and results. Finished runs are kept.'
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', 'data', 'Folder of the data of all tasks.'
)
_TASKS = flags.DEFINE_list(
  'tasks',
  [],
  'Tasks: names of files in scripts/benchmark_tasks, or paths of such files.'
  ' Default: all files in that folder.',
)
_METHODS = flags.DEFINE_list(
  'methods',
  [],
  'Names or modules of methods. Methods that are already in --output_dir are'
  ' kept. Default: those that a task has grids for.',
)
_TUNE = flags.DEFINE_multi_string(
  'tune',
  [],
  'SETTING=VALUE,..., or TASK:SETTING=VALUE,... for one task: an axis of the'
  " grid of a method that tasks have no grid for. It is added to the task's own"
  ' axes of learning rates.',
)
_SEEDS = flags.DEFINE_integer(
  'seeds',
  3,
  'Number of final runs of each method: seeds 0, 1, ...',
  lower_bound=1,
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes',
  0,
  'Number of runs at a time; see scripts.compare.',
  lower_bound=0,
)
_PRINT_RUNS = flags.DEFINE_bool(
  'print_runs',
  False,
  'Print the flags of the unfinished runs of one task for scripts.train, one'
  ' run per line, and exit.',
)
flags.adopt_module_key_flags(trust_flags)


def _output_dir() -> pathlib.Path:
  if not _OUTPUT_DIR.value:
    raise ValueError('--output_dir must be given.')
  return pathlib.Path(_OUTPUT_DIR.value)


def _note(name: str) -> pathlib.Path:
  """Returns the file that records the methods of a task."""
  return _output_dir() / 'tasks' / f'{name}.json'


def _path(task: str) -> pathlib.Path:
  if task.endswith('.json'):
    return pathlib.Path(task)
  path = _FOLDER / f'{task}.json'
  if not path.exists():
    names = ', '.join(sorted(p.stem for p in _FOLDER.glob('*.json')))
    raise ValueError(
      f'tasks must be among {names}, or paths of JSON files. Found {task!r}.'
    )
  return path


def _import_modules(task: benchmark_tasks.Task, path: pathlib.Path) -> None:
  """Imports the modules that a task names, if they are trusted.

  Raises:
    UntrustedCodeError: If only the task's file names a module.
  """
  specs = []
  for method, grid in task.grids.items():
    spec = task.spec(method)
    specs += [spec, spec.with_values(task.search_settings)]
    specs += [spec.with_values({n: v}) for n, vs in grid.items() for v in vs]
  spec_flags.check_modules(specs, str(path))
  for method in task.grids:
    methods.get(method, trust_code=True)


def _started(task: benchmark_tasks.Task) -> list[str]:
  """Returns the methods of a task that have a run."""
  folder = _output_dir() / task.name / 'tuning'
  return [m for m in task.grids if any(folder.glob(f'{m}/cells/*/config.json'))]


def _with_earlier(task: benchmark_tasks.Task) -> benchmark_tasks.Task:
  """Adds the methods of the folder to a task, and records all of them.

  Raises:
    OutputError: If the folder has a different task of this name.
  """
  note = _note(task.name)
  before = benchmark_tasks.load(note) if note.exists() else None
  if before is not None:
    _import_modules(before, note)
  started = [] if before is None else _started(before)
  if started:
    try:
      task = task.joined_with(before.only(started))
    except ValueError as e:
      raise errors.OutputError(f'{note}: {e} Give another --output_dir.') from e
  note.parent.mkdir(parents=True, exist_ok=True)
  task.write(note)
  return task


def _check_axes(
  task: benchmark_tasks.Task, before: benchmark_tasks.Task
) -> None:
  """Raises if a new method tunes settings besides rates and its own."""
  rates = [name for grid in before.grids.values() for name in grid]
  rates = [name for name in rates if name.endswith('learning_rate')]
  for method in set(task.grids) - set(before.grids):
    own = building.method_settings(methods.get(method))
    known = {*before.rates, *rates, *(f'method.{name}' for name in own)}
    for name in task.grids[method]:
      if name not in known:
        raise ValueError(
          f'tune must be among {", ".join(sorted(known))}: a task fixes all'
          f' other settings for all methods. Found {name!r}.'
        )


def _asked() -> list[benchmark_tasks.Task]:
  """Returns the tasks of the flags, with earlier methods of the folder."""
  paths = list(map(_path, _TASKS.value)) or sorted(_FOLDER.glob('*.json'))
  found = [benchmark_tasks.load(path) for path in paths]
  names = [task.name for task in found]
  if len(set(names)) < len(names):
    raise ValueError(f'tasks must be distinct. Found {", ".join(names)}.')
  if _PRINT_RUNS.value and len(found) > 1:
    raise ValueError(
      f'--print_runs must be used with one task. Found {", ".join(names)}.'
    )
  for task, path in zip(found, paths, strict=True):
    _import_modules(task, path)
  for method in _METHODS.value:  # Raises if it does not exist.
    methods.get(method, trust_code=trust_flags.trusts([method]))
  # Check all tasks before the first record is written.
  grids = benchmark_tasks.grids_by_task(_TUNE.value, names)
  asked = [t.asked_for(_METHODS.value, grids[t.name]) for t in found]
  for task, before in zip(asked, found, strict=True):
    _check_axes(task, before)
  return list(map(_with_earlier, asked))


def _experiment(task: benchmark_tasks.Task) -> experiment_lib.Experiment:
  """Returns the search and the final runs of a task."""
  place = {}
  if task.data_dir is not None:
    place = {'data_dir': str(pathlib.Path(_DATA_DIR.value) / task.data_dir)}
  return experiment_lib.Experiment(
    specs={m: task.spec(m).with_values(place) for m in task.grids},
    output_dir=_output_dir() / task.name,
    seeds=_SEEDS.value,
    grids=task.grids,
    only_searched=task.search_settings,
    select_by=task.select_by,
    # Tasks that only differ in noise share a warm start.
    warm_start_dir=_output_dir() / 'warm_start',
    runner=running.Runner(
      num_processes=_NUM_PROCESSES.value,
      only_prints=_PRINT_RUNS.value,
      options=('--trust_code',),  # Checked here.
    ),
    trust_code=True,
    command=cli.command_line(),
  )


def _compare(task: benchmark_tasks.Task) -> bool:
  """Searches and compares on a task; returns whether all runs succeeded."""
  running.say(f'{task.name}:')
  finished = _experiment(task).run(
    show=lambda run: results_lib.show_plan(run, sys.stderr)
  )
  if finished.folders:
    pages.show(
      [comparison_lib.load_run(folder) for folder in finished.folders],
      _output_dir() / task.name,
      metrics=task.metrics,
      select_by=task.select_by,
      notes=finished.tuned.not_covered,
      tuned=finished.tuned,
      missing=pages.missing(finished.failures),
    )
  return not finished.failures


def _show() -> None:
  """Writes and prints the results of all tasks in the folder."""
  results = []
  for path in sorted(_note('*').parent.glob('*.json')):
    task = benchmark_tasks.load(path)
    _import_modules(task, path)
    result = benchmark_results.load(_output_dir() / task.name, task)
    found = () if result is None else result.task.grids
    missing = [method for method in task.grids if method not in found]
    if missing:
      warnings.warn(
        f'{task.name} lacks {", ".join(missing)}: runs are not finished.',
        stacklevel=1,
      )
    if result is not None:
      results.append(result)
  if not results:
    return
  try:
    benchmark_files.write(results, _output_dir())
  except ImportError as e:
    warnings.warn(f'No figure: {e}.', stacklevel=1)
  print(f'\n{benchmark_results.as_text(results)}\n')
  for line in benchmark_results.lines(results):
    print(line)
  print(f'\nThe table and the figure: {_output_dir().resolve()}')


def main() -> None:
  """Runs the tasks that the flags name."""
  failed = [task.name for task in _asked() if not _compare(task)]
  _show()
  if failed:
    cli.fail(f'Not all runs succeeded: {", ".join(failed)}.', exit_code=1)


if __name__ == '__main__':
  cli.run(main)
