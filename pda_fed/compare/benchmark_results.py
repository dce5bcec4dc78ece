"""The benchmark's results: a table, a figure and CSV files of all runs.

Results show how much better methods are than a warm start, by the metric that
chose their settings.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import math
import pathlib
import shlex
from typing import Any

from pda_fed import methods as methods_lib
from pda_fed.common import files
from pda_fed.compare import benchmark_tasks
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import figures
from pda_fed.compare import findings
from pda_fed.compare import grids as grids_lib
from pda_fed.compare import names
from pda_fed.compare import report as report_lib
from pda_fed.compare import search
from pda_fed.compare import tables
from pda_fed.compare import verdicts
from pda_fed.runs.engines import base as engine_lib

_BASELINE = 'warm'


@dataclasses.dataclass(frozen=True, eq=False)
class TaskResult:
  """The results of a task.

  Attributes:
    task: The task, with the compared methods only.
    folder: The folder of the comparison, with the search of each method.
    report: The report of the final runs.
  """

  task: benchmark_tasks.Task
  folder: pathlib.Path
  report: report_lib.Report

  @property
  def comparison(self) -> comparison_lib.Comparison:
    return self.report.comparison

  @property
  def metric(self) -> str:
    """The metric that the table shows, by which searches chose settings."""
    return self.comparison.selected

  def gains(self) -> dict[str, verdicts.Difference]:
    """Returns how much better methods are than a warm start, seed by seed.

    Returns:
      Gains by method, as tables show them; positive is better. Methods that
      diverged are left out. Empty without a warm start.
    """
    factor = names.sign(self.metric) * names.scale(self.metric)
    values = {
      method: {seed: factor * v for seed, v in of[self.metric].items()}
      for method, of in self.comparison.values.items()
      if all(map(math.isfinite, of[self.metric].values()))
    }
    baseline = values.pop(_BASELINE, None)
    if baseline is None:
      return {}
    return {m: verdicts.difference(of, baseline) for m, of in values.items()}

  def rows(self) -> list[list[str]]:
    """Returns a row for each method: mean, gain and number of trials."""
    gains, rows = self.gains(), []
    choices = self.report.choices.methods.items()
    trials = {methods_lib.get(n).name: str(c.trials) for n, c in choices}
    for method, scores in self.comparison.scores.items():
      score, shown = scores[self.metric], ''
      text = names.format_value(self.metric, score.mean)
      if score.wins and not self.report.missing:
        text = tables.Best(text)
      if method in gains:
        gain, digits = gains[method], names.decimals(self.metric, score.mean)
        ends = () if gain.low is None else (gain.low, gain.high)
        # Shows -0.00 as +0.00.
        mean, *rest = (
          f'{round(x, digits) + 0.0:+.{digits}f}' for x in (gain.mean, *ends)
        )
        shown = ', '.join([mean, *([' to '.join(rest)] if rest else [])])
      first = [self.task.name, names.method_title(method)]
      title = names.metric_title(self.metric, self.comparison.known)
      rows.append([*first, title, text, shown, trials.get(method, '')])
    return rows

  def lines(self) -> list[str]:
    """Returns the verdict, and violations of the task's rules."""
    found = [findings.headline(self.comparison)]
    found += findings.unequal_privacy(self.comparison)
    epsilon, wanted = self.comparison.epsilon, self.task.epsilon
    is_kept = epsilon is not None and epsilon <= wanted
    if not is_kept and not comparison_lib.is_same_epsilon(epsilon, wanted):
      shown = names.format_epsilon(epsilon)
      found.append(f'epsilon is {shown}, but the task allows {wanted:g}.')
    return [f'{self.task.name}: {n}' for n in (*found, *self.report.missing)]


def of_tasks(results: Sequence[TaskResult]) -> tables.Table:
  """Returns the table: a row for each task and method."""
  header = ['task', 'method', 'metric', 'mean', 'gain, 95 % interval', 'trials']
  rows = [row for result in results for row in result.rows()]
  return tables.Table(header, rows, left=(0, 1, 2))


