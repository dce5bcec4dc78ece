"""The benchmark's results: a table, a figure and CSV files of all runs.

A task's folder is the output folder of `scripts/compare`, including the search
of each method. Results show how much better methods are than a warm start, by
the metric that chose their settings.
"""

from collections.abc import Iterator, Mapping, Sequence
import csv
import dataclasses
import io
import math
import pathlib
import shlex
from typing import Any, Optional

from pda_fed import methods as methods_lib
from pda_fed.common import files
from pda_fed.compare import benchmark_tasks
from pda_fed.compare import choices as choices_lib
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import figures
from pda_fed.compare import grids as grids_lib
from pda_fed.compare import names
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
    folder: The folder of the comparison.
    comparison: The comparison of the final runs.
    choices: The settings that searches chose, by method as flags name it.
  """

  task: benchmark_tasks.Task
  folder: pathlib.Path
  comparison: comparison_lib.Comparison
  choices: choices_lib.Choices

  @property
  def title(self) -> str:
    """The title in tables."""
    return f'{self.task.title}, epsilon {self.task.epsilon:g}'

  @property
  def metric(self) -> str:
    """The metric that the table shows, by which searches chose settings."""
    return self.comparison.selected

  @property
  def metric_title(self) -> str:
    return names.metric_title(self.metric, self.comparison.known)

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

  def score(self, method: str) -> tuple[str, str]:
    """Returns the mean of a method on the task, and its gain, for tables."""
    if method not in self.comparison.scores:
      return '', ''
    score = self.comparison.scores[method][self.metric]
    text = names.format_value(self.metric, score.mean)
    if score.wins and not self.missing_seeds():
      text = tables.Best(text)
    gain = self.gains().get(method)
    if gain is None:
      return text, ''
    ends = () if gain.low is None else (gain.low, gain.high)
    digits = names.decimals(self.metric, score.mean)
    # Shows -0.00 as +0.00.
    mean, *shown = (
      f'{round(value, digits) + 0.0:+.{digits}f}'
      for value in (gain.mean, *ends)
    )
    return text, ', '.join([mean, *([' to '.join(shown)] if shown else [])])

  def trials(self, method: str) -> Optional[int]:
    """Returns how many settings a method tried; None without a search."""
    for name, choice in self.choices.methods.items():
      if methods_lib.get(name).name == method:
        return choice.trials
    return None

  def missing_seeds(self) -> list[str]:
    """Returns warnings about methods with failed or unfinished seeds."""
    runs = self.comparison.runs.items()
    seeds = {method: {run.seed for run in of} for method, of in runs}
    most = set.union(*seeds.values())
    return [
      f'{self.task.name}: {names.method_title(method)} has'
      f' {len(found)} of {len(most)} seeds. The rest failed or are not'
      ' finished, so its mean is not comparable.'
      for method, found in seeds.items()
      if found != most
    ]


def load(
  folder: pathlib.Path, task: benchmark_tasks.Task
) -> Optional[TaskResult]:
  """Reads the results of `scripts/compare` for a task.

  Args:
    folder: The --output_dir of scripts/compare.
    task: The task, with the methods to compare.

  Returns:
    The results of the methods whose searches are finished. None if there are
    none, or no tested runs.

  Raises:
    OutputError: If a file is damaged.
    ValueError: If runs use different data, or chosen.json is invalid.
  """
  note = folder / 'chosen.json'
  if not note.exists() or not any(folder.glob('runs/*/result.json')):
    return None
  chosen = files.read_json(note).get('methods', ())
  compared = [method for method in task.grids if method in chosen]
  if not compared:
    return None
  choices = choices_lib.load(note, compared)
  runs = comparison_lib.load_runs(folder)
  comparison = comparison_lib.compare(runs, task.metrics, task.select_by)
  return TaskResult(task.only(compared), folder, comparison, choices)


def _comparisons(
  results: Sequence[TaskResult],
) -> dict[str, comparison_lib.Comparison]:
  return {result.task.name: result.comparison for result in results}


def of_tasks(results: Sequence[TaskResult]) -> tables.Table:
  """Returns the table: a row for each task and method."""
  rows = []
  for result in results:
    for method in result.comparison.scores:
      first = [result.task.name, names.method_title(method)]
      trials = result.trials(method)
      last = '' if trials is None else str(trials)
      row = [*first, result.metric_title, *result.score(method), last]
      rows.append(row)
  header = ['task', 'method', 'metric', 'mean', 'gain, 95 % interval', 'trials']
  return tables.Table(header, rows, left=(0, 1, 2))


def lines(results: Sequence[TaskResult]) -> list[str]:
  """Returns the verdict of each task, and violations of the task's rules.

  Args:
    results: The results of tasks.
  """
  found = tables.lines_of_several(_comparisons(results))
  for result in results:
    epsilon, wanted = result.comparison.epsilon, result.task.epsilon
    is_kept = epsilon is not None and epsilon <= wanted
    if not is_kept and not comparison_lib.is_same_epsilon(epsilon, wanted):
      found.append(
        f'{result.task.name}: epsilon is {names.format_epsilon(epsilon)}, but'
        f' the task allows {wanted:g}.'
      )
    found += result.missing_seeds()
  return found


def as_markdown(results: Sequence[TaskResult]) -> str:
  """Returns the table, the verdicts, and a table of all metrics."""
  how = (
    'Test means over seeds. Gain: how much better a method is than warm'
    ' start, seed by seed, with the 95 % interval (paired t). Trials: the'
    " number of settings that a method's search tried. Bold: clearly better"
    ' than every other method.'
  )
  document = tables.as_document(of_tasks(results), [how, *lines(results)])
  return f'{document}\n{tables.of_several(_comparisons(results)).as_markdown()}'


def _format(value: Any) -> str:
  if value is None:
    return ''
  return f'{value:.9g}' if isinstance(value, float) else str(value)


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
  text = io.StringIO()
  writer = csv.DictWriter(text, list(rows[0]), lineterminator='\n')
  writer.writeheader()
  writer.writerows(
    {name: _format(value) for name, value in row.items()} for row in rows
  )
  return text.getvalue()


def _metrics(found: Mapping[str, Any]) -> dict[str, Any]:
  return {metric: found.get(metric) for metric in engine_lib.METRICS}


def _as_text(settings: Mapping[str, Any]) -> str:
  words = grids_lib.as_flags(settings)
  return shlex.join(word.removeprefix('--') for word in words)


def search_csv(results: Sequence[TaskResult]) -> str:
  """Returns a row for each trial of each method, with its validation metrics.

  Args:
    results: The results of tasks.
  """
  rows = []
  for result in results:
    for method, grid in result.task.grids.items():
      chosen = dict(result.choices.methods[method].settings)
      for cell in grids_lib.cells(grid):
        cells = result.folder / 'tuning' / method / 'cells'
        found = search.look(cell, cells / grids_lib.cell_name(cell))
        rows.append(
          {
            'task': result.task.name,
            'method': method,
            'settings': _as_text(cell),
            'chosen': 'yes' if cell == chosen else 'no',
            # A run that diverged has no metrics.
            **_metrics(found.metrics or {}),
          }
        )
  return _as_csv(rows)


def _final_rows(result: TaskResult) -> Iterator[dict[str, Any]]:
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
  for method, choice in result.choices.methods.items():
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

  Args:
    results: The results of tasks.
  """
  return _as_csv([row for result in results for row in _final_rows(result)])


def write(results: Sequence[TaskResult], folder: pathlib.Path) -> None:
  """Writes table.md, search.csv, final.csv, gains.png and gains.svg.

  Args:
    results: The results of tasks, at least one.
    folder: The output folder.

  Raises:
    ImportError: If matplotlib is not installed. The text files are written.
  """
  for name, text in {
    'table.md': as_markdown(results),
    'search.csv': search_csv(results),
    'final.csv': final_csv(results),
  }.items():
    files.write_atomically(folder / name, text.encode())
  draw(results, folder)


def draw(results: Sequence[TaskResult], folder: pathlib.Path) -> None:
  """Draws gains over warm start, a panel for each task.

  Args:
    results: The results of tasks. Tasks without a warm start are left out.
    folder: The folder for `gains.png` and `gains.svg`.
  """
  panels = []
  for result in results:
    gains = result.gains()
    # Public data alone is often far from all methods.
    gains.pop(names.PUBLIC, None)
    unit = names.points(result.metric).replace(' ', ', ')
    name = names.metric_name(result.metric, result.comparison.known)
    if gains:
      panels.append((result.title, f'gain in {name}{unit}', gains))
  if panels:
    figures.draw_gains(panels, folder)
