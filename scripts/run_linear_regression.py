"""Runs the paper's linear regression simulation: cold, warm, PDA-DPMD.

    python -m scripts.run_linear_regression --quick
    python -m scripts.run_linear_regression --output_dir=out/linear_regression
    bazel run //scripts:run_linear_regression -- --quick

Writes Figure 1 of the paper, its table as CSV, and the condition number of the
public Hessian. Each trial is saved when it is done. The same command resumes;
more --trials or --dimensions extend the results; --report shows the results so
far.
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
import tqdm

_DEFAULTS = linear_regression.SimulationConfig()


def _list_flag(name: str, help_text: str) -> flags.FlagHolder:
  default = [f'{value:g}' for value in getattr(_DEFAULTS, name)]
  return flags.DEFINE_list(name, default, help_text)


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
_DIMENSIONS = _list_flag(
  'dimensions', 'Values of p, the number of coefficients.'
)
_TRIALS = flags.DEFINE_integer(
  'trials', _DEFAULTS.num_trials, 'Number of trials for each p.'
)
_NUM_PRIVATE = flags.DEFINE_integer(
  'num_private', _DEFAULTS.num_private, 'Number of private samples.'
)
_PUBLIC_FACTOR = flags.DEFINE_float(
  'public_factor',
  _DEFAULTS.public_factor,
  'Number of public samples divided by p.',
)
_EPSILON = flags.DEFINE_float(
  'epsilon', _DEFAULTS.epsilon, 'The epsilon of each run.'
)
_DELTA = flags.DEFINE_float('delta', _DEFAULTS.delta, 'The delta of each run.')
_NOISE = flags.DEFINE_enum(
  'noise',
  _DEFAULTS.noise,
  ['algorithm_1', 'tight'],
  'algorithm_1: the formula of Algorithm 1. tight: the least noise that PLD'
  ' accounting allows.',
)
_LEARNING_RATES = _list_flag(
  'learning_rates', 'Learning rates of DP-SGD, with cold and warm start.'
)
_MIRROR_LEARNING_RATES = _list_flag(
  'mirror_learning_rates', 'Learning rates of PDA-DPMD.'
)
_CLIP_NORMS = _list_flag(
  'clip_norms', "Values of L, the bound on a gradient's norm."
)
_EPOCHS = _list_flag('epochs', 'Values of T, the number of full-batch steps.')
_REGULARIZATIONS = _list_flag(
  'regularizations',
  'Values to add to the diagonal of X^T X of the public data.',
)
_METHODS = flags.DEFINE_multi_enum(
  'method',
  list(_DEFAULTS.methods),
  list(linear_regression.METHODS),
  'A method to run.',
)
_COLD_STDDEV = flags.DEFINE_float(
  'cold_stddev',
  _DEFAULTS.cold_stddev,
  'Standard deviation of the random initial point. 0 starts at the origin.',
)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Seed of all random choices.', lower_bound=0
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes',
  min(2, os.cpu_count() or 1),
  'Number of trials at a time. Each takes one core and, for p = 6000, about'
  ' 1.5 GB of memory.',
  lower_bound=1,
)

_QUICK_SETTINGS = {
  'dimensions': (500, 1000, 2000),
  'num_trials': 3,
  'learning_rates': (30.0, 100.0),
  'mirror_learning_rates': (1000.0, 3000.0),
  'clip_norms': (0.03, 0.1),
  'epochs': (30, 100),
}


def _numbers(flag: flags.FlagHolder, kind: type) -> tuple:
  try:
    return tuple(kind(value) for value in flag.value)
  except ValueError as e:
    raise ValueError(
      f'--{flag.name} must be numbers separated by commas. Found'
      f' {",".join(flag.value)!r}.'
    ) from e


def _config() -> linear_regression.SimulationConfig:
  settings = {
    'dimensions': _numbers(_DIMENSIONS, int),
    'num_trials': _TRIALS.value,
    'num_private': _NUM_PRIVATE.value,
    'public_factor': _PUBLIC_FACTOR.value,
    'epsilon': _EPSILON.value,
    'delta': _DELTA.value,
    'noise': _NOISE.value,
    'learning_rates': _numbers(_LEARNING_RATES, float),
    'mirror_learning_rates': _numbers(_MIRROR_LEARNING_RATES, float),
    'clip_norms': _numbers(_CLIP_NORMS, float),
    'epochs': _numbers(_EPOCHS, int),
    'regularizations': _numbers(_REGULARIZATIONS, float),
    'methods': tuple(_METHODS.value),
    'cold_stddev': _COLD_STDDEV.value,
    'seed': _SEED.value,
  }
  if _QUICK.value:
    for name, value in _QUICK_SETTINGS.items():
      flag = flags.FLAGS['trials' if name == 'num_trials' else name]
      if not flag.present:  # Flags of the user take precedence.
        settings[name] = value
  return linear_regression.SimulationConfig(**settings)


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
