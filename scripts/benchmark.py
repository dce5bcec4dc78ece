r"""Compares public-data methods on several tasks, with equal numbers of tries.

    python -m scripts.benchmark --output_dir=out/benchmark --data_dir=data

    python -m scripts.benchmark --output_dir=out/benchmark --data_dir=data \
        --tasks=cifar10_eps2,stackexchange --methods=my_package.my_method \
        --tune=my_method_weight=0.3,0.6,0.9

For each task, `scripts.compare --tune` searches the settings of each method on
validation data and evaluates final runs on test data. The first command does so
for the methods that the tasks have grids for. The second adds a method to
existing results: finished runs are kept, and the new table has all methods. See
docs/benchmark.md for the protocol.

The program writes table.md, gains.png, gains.svg, search.csv and final.csv to
--output_dir, and a folder for each task. The same command resumes a benchmark
that was stopped.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
import os
import pathlib
import shlex
import subprocess
import sys
import warnings

from absl import flags
from pda_fed import errors
from pda_fed.compare import benchmark_results
from pda_fed.compare import benchmark_tasks
from pda_fed.compare import sweeping
from scripts.lib import method_flags
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
  'FLAG=VALUE,..., or TASK:FLAG=VALUE,... for one task: an axis of the grid of'
  " a method that tasks have no grid for. It is added to the task's own axes"
  ' of learning rates.',
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
  'Print the flags of the unfinished runs, one run per line, and exit. The'
  ' training binary of the tasks trains them with --runs_file.',
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
    trust_flags.check_words(_arguments(before), str(note))
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
  """Raises if a new method tunes flags besides rates and its settings."""
  rates = sweeping.parse_grid(before.rates)
  for grid in before.grids.values():
    rates |= {
      flag: values
      for flag, values in sweeping.parse_grid(grid).items()
      if flag.endswith('learning_rate')
    }
  for method in set(task.grids) - set(before.grids):
    known = {*rates, *method_flags.settings_of(method_flags.load(method))}
    for flag in sweeping.parse_grid(task.grids[method]):
      if flag not in known:
        raise ValueError(
          f'tune must be among {", ".join(sorted(known))}: a task fixes all'
          f' other flags for all methods. Found {flag!r}.'
        )


def _asked() -> list[benchmark_tasks.Task]:
  """Returns the tasks of the flags, with earlier methods of the folder."""
  paths = list(map(_path, _TASKS.value)) or sorted(_FOLDER.glob('*.json'))
  found = [benchmark_tasks.load(path) for path in paths]
  for path, task in zip(paths, found, strict=True):
    trust_flags.check_words(_arguments(task), str(path))
  names = [task.name for task in found]
  if len(set(names)) < len(names):
    raise ValueError(f'tasks must be distinct. Found {", ".join(names)}.')
  for method in _METHODS.value:
    method_flags.load(method)  # Raises if it does not exist.
  binaries = {task.binary for task in found}
  if _PRINT_RUNS.value and len(binaries) > 1:
    listed = [f'{task.name} ({task.binary})' for task in found]
    raise ValueError(
      '--print_runs must be used with tasks of one training binary. Name them'
      f' with --tasks. Found {", ".join(listed)}.'
    )
  # Check all tasks before the first record is written.
  axes = benchmark_tasks.axes_by_task(_TUNE.value, names)
  asked = [t.asked_for(_METHODS.value, axes[t.name]) for t in found]
  for task, before in zip(asked, found, strict=True):
    _check_axes(task, before)
  return list(map(_with_earlier, asked))


def _arguments(task: benchmark_tasks.Task) -> list[str]:
  """Returns the flags of scripts.compare for a task."""
  folder = _output_dir()
  data_dir = []
  if task.data_dir is not None:
    data_dir = [f'--data_dir={pathlib.Path(_DATA_DIR.value) / task.data_dir}']
  return [
    f'--binary={task.binary}',
    f'--output_dir={folder / task.name}',
    f'--methods={",".join(task.grids)}',
    f'--seeds={_SEEDS.value}',
    f'--num_processes={_NUM_PROCESSES.value}',
    f'--select_by={task.select_by}',
    f'--metrics={",".join(task.metrics)}',
    *(
      f'--tune={method}:{axis}'
      for method, axes in task.grids.items()
      for axis in axes
    ),
    f'--tune_flags={shlex.join(task.search_flags)}',
    *(['--print_runs'] if _PRINT_RUNS.value else []),
    *(['--trust_code'] if trust_flags.trusts() else []),
    '--',
    *task.flags,
    *data_dir,
    # Tasks that only differ in noise share a warm start.
    f'--warm_start_dir={folder / "warm_start"}',
  ]


def _compare(task: benchmark_tasks.Task) -> bool:
  """Searches and compares on a task; returns whether all runs succeeded."""
  words = _arguments(task)
  trust_flags.check_words(words)
  shown = shlex.join([*cli.program('compare'), *words])
  print(f'{task.name}: {shown}', file=sys.stderr, flush=True)
  # Bazel and pda-fed only set sys.path.
  paths = os.pathsep.join(map(os.path.abspath, sys.path))
  environment = {**os.environ, 'PYTHONPATH': paths}
  command = [sys.executable, '-P', '-m', 'scripts.compare', *words]
  process = subprocess.Popen(command, env=environment)
  try:
    return process.wait() == 0
  except KeyboardInterrupt:
    process.wait()  # It gets Ctrl-C too, and saves its runs.
    raise


def _show() -> None:
  """Writes and prints the results of all tasks in the folder."""
  results = []
  for path in sorted(_note('*').parent.glob('*.json')):
    task = benchmark_tasks.load(path)
    for method in task.grids:
      method_flags.load(method, str(path))
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
    benchmark_results.write(results, _output_dir())
  except ImportError as e:
    warnings.warn(f'No figure: {e}.', stacklevel=1)
  print(f'\n{benchmark_results.as_text(results)}\n')
  for line in benchmark_results.lines(results):
    print(line)
  print(f'\nThe table and the figure: {_output_dir().resolve()}')


def main() -> None:
  """Runs the tasks that the flags name."""
  failed = [task.name for task in _asked() if not _compare(task)]
  if not _PRINT_RUNS.value:
    _show()
  if failed:
    cli.fail(f'Not all runs succeeded: {", ".join(failed)}.', exit_code=1)


if __name__ == '__main__':
  cli.run(main)
