"""The benchmark's results: a table, a figure and CSV files of all runs.

A task's folder is the output folder of `scripts/compare`, including the search
of each method. Results show how much better methods are than a warm start, by
the metric that chose their settings.
"""

from collections.abc import Sequence
import dataclasses
import math
import os
import pathlib
from typing import Optional

from pda_fed import methods as methods_lib
from pda_fed.common import files
from pda_fed.common import tables
from pda_fed.compare import benchmark_tasks
from pda_fed.compare import cells as cells_lib
from pda_fed.compare import choices as choices_lib
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import fairness
from pda_fed.compare import figures
from pda_fed.compare import metrics as metrics_lib
from pda_fed.compare import statistics as statistics_lib

_BASELINE = 'warm'
_CHOSEN = 'chosen.json'


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
  def cell(self) -> cells_lib.Cell:
    return cells_lib.Cell(self.task.name, self.comparison)


def load(
  folder: os.PathLike | str, task: benchmark_tasks.Task
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
  folder = pathlib.Path(folder)
  note = folder / _CHOSEN
  if not note.exists() or not any(folder.glob('runs/*/result.json')):
    return None
  chosen = files.read_json(note).get('methods', ())
  compared = [method for method in task.grids if method in chosen]
  if not compared:
    return None
  choices = choices_lib.load(note, compared)
  cell = cells_lib.load_cell(folder, task.metrics, task.select_by)
  return TaskResult(task.only(compared), folder, cell.comparison, choices)


def gains(result: TaskResult) -> dict[str, statistics_lib.Difference]:
  """Returns how much better methods are than a warm start, seed by seed.

  Args:
    result: The result of a task.

  Returns:
    Gains by method; positive is better. Methods that diverged are left out.
    Empty without a warm start.
  """
  values = {
    method: by_seed
    for method, by_seed in comparison_lib.by_seed(
      result.comparison, result.metric
    ).items()
    if all(map(math.isfinite, by_seed.values()))
  }
  baseline = values.pop(_BASELINE, None)
  if baseline is None:
    return {}
  differences = {}
  for method, by_seed in values.items():
    pair = by_seed, baseline
    if not metrics_lib.larger_is_better(result.metric):
      pair = baseline, by_seed
    differences[method] = statistics_lib.difference(*pair)
  return differences


def _format_gain(metric: str, mean: float, gain) -> str:
  """Formats a gain over warm start, with its interval."""
  digits, scale = metrics_lib.decimals(metric, mean), metrics_lib.scale(metric)

  def shown(value: float) -> str:
    # Shows -0.00 as +0.00.
    return f'{round(scale * value, digits) + 0.0:+.{digits}f}'

  text = shown(gain.mean)
  if gain.low is not None:
    text += f', {shown(gain.low)} to {shown(gain.high)}'
  return text


def _score(result: TaskResult, method: str, wins: str) -> tuple[str, str]:
  """Returns the mean of a method on a task, and its gain."""
  if method not in result.comparison.scores:
    return '', ''
  score = result.comparison.scores[method][result.metric]
  text = metrics_lib.format_value(result.metric, score.mean)
  is_whole = not _missing_seeds(result)
  text = wins.format(text) if score.wins and is_whole else text
  gain = gains(result).get(method)
  if gain is None:
    return text, ''
  return text, _format_gain(result.metric, score.mean, gain)


def _cell(result: TaskResult, method: str, wins: str) -> str:
  mean, gain = _score(result, method, wins)
  return f'{mean} ({gain})' if gain else mean


def _trials(results: Sequence[TaskResult], method: str) -> str:
  """Returns how many settings a method tried on each task."""
  if method == comparison_lib.PUBLIC:
    return ''
  numbers = {
    choice.trials
    for result in results
    for name, choice in result.choices.methods.items()
    if methods_lib.get(name).name == method
  }
  if not numbers:  # There are runs without a search.
    return ''
  return ' to '.join(map(str, sorted({min(numbers), max(numbers)})))


def header(results: Sequence[TaskResult]) -> list[str]:
  """Returns the names of the table's columns."""
  columns = [
    f'{r.title}: {metrics_lib.title_of(r.metric, r.comparison.known)}'
    for r in results
  ]
  return ['method', *columns, 'trials']


def rows(results: Sequence[TaskResult], wins: str = '{}') -> list[list[str]]:
  """Returns the table's rows, one for each method.

  Args:
    results: The results of tasks, at least one.
    wins: A format string for the mean of a clear winner.
  """
  table = []
  for method in cells_lib.methods_of([r.cell for r in results]):
    table.append(
      [
        comparison_lib.title_of(method),
        *(_cell(result, method, wins) for result in results),
        _trials(results, method),
      ]
    )
  return table


def lines(results: Sequence[TaskResult]) -> list[str]:
  """Returns the verdict of each task, and violations of the task's rules.

  Args:
    results: The results of tasks.
  """
  found = cells_lib.lines([result.cell for result in results])
  for result in results:
    epsilon, wanted = result.comparison.epsilon, result.task.epsilon
    is_kept = epsilon is not None and epsilon <= wanted
    if not is_kept and not fairness.is_same(epsilon, wanted):
      shown = fairness.format_epsilon(epsilon)
      found.append(
        f'{result.task.name}: epsilon is {shown}, but the task allows'
        f' {wanted:g}.'
      )
    found += _missing_seeds(result)
  return found


def _missing_seeds(result: TaskResult) -> list[str]:
  """Returns warnings about methods with failed or unfinished seeds."""
  seeds = {
    method: {run.result['seed'] for run in runs}
    for method, runs in result.comparison.runs.items()
  }
  most = set.union(*seeds.values())
  return [
    f'{result.task.name}: {comparison_lib.title_of(method)} has'
    f' {len(found)} of {len(most)} seeds. The rest failed or are not'
    ' finished, so its mean is not comparable.'
    for method, found in seeds.items()
    if found != most
  ]


def as_text(results: Sequence[TaskResult]) -> str:
  """Returns the table for a terminal: a line for each task and method."""
  table = [
    [
      result.task.name,
      comparison_lib.title_of(method),
      metrics_lib.title_of(result.metric, result.comparison.known),
      *_score(result, method, '{}'),
      _trials([result], method),
    ]
    for result in results
    for method in result.comparison.scores
  ]
  names = ['task', 'method', 'metric', 'mean', 'gain, 95 % interval', 'trials']
  return tables.format_table(names, table)


def as_markdown(results: Sequence[TaskResult]) -> str:
  """Returns the table, the verdicts, and a table of all metrics."""
  names = header(results)
  main = tables.format_markdown(
    names, rows(results, '**{}**'), 'l' + 'r' * (len(names) - 1)
  )
  cells = [result.cell for result in results]
  how = (
    'Test means over seeds. In brackets: how much better a method is than warm'
    ' start, seed by seed, with the 95 % interval (paired t). Tries: the number'
    " of settings that a method's search tried on each task."
  )
  return '\n'.join(
    [
      main,
      *(f'{line}\n' for line in [how, *lines(results), *cells_lib.note(cells)]),
      cells_lib.as_markdown(cells),
    ]
  )


def draw(results: Sequence[TaskResult], folder: os.PathLike | str) -> None:
  """Draws gains over warm start, a panel for each task.

  Args:
    results: The results of tasks. Tasks without a warm start are left out.
    folder: The folder for `gains.png` and `gains.svg`.
  """
  panels = []
  for result in results:
    found = gains(result)
    # Public data alone is often far from all methods.
    found.pop(comparison_lib.PUBLIC, None)
    scale = metrics_lib.scale(result.metric)
    scaled = {m: _scaled(gain, scale) for m, gain in found.items()}
    name = metrics_lib.name_of(result.metric, result.comparison.known)
    unit = ', points' if scale != 1 else ''
    if scaled:
      panels.append((result.title, f'gain in {name}{unit}', scaled))
  for suffix in ('png', 'svg') if panels else ():
    figures.draw_gains(panels, pathlib.Path(folder) / f'gains.{suffix}')


def _scaled(gain: statistics_lib.Difference, scale: float):
  ends = {
    name: None if getattr(gain, name) is None else scale * getattr(gain, name)
    for name in ('mean', 'low', 'high')
  }
  return dataclasses.replace(gain, **ends)
