"""Tables of the documentation: which recorded runs their cells show.

A table is a function of no arguments, with the cells of rows by the cells that
a row begins with. None keeps what the page has.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import itertools
import math
import pathlib
import re
from typing import Optional

from pda_fed import methods
from pda_fed.compare import benchmark_tasks
from pda_fed.compare import verdicts

from tools import recorded

_TASKS = pathlib.Path(__file__).parents[1] / 'scripts/benchmark_tasks'
_METHODS = {'cold start': 'cold', 'warm start': 'warm', 'PDA-DPMD': 'pda'}
_Cells = dict[tuple[str, ...], Sequence[Optional[str]]]

# Sample-level privacy. A column is a preset and its runs' noise multiplier;
# None for a column that has no runs.

_CIFAR10 = {
  '*epsilon 3.51*': [None, 'cifar10 1.51', 'cifar10_best 1.4275'],
  '*epsilon 0.185*': [
    None,
    'cifar10_private 20.0',
    'cifar10_private_best 17.941',
  ],
}
_EMNIST = {
  '*sigma 0.41, or epsilon 25.8*': [
    None,
    'emnist 0.41',
    'emnist 0.4982',
    'emnist_best 0.4856',
  ],
  '*sigma 1.89, or epsilon 0.48*': [
    None,
    'emnist_private 1.89',
    'emnist_private 4.5507',
    'emnist_private_best 4.2357',
  ],
}
_WIKITEXT2 = [
  None,
  'wikitext2 0.5',
  'wikitext2_best 0.4824',
  None,
  'wikitext2_private 1.08',
  'wikitext2_private_best 1.0246',
]
_WIKITEXT103 = [None, 'wikitext103 0.83', None, 'wikitext103_private 1.49']


def _by_method(file: str, **wanted: str) -> dict[str, recorded.Runs]:
  found: dict[str, list] = {}
  for run in recorded.runs(file, **wanted):
    found.setdefault(run['method'], []).append(run)
  return found


def _of_column(column: str) -> dict[str, recorded.Runs]:
  preset, noise = column.split()
  wanted = {'preset': preset, 'noise_multiplier': noise, 'in_table': 'yes'}
  found = _by_method('sample_level/test', **wanted)
  return {method: found[method] for method in _METHODS.values()}


def _leads(metric: str, sign: int, method: str, runs: Mapping) -> bool:
  """Whether a method's lead exceeds the standard deviations of both."""
  found = {m: recorded.mean_and_deviation(runs[m], metric) for m in runs}
  mean, deviation = found.pop(method)
  return all(sign * (mean - m) > deviation + d for m, d in found.values())


def _bold(text: str, is_bold: bool) -> str:
  return f'**{text}**' if is_bold else text


def _accuracy_and_loss(method: str, runs: Mapping[str, recorded.Runs]) -> str:
  accuracy = f'{recorded.spread(runs[method], "accuracy", 2, 100)} %'
  loss = recorded.spread(runs[method], 'loss', 3)
  leads = [
    _leads('accuracy', 1, method, runs),
    _leads('loss', -1, method, runs),
  ]
  if all(leads):
    return f'**{accuracy}, {loss}**'
  return f'{_bold(accuracy, leads[0])}, {_bold(loss, leads[1])}'


def _loss(method: str, runs: Mapping[str, recorded.Runs]) -> str:
  shown = recorded.mean(runs[method], 'loss', 4)
  return _bold(shown, _leads('loss', -1, method, runs))


def _sample_level(
  show: Callable, groups: Mapping[str, Sequence[Optional[str]]]
) -> _Cells:
  """Returns the rows of the three methods, with the leader in bold."""
  return {
    (*filter(None, [group]), title): [
      column and show(method, _of_column(column)) for column in columns
    ]
    for group, columns in groups.items()
    for title, method in _METHODS.items()
  }


def _means_of_cifar10() -> _Cells:
  """Returns rows of both settings; the paper's column stays."""
  cells = {}
  for group, columns in _CIFAR10.items():
    for setting, column in zip(
      ("the paper's", 'with augmentation'), columns[1:], strict=True
    ):
      cells[group.strip('*').split()[1], setting] = [
        f'{recorded.mean(runs, "accuracy", 2, 100)} %,'
        f' {recorded.mean(runs, "loss", 3)}'
        for runs in _of_column(column).values()
      ] + [None]
  return cells


# The benchmark.

_TEXT = ('stackexchange', 'blogs', 'wikitext2_eps1.71')
_IMAGES = (
  'emnist_eps0.48',
  'cifar10_eps0.185',
  'cifar10_eps2',
  'cifar10_eps3.51',
)


def _gain_of(runs: recorded.Runs, warm: recorded.Runs, metric, digits) -> str:
  """Returns a mean and, except of warm start, the gain over warm start."""
  mean = recorded.mean(runs, metric, digits)
  if runs is warm:
    return mean
  ours, theirs = (recorded.by_seed(r, metric) for r in (runs, warm))
  return f'{mean} {recorded.gain(theirs, ours, digits)}'


