r"""Compares public-data methods on several tasks, with equal numbers of trials.

    python -m scripts.benchmark --output_dir=out/benchmark --data_dir=data

    python -m scripts.benchmark --output_dir=out/benchmark --data_dir=data \
        --tasks=cifar10_eps2,stackexchange \
        --methods=warm,pda,my_package.my_method --tune=method.weight=0.3,0.6,0.9

For each task, the settings of each method are searched on validation data, and
final runs are evaluated on test data. The first command does so for the methods
that the tasks have grids for. The second compares a new method with two of
them: finished runs are kept. See docs/benchmark.md for the protocol.

The program writes table.md, gains.png, gains.svg, search.csv and final.csv to
--output_dir, and a folder for each task. The same command resumes a benchmark
that was stopped.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from collections.abc import Sequence
import pathlib
import sys
from typing import Optional
import warnings

from absl import flags
from pda_fed import methods
from pda_fed.compare import benchmark_results
from pda_fed.compare import benchmark_tasks
from pda_fed.compare import experiment as experiment_lib
from pda_fed.compare import grids as grids_lib
from pda_fed.compare import jobs
from pda_fed.compare import options as options_lib
from pda_fed.runs import building
from scripts.lib import results
from scripts.lib import setting_flags
from scripts.lib import spec_flags
from scripts.lib import trust_flags

_FOLDER = pathlib.Path(__file__).parent / 'benchmark_tasks'

setting_flags.define(options_lib.BenchmarkOptions)
flags.adopt_module_key_flags(setting_flags)
flags.adopt_module_key_flags(spec_flags)
flags.adopt_module_key_flags(trust_flags)


def _path(task: str) -> pathlib.Path:
  if task.endswith('.json'):
    return pathlib.Path(task)
  path = _FOLDER / f'{task}.json'
  if not path.exists():
    known = ', '.join(sorted(p.stem for p in _FOLDER.glob('*.json')))
    raise ValueError(
      f'tasks must be among {known}, or paths of JSON files. Found {task!r}.'
    )
  return path


def _load(path: pathlib.Path) -> benchmark_tasks.Task:
  """Reads a task, and imports the modules that it names if they are trusted.

  Raises:
    UntrustedCodeError: If only the task's file names a module.
  """
  task, specs = benchmark_tasks.load(path), []
  for method, grid in task.grids.items():
    spec = task.spec(method)
    specs += [spec, spec.with_values(task.search_settings)]
    specs += [spec.with_values({n: v}) for n, vs in grid.items() for v in vs]
  spec_flags.check_modules(specs, str(path))
  for method in task.grids:
    methods.get(method, trust_code=True)
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


def _tasks(options: options_lib.BenchmarkOptions) -> list[benchmark_tasks.Task]:
  """Returns the tasks of the flags."""
  paths = list(map(_path, options.tasks)) or sorted(_FOLDER.glob('*.json'))
  found = list(map(_load, paths))
  known = [task.name for task in found]
  if len(set(known)) < len(known):
    raise ValueError(f'tasks must be distinct. Found {", ".join(known)}.')
  if options.print_runs and len(found) > 1:
    raise ValueError(
      f'--print_runs must be used with one task. Found {", ".join(known)}.'
    )
  for method in options.methods:  # Raises if it does not exist.
    methods.get(method, trust_code=trust_flags.trusts([method]))
  grids = grids_lib.by_owner(options.tune, known, 'tune')
  asked = [t.asked_for(options.methods, grids[t.name]) for t in found]
  for task, before in zip(asked, found, strict=True):
    _check_axes(task, before)
  return asked


def _compare(
  task: benchmark_tasks.Task, options: options_lib.BenchmarkOptions
) -> Optional[benchmark_results.TaskResult]:
  """Searches and compares on a task; returns None if no run succeeded."""
  jobs.say(f'{task.name}:')
  place = {}
  if task.data_dir is not None:
    place = {'data_dir': str(pathlib.Path(options.data_dir) / task.data_dir)}
  folder = options.folder / task.name
  report, _ = experiment_lib.Experiment(
    specs={m: task.spec(m).with_values(place) for m in task.grids},
    output_dir=folder,
    seeds=options.seeds,
    grids=task.grids,
    only_searched=task.search_settings,
    metrics=task.metrics,
    select_by=task.select_by,
    # Tasks that only differ in noise share a warm start.
    warm_start_dir=options.folder / 'warm_start',
    runner=options.runner(trust_code=True),  # Checked here.
    trust_code=True,
    command=cli.command_line(),
  ).run(lambda run: results.show_plan(run, sys.stderr))
  if report is None:
    return None
  results.show_report(report, folder)
  return benchmark_results.TaskResult(task, folder, report)


def _show(
  found: Sequence[benchmark_results.TaskResult], folder: pathlib.Path
) -> None:
  """Writes and prints the results of tasks."""
  try:
    benchmark_results.write(found, folder)
  except ImportError as e:
    warnings.warn(f'No figure: {e}.', stacklevel=1)
  print(f'\n{benchmark_results.of_tasks(found).as_text()}\n')
  for result in found:
    print('\n'.join(result.lines()))
  print(f'\nThe table and the figure: {folder.resolve()}')


def main() -> None:
  """Runs the tasks that the flags name."""
  options = setting_flags.make(options_lib.BenchmarkOptions)
  tasks = _tasks(options)
  results = [_compare(task, options) for task in tasks]
  found = [result for result in results if result is not None]
  if found:
    _show(found, options.folder)
  failed = [
    task.name
    for task, result in zip(tasks, results, strict=True)
    if result is None or result.report.missing
  ]
  if failed:
    cli.fail(f'Not all runs succeeded: {", ".join(failed)}.', exit_code=1)


if __name__ == '__main__':
  cli.run(main)