def _metrics(found: Mapping[str, Any]) -> dict[str, Any]:
  return {metric: found.get(metric) for metric in engine_lib.METRICS}


def _as_text(settings: Mapping[str, Any]) -> str:
  words = grids_lib.as_flags(settings)
  return shlex.join(word.removeprefix('--') for word in words)


def _trials(result: TaskResult) -> Iterator[dict[str, Any]]:
  """Yields a row for each trial of each method, with validation metrics."""
  for method, grid in result.task.grids.items():
    chosen = dict(result.report.choices.methods[method].settings)
    for cell in grids_lib.cells(grid):
      cells = result.folder / 'tuning' / method / 'cells'
      found = search.look(cell, cells / grids_lib.cell_name(cell))
      yield {
        'task': result.task.name,
        'method': method,
        'settings': _as_text(cell),
        'chosen': 'yes' if cell == chosen else 'no',
        **_metrics(found.metrics or {}),  # A run that diverged has none.
      }


def _finals(result: TaskResult) -> Iterator[dict[str, Any]]:
  """Yields a row for each tested warm start and final run."""
  empty = dict.fromkeys(
    ['settings', 'epsilon', 'delta', 'trials', 'validation']
  )
  public = result.comparison.values.get(names.PUBLIC, {})
  for seed in public.get(result.metric, {}):
    yield {
      'task': result.task.name,
      'method': 'public',
      'seed': seed,
      **empty,
      'epsilon': 0.0,
      **_metrics({metric: of[seed] for metric, of in public.items()}),
    }
  for method, choice in result.report.choices.methods.items():
    for run in result.comparison.runs.get(methods_lib.get(method).name, []):
      yield {
        'task': result.task.name,
        'method': method,
        'seed': run.seed,
        'settings': _as_text(choice.settings),
        'epsilon': run.epsilon,
        'delta': run.plan.delta,
        'trials': choice.trials,
        'validation': choice.value,
        **_metrics(run.result['test']),
      }


def final_csv(results: Sequence[TaskResult]) -> str:
  """Returns a row for each final run, with its test metrics.

  Warm starts, if they were tested, have rows of a method `public`.
  """
  return search.to_csv([row for result in results for row in _finals(result)])


def write(results: Sequence[TaskResult], folder: pathlib.Path) -> None:
  """Writes table.md, search.csv, final.csv, gains.png and gains.svg.

  Args:
    results: The results of tasks, at least one.
    folder: The output folder.

  Raises:
    ImportError: If matplotlib is not installed. The text files are written.
  """
  how = (
    'Test means over seeds. Gain: how much better a method is than warm start,'
    ' seed by seed, with the 95 % interval (paired t). Trials: the number of'
    " settings that a method's search tried. Bold: clearly better than every"
    ' other method.'
  )
  lines = [line for result in results for line in result.lines()]
  for name, text in {
    'table.md': of_tasks(results).as_markdown([how, *lines]),
    'search.csv': search.to_csv([row for of in results for row in _trials(of)]),
    'final.csv': final_csv(results),
  }.items():
    files.write_atomically(folder / name, text.encode())
  draw(results, folder)


def draw(results: Sequence[TaskResult], folder: pathlib.Path) -> None:
  """Draws gains over warm start, a panel for each task that has one."""
  panels = []
  for result in results:
    gains = result.gains()
    # Public data alone is often far from all methods.
    gains.pop(names.PUBLIC, None)
    unit = names.points(result.metric).replace(' ', ', ')
    name = names.metric_name(result.metric, result.comparison.known)
    title = f'{result.task.title}, epsilon {result.task.epsilon:g}'
    if gains:
      panels.append((title, f'gain in {name}{unit}', gains))
  if panels:
    figures.draw_gains(panels, folder)
