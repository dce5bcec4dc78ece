"""Tables of docs/benchmark.md."""

import collections
from collections.abc import Mapping, Sequence
import functools
import math
import pathlib
import re
import statistics

from pda_fed import methods
from pda_fed.compare import benchmark_tasks
from pda_fed.compare import verdicts

from tools.tables import recorded

_TASKS = pathlib.Path(__file__).parents[2] / 'scripts/benchmark_tasks'
_TEXT = ('stackexchange', 'blogs', 'wikitext2_eps1.71')
_IMAGES = (
  'emnist_eps0.48',
  'cifar10_eps0.185',
  'cifar10_eps2',
  'cifar10_eps3.51',
)
_Values = dict[str, dict[str, float]]


def _column(task: str) -> str:
  found = benchmark_tasks.load(_TASKS / f'{task}.json')
  return f'{found.title}, {found.epsilon:g}'


def _values(task: str, metric: str) -> _Values:
  """Test values by method and seed."""
  found: _Values = {}
  for run in recorded.runs('benchmark/final', task=task):
    if run['method'] != 'public':
      found.setdefault(run['method'], {})[run['seed']] = float(run[metric])
  return found


def _methods(of_tasks: Sequence[_Values]) -> list[str]:
  """The methods of any task: some have no runs for the others."""
  return list(dict.fromkeys(method for of in of_tasks for method in of))


def _cell(
  values: Mapping[str, float], warm: Mapping[str, float], digits: int
) -> str:
  mean = f'{statistics.fmean(values.values()):.{digits}f}'
  if values is warm:
    return mean
  middle, interval = recorded.gain(warm, values, digits, '+')
  return f'{mean} ({middle}, {interval})'


def _wins(method: str, of_task: _Values) -> bool:
  """Whether a method is clearly better than every other one."""
  return all(
    verdicts.difference(values, of_task[method]).is_clear
    for other, values in of_task.items()
    if other != method
  )


def gains(metric: str, tasks: Sequence[str], digits: int) -> recorded.Cells:
  """Returns means and gains over warm start; the winner is bold.

  Args:
    metric: A metric that is better where it is lower.
    tasks: The columns.
    digits: Number of digits after the point.
  """
  cells = {(metric,): [*map(_column, tasks), 'tries']}
  of_tasks = [_values(task, metric) for task in tasks]
  for method in _methods(of_tasks):
    row = []
    for values in of_tasks:
      if method not in values:
        row.append('')
        continue
      cell = _cell(values[method], values['warm'], digits)
      if _wins(method, values):
        mean, _, rest = cell.partition(' ')
        cell = f'**{mean}** {rest}'.strip()
      row.append(cell)
    search = recorded.runs('benchmark/search', method=method)
    counts = collections.Counter(run['task'] for run in search)
    tries = recorded.only(
      (counts[task] for task in tasks if task in counts), 'tries'
    )
    cells[(methods.title(method),)] = [*row, str(tries)]
  return cells


def accuracies(tasks: Sequence[str]) -> recorded.Cells:
  """Returns mean accuracies with standard deviations.

  Args:
    tasks: The columns.
  """
  cells = {('accuracy',): [_column(task) for task in tasks]}
  for method in _methods([_values(task, 'accuracy') for task in tasks]):
    row = []
    for task in tasks:
      found = recorded.runs('benchmark/final', task=task, method=method)
      shown = found and f'{recorded.spread(found, "accuracy", 2, 100)} %'
      row.append(shown or '')
    cells[(methods.title(method),)] = row
  return cells


def conditions() -> recorded.Cells:
  """Returns both methods' results with one changed condition each."""
  cells = {}
  for changed in {
    run['changed'] for run in recorded.runs('benchmark/conditions')
  }:
    found = recorded.runs('benchmark/conditions', changed=changed)
    epsilon = recorded.only(
      (math.ceil(100 * float(run['epsilon'])) / 100 for run in found), 'epsilon'
    )
    row = [f'{epsilon:.2f}', recorded.mean(found, 'public_perplexity', 2)]
    values = {}
    for method in ('warm', 'pda'):
      of_one = [run for run in found if run['method'] == method]
      settings = recorded.only((run['settings'] for run in of_one), 'settings')
      rate = re.search(r'server_learning_rate=(\S+)', settings)
      values[method] = recorded.by_seed(of_one, 'perplexity')
      row += [rate[1], _cell(values[method], values['warm'], 2)]
    cells[(changed,)] = row
  return cells


TABLES = {
  'benchmark perplexity': functools.partial(gains, 'perplexity', _TEXT, 2),
  'benchmark loss': functools.partial(gains, 'loss', _IMAGES, 4),
  'benchmark accuracy': functools.partial(accuracies, _IMAGES),
  'benchmark conditions': conditions,
}
