"""Runs the paper's linear regression simulation: cold, warm, PDA-DPMD.

    python -m scripts.run_linear_regression --quick
    python -m scripts.run_linear_regression --output_dir=out/linear_regression
    bazel run //scripts:run_linear_regression -- --quick

Writes Figure 1 of the paper, its table as CSV, and the condition number of the
public Hessian. Each trial is saved when it is done. The same command resumes;
more --num_trials or --dimensions extend the results; --report shows the results
so far.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from collections.abc import Iterator
import concurrent.futures
import itertools
import math
import multiprocessing
import os
import pathlib
import signal
import threading

from absl import flags
import numpy as np
from pda_fed import linear_regression
from pda_fed.common import tables
from scripts.lib import setting_flags
import tqdm

_QUICK = flags.DEFINE_bool(
  'quick',
  False,
  'Run three dimensions, three trials and a small grid, in about a minute.',
)
_REPORT = flags.DEFINE_bool(
  'report',
  False,
  'Run nothing: write the table and figure of the finished trials.',
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir',
  'out/linear_regression',
  'Folder of the trials, the table and the figure.',
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes',
  min(2, os.cpu_count() or 1),
  'Number of trials at a time. Each takes one core and, for p = 6000, about'
  ' 1.5 GB of memory.',
  lower_bound=1,
)

setting_flags.define(linear_regression.SimulationConfig)
flags.adopt_module_key_flags(setting_flags)

_QUICK_SETTINGS = {
  'dimensions': (500, 1000, 2000),
  'num_trials': 3,
  'learning_rates': (30.0, 100.0),
  'mirror_learning_rates': (1000.0, 3000.0),
  'clip_norms': (0.03, 0.1),
  'epochs': (30, 100),
}


def _config() -> linear_regression.SimulationConfig:
  # Flags of the user take precedence.
  quick = _QUICK_SETTINGS if _QUICK.value else {}
  given = setting_flags.given(linear_regression.SimulationConfig)
  return setting_flags.make(
    linear_regression.SimulationConfig, {**quick, **given}
  )


def _start_worker() -> None:
  """Makes a process end with its parent, without a traceback."""
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  parent = multiprocessing.parent_process()

  def end_with_parent() -> None:
    parent.join()
    os._exit(1)

  threading.Thread(target=end_with_parent, daemon=True).start()


def _run(
  config: linear_regression.SimulationConfig,
  todo: list[tuple[int, int]],
) -> Iterator[linear_regression.Trial]:
  """Runs trials, in one or several processes, and yields results."""
  if min(_NUM_PROCESSES.value, len(todo)) <= 1:
    for p, trial in todo:
      yield linear_regression.run_trial(config, p, trial)
    return
  # Libraries read these when a process starts: one core each.
  for name in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS'):
    os.environ[name] = '1'
  with concurrent.futures.ProcessPoolExecutor(
    min(_NUM_PROCESSES.value, len(todo)),
    mp_context=multiprocessing.get_context('spawn'),
    initializer=_start_worker,
  ) as pool:
    futures = [
      pool.submit(linear_regression.run_trial, config, p, trial)
      for p, trial in todo
    ]
    try:
      for future in concurrent.futures.as_completed(futures):
        yield future.result()
    finally:
      pool.shutdown(wait=True, cancel_futures=True)


def _simulate(
  config: linear_regression.SimulationConfig,
  store: linear_regression.TrialStore,
  folder: pathlib.Path,
) -> list[linear_regression.Trial]:
  # First one trial of every p: even a partial run gives a whole figure.
  places = list(itertools.product(range(config.num_trials), config.dimensions))
  trials, todo = [], []
  for trial, p in places:
    found = store.load(p, trial)
    if found is None:
      todo.append((p, trial))
    else:
      trials.append(found)
  if _REPORT.value:
    if not trials:
      raise ValueError(f'--report needs trials. Found none in {folder}.')
    return trials
  with tqdm.tqdm(
    total=len(places), initial=len(trials), unit='trial', disable=None
  ) as bar:
    for trial in _run(config, todo):
      store.save(trial)
      trials.append(trial)
      bar.set_postfix(p=trial.p, seconds=round(trial.seconds))
      bar.update()
  return trials


def _condition_numbers(
  trials: list[linear_regression.Trial],
) -> dict[int, float]:
  found = {}
  for trial in sorted(trials, key=lambda t: (t.p, t.trial)):
    if math.isfinite(trial.condition_number):
      found.setdefault(trial.p, []).append(trial.condition_number)
  return {p: float(np.mean(values)) for p, values in found.items()}


def _print_table(
  summaries: list[linear_regression.Summary],
  condition_numbers: dict[int, float],
) -> None:
  def show(value: float) -> str:
    return '' if math.isnan(value) else f'{value:g}'

  rows = [
    (
      s.p,
      s.method,
      s.num_trials,
      f'{s.loss:.4f}',
      f'{s.half_width:.4f}',
      f'{s.population_loss:.4f}',
      show(s.best.regularization),
      show(s.best.learning_rate),
      show(s.best.clip_norm),
      s.best.epochs or '',
    )
    for s in summaries
  ]
  header = ['p', 'method', 'trials', 'loss', '+-', 'population']
  header += ['ridge', 'rate', 'clip', 'epochs']
  print(tables.format_table(header, rows))
  by_name = {(s.p, s.method): s for s in summaries}
  rows = []
  for p in sorted({s.p for s in summaries}):
    warm, pda = by_name.get((p, 'warm')), by_name.get((p, 'pda'))
    if warm is None or pda is None:
      continue
    mean, half_width = linear_regression.paired_difference(warm, pda)
    condition = condition_numbers.get(p, math.nan)
    rows.append((p, f'{mean:.5f}', f'{half_width:.5f}', f'{condition:.0f}'))
  if rows:
    print()
    header = ['p', 'warm - PDA, same trials', '+-', 'condition of Hessian']
    print(tables.format_table(header, rows))


def main() -> None:
  """Runs with the flags' settings."""
  config = _config()
  folder = pathlib.Path(_OUTPUT_DIR.value)
  if _QUICK.value and not flags.FLAGS['output_dir'].present:
    folder = folder.with_name(folder.name + '_quick')
  store = linear_regression.TrialStore(folder, config)
  smallest = min(config.dimensions)
  if config.num_public(smallest) < smallest:
    print(
      f'{config.num_public(smallest)} public samples for p = {smallest}: the'
      ' public Hessian is only invertible with --regularizations.\n'
    )
  trials = _simulate(config, store, folder)
  summaries = linear_regression.summarize(trials)
  condition_numbers = _condition_numbers(trials)
  store.write_tables(summaries)
  paths = linear_regression.plot_simulation(
    summaries, condition_numbers, folder / 'figure_1'
  )
  print(
    f'Mean squared error on {config.num_private:,} private samples, best of the'
    f' grid; mean and 95 % interval over trials; epsilon ='
    f' {config.epsilon:g}, delta = {config.delta:g} (noise: {config.noise}).\n'
  )
  _print_table(summaries, condition_numbers)
  names = [folder / 'summary.csv', *paths]
  print(f'\nWritten: {", ".join(str(name) for name in names)}')


if __name__ == '__main__':
  cli.run(main)