def _wins(method: str, runs: Mapping[str, recorded.Runs], metric: str) -> bool:
  """Whether a method is clearly better than every other one."""
  values = {m: recorded.by_seed(of, metric) for m, of in runs.items()}
  ours = values.pop(method)
  return all(
    verdicts.difference(other, ours).is_clear for other in values.values()
  )


def _gains(metric: str, digits: int, method: str, runs: Mapping) -> str:
  cell = _gain_of(runs[method], runs['warm'], metric, digits)
  mean, _, rest = cell.partition(' ')
  return f'{_bold(mean, _wins(method, runs, metric))} {rest}'.strip()


def _accuracies(method: str, runs: Mapping) -> str:
  return f'{recorded.spread(runs[method], "accuracy", 2, 100)} %'


def _benchmark(metric: str, tasks: Sequence[str], show: Callable) -> _Cells:
  """Returns a row for each method; some have no runs for some tasks."""
  loaded = [benchmark_tasks.load(_TASKS / f'{task}.json') for task in tasks]
  cells = {(metric,): [f'{task.title}, {task.epsilon:g}' for task in loaded]}
  of_tasks = [_by_method('benchmark/final', task=task) for task in tasks]
  for method in dict.fromkeys(method for of in of_tasks for method in of):
    cells[(methods.title(method),)] = [
      show(method, of) if method in of else '' for of in of_tasks
    ]
  return cells


def _with_tries(tasks: Sequence[str], cells: _Cells) -> _Cells:
  """Returns rows with the number of tries, which is that of every task."""
  search = recorded.runs('benchmark/search')
  found = {}
  for method in {run['method'] for run in search}:
    of = [run['task'] for run in search if run['method'] == method]
    tries = recorded.only((of.count(t) for t in tasks if t in of), 'tries')
    found[(methods.title(method),)] = str(tries)
  return {key: [*row, found.get(key, 'tries')] for key, row in cells.items()}


def _gain_table(metric: str, digits: int, tasks: Sequence[str]) -> _Cells:
  show = functools.partial(_gains, metric, digits)
  return _with_tries(tasks, _benchmark(metric, tasks, show))


def _conditions() -> _Cells:
  """Returns both methods' results with one changed condition each."""
  cells = {}
  found = recorded.runs('benchmark/conditions')
  for changed in {run['changed'] for run in found}:
    runs = [run for run in found if run['changed'] == changed]
    epsilon = recorded.only(
      (math.ceil(100 * float(run['epsilon'])) / 100 for run in runs), 'epsilon'
    )
    row = [f'{epsilon:.2f}', recorded.mean(runs, 'public_perplexity', 2)]
    warm = [run for run in runs if run['method'] == 'warm']
    for of in (warm, [run for run in runs if run['method'] == 'pda']):
      settings = recorded.only((run['settings'] for run in of), 'settings')
      rate = re.search(r'server_learning_rate=(\S+)', settings)[1]
      row += [rate, _gain_of(of, warm, 'perplexity', 2)]
    cells[(changed,)] = row
  return cells


# Table 1.

_DATA = {'*blogs*': 'blogs', '*Stack Exchange*': 'stackexchange'}
_ROWS = {
  'public data alone': {'method': 'public'},
  'cold start': {'method': 'cold'},
  'warm start': {'method': 'warm'},
  'PDA-DPMD': {'method': 'pda', 'public_update': 'local_training'},
  'PDA-DPMD, public gradients': {'method': 'pda', 'public_update': 'gradient'},
}
_SETTINGS = ('server_learning_rate', 'client_learning_rate', 'alpha_i')


def _table_1() -> _Cells:
  """Returns the results; the paper's rows stay."""
  cells = {}
  for (group, data), (row, of) in itertools.product(
    _DATA.items(), _ROWS.items()
  ):
    if not (runs := recorded.runs('table1/final', data=data, **of)):
      continue
    tries = recorded.runs('table1/search', data=data, rounds='1600', **of)
    settings = {tuple(run[name] for name in _SETTINGS) for run in runs}
    cells[group, row] = [
      *recorded.only(settings, 'settings'),
      recorded.spread(runs, 'perplexity', 2),
      f'{recorded.spread(runs, "accuracy", 2, 100)} %',
      f'{recorded.spread(runs, "accuracy_with_oov", 2, 100)} %',
      str(len(tries) or ''),
    ]
  return cells


TABLES: dict[str, Callable[[], _Cells]] = {
  'CIFAR-10': lambda: _sample_level(_accuracy_and_loss, _CIFAR10),
  'CIFAR-10, means': _means_of_cifar10,
  'EMNIST': lambda: _sample_level(_accuracy_and_loss, _EMNIST),
  'WikiText-2': lambda: _sample_level(_loss, {'': _WIKITEXT2}),
  'WikiText-103': lambda: _sample_level(_loss, {'': _WIKITEXT103}),
  'benchmark perplexity': lambda: _gain_table('perplexity', 2, _TEXT),
  'benchmark loss': lambda: _gain_table('loss', 4, _IMAGES),
  'benchmark accuracy': lambda: _benchmark('accuracy', _IMAGES, _accuracies),
  'benchmark conditions': _conditions,
  'Table 1': _table_1,
}
