"""CSV files of all runs of the benchmark."""

from collections.abc import Iterable, Sequence
import csv
import io
import os
import pathlib
import shlex
from typing import Any

from pda_fed import methods as methods_lib
from pda_fed.common import files
from pda_fed.compare import benchmark_results
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import grids as grids_lib
from pda_fed.compare import ranking
from pda_fed.runs.engines import base as engine_lib


def _format(value: Any) -> str:
  if value is None:
    return ''
  return f'{value:.9g}' if isinstance(value, float) else str(value)


def _as_csv(names: Sequence[str], table: Iterable[Sequence[Any]]) -> str:
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(names)
  writer.writerows([_format(value) for value in row] for row in table)
  return text.getvalue()


def _settings(arguments: Sequence[str]) -> str:
  return shlex.join(argument.removeprefix('--') for argument in arguments)


def search_csv(results: Sequence[benchmark_results.TaskResult]) -> str:
  """Returns a row for each trial of each method, with its validation metrics.

  Args:
    results: The results of tasks.
  """
  table = []
  for result in results:
    for method, grid in result.task.grids.items():
      chosen = dict(result.choices.methods[method].settings)
      for cell in grids_lib.cells(grid):
        folder = result.folder / 'tuning' / method / 'cells' / cell.name
        # A run that diverged has no metrics.
        found = ranking.look(cell, folder).metrics or {}
        table.append(
          [
            result.task.name,
            method,
            _settings(cell.arguments),
            'yes' if dict(cell.values) == chosen else 'no',
            *(found.get(metric) for metric in engine_lib.METRICS),
          ]
        )
  names = ['task', 'method', 'settings', 'chosen', *engine_lib.METRICS]
  return _as_csv(names, table)


def _public_rows(result: benchmark_results.TaskResult) -> list[list[Any]]:
  """Returns a row of final.csv for the warm start of each seed."""
  found = {
    metric: comparison_lib.by_seed(result.comparison, metric).get(
      comparison_lib.PUBLIC, {}
    )
    for metric in result.comparison.known
  }
  seeds = found[result.metric]
  return [
    [
      result.task.name,
      'public',
      seed,
      '',
      0.0,
      *(None for _ in ('delta', 'trials', 'validation')),
      *(found.get(metric, {}).get(seed) for metric in engine_lib.METRICS),
    ]
    for seed in seeds
  ]


def final_csv(results: Sequence[benchmark_results.TaskResult]) -> str:
  """Returns a row for each final run, with its test metrics.

  Warm starts, if they were tested, have rows of a method `public`.

  Args:
    results: The results of tasks.
  """
  table = []
  for result in results:
    table += _public_rows(result)
    for method, choice in result.choices.methods.items():
      for run in result.comparison.runs.get(methods_lib.get(method).name, []):
        test = run.result['test']
        table.append(
          [
            result.task.name,
            method,
            run.result['seed'],
            _settings(choice.arguments),
            run.epsilon,
            run.plan.delta,
            choice.trials,
            choice.value,
            *(test.get(metric) for metric in engine_lib.METRICS),
          ]
        )
  names = ['task', 'method', 'seed', 'settings', 'epsilon', 'delta', 'trials']
  return _as_csv([*names, 'validation', *engine_lib.METRICS], table)


def write(
  results: Sequence[benchmark_results.TaskResult], folder: os.PathLike | str
) -> None:
  """Writes table.md, search.csv, final.csv, gains.png and gains.svg.

  Args:
    results: The results of tasks, at least one.
    folder: The output folder.

  Raises:
    ImportError: If matplotlib is not installed. The text files are written.
  """
  folder = pathlib.Path(folder)
  for name, text in {
    'table.md': benchmark_results.as_markdown(results),
    'search.csv': search_csv(results),
    'final.csv': final_csv(results),
  }.items():
    files.write_atomically(folder / name, text.encode())
  benchmark_results.draw(results, folder)
