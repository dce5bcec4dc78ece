"""Tables of README.md and docs/reproduction.md with sample-level privacy."""

from collections.abc import Callable, Mapping, Sequence
import functools
import statistics
from typing import Optional

from tools.tables import recorded

_METHODS = {'cold start': 'cold', 'warm start': 'warm', 'PDA-DPMD': 'pda'}
_Runs = Sequence[Mapping[str, str]]
# A preset and its runs' noise multiplier; None for a column that has no runs.
_Column = Optional[tuple[str, str]]


def _runs(preset: str, noise: str, method: str) -> _Runs:
  return recorded.runs(
    'sample_level/test',
    preset=preset,
    noise_multiplier=noise,
    method=method,
    in_table='yes',
  )


def _leads(
  metric: str, sign: int, ours: _Runs, others: Sequence[_Runs]
) -> bool:
  """Whether a method's lead exceeds the standard deviations of both."""

  def values(runs):
    return [sign * float(run[metric]) for run in runs]

  mean, deviation = (
    statistics.mean(values(ours)),
    statistics.stdev(values(ours)),
  )
  return all(
    mean - statistics.mean(values(other))
    > deviation + statistics.stdev(values(other))
    for other in others
  )


def _bold(text: str, is_bold: bool) -> str:
  return f'**{text}**' if is_bold else text


def _accuracy_and_loss(ours: _Runs, others: Sequence[_Runs]) -> str:
  accuracy = f'{recorded.spread(ours, "accuracy", 2, 100)} %'
  loss = recorded.spread(ours, 'loss', 3)
  leads = _leads('accuracy', 1, ours, others), _leads('loss', -1, ours, others)
  if all(leads):
    return f'**{accuracy}, {loss}**'
  return f'{_bold(accuracy, leads[0])}, {_bold(loss, leads[1])}'


def _loss(ours: _Runs, others: Sequence[_Runs]) -> str:
  shown = recorded.mean(ours, 'loss', 4)
  return _bold(shown, _leads('loss', -1, ours, others))


def _cells(
  show: Callable[[_Runs, Sequence[_Runs]], str],
  columns: Sequence[_Column],
  group: tuple[str, ...] = (),
) -> recorded.Cells:
  """Returns the rows of the three methods, with the leader in bold."""
  cells = {}
  for title, method in _METHODS.items():
    row = []
    for column in columns:
      others = [m for m in _METHODS.values() if m != method]
      row.append(
        column
        and show(_runs(*column, method), [_runs(*column, m) for m in others])
      )
    cells[(*group, title)] = row
  return cells


def cifar10() -> recorded.Cells:
  """Returns CIFAR-10's cells; the paper's column stays."""
  low = None, ('cifar10', '1.51'), ('cifar10_best', '1.4275')
  high = None, ('cifar10_private', '20.0'), ('cifar10_private_best', '17.941')
  return _cells(_accuracy_and_loss, low, ('*epsilon 3.51*',)) | _cells(
    _accuracy_and_loss, high, ('*epsilon 0.185*',)
  )


def emnist() -> recorded.Cells:
  """Returns EMNIST's cells; the paper's column stays."""
  low = (
    None,
    ('emnist', '0.41'),
    ('emnist', '0.4982'),
    ('emnist_best', '0.4856'),
  )
  high = (
    None,
    ('emnist_private', '1.89'),
    ('emnist_private', '4.5507'),
    ('emnist_private_best', '4.2357'),
  )
  return _cells(
    _accuracy_and_loss, low, ('*sigma 0.41, or epsilon 25.8*',)
  ) | _cells(_accuracy_and_loss, high, ('*sigma 1.89, or epsilon 0.48*',))


_WIKITEXT2 = (
  None,
  ('wikitext2', '0.5'),
  ('wikitext2_best', '0.4824'),
  None,
  ('wikitext2_private', '1.08'),
  ('wikitext2_private_best', '1.0246'),
)
_WIKITEXT103 = (
  None,
  ('wikitext103', '0.83'),
  None,
  ('wikitext103_private', '1.49'),
)


def residual_net() -> recorded.Cells:
  """Returns the results of CIFAR-10 with a residual net."""
  final = recorded.runs('residual/final')
  accuracy, loss = recorded.only(
    ((run['warm_start_accuracy'], run['warm_start_loss']) for run in final),
    'the warm start',
  )
  alone = f'{100 * float(accuracy):.2f} %', f'{float(loss):.3f}'
  cells = {('public data alone',): [*alone, None, None, None]}
  for title, method in (('warm start', 'warm'), ('PDA-DPMD, K = 400', 'pda')):
    runs = [run for run in final if run['method'] == method]
    epsilon = recorded.only((run['epsilon'] for run in runs), 'epsilon')
    cells[(title,)] = [
      f'{recorded.spread(runs, "accuracy", 2, 100)} %',
      recorded.spread(runs, 'loss', 3),
      f'{float(epsilon):.3f}',
      str(len({run['seed'] for run in runs})),
      str(len(recorded.runs('residual/search', method=method))),
    ]
  return cells


def readme() -> recorded.Cells:
  """Returns CIFAR-10's means for README.md; the paper's column stays."""
  cells = {}
  for epsilon, setting, preset, noise in (
    ('3.51', "the paper's", 'cifar10', '1.51'),
    ('3.51', 'with augmentation', 'cifar10_best', '1.4275'),
    ('0.185', "the paper's", 'cifar10_private', '20.0'),
    ('0.185', 'with augmentation', 'cifar10_private_best', '17.941'),
  ):
    row = []
    for method in _METHODS.values():
      runs = _runs(preset, noise, method)
      accuracy = recorded.mean(runs, 'accuracy', 2, 100)
      row.append(f'{accuracy} %, {recorded.mean(runs, "loss", 3)}')
    cells[(epsilon, setting)] = [*row, None]
  return cells


TABLES = {
  'CIFAR-10': cifar10,
  'CIFAR-10, means': readme,
  'CIFAR-10, residual net': residual_net,
  'EMNIST': emnist,
  'WikiText-2': functools.partial(_cells, _loss, _WIKITEXT2),
  'WikiText-103': functools.partial(_cells, _loss, _WIKITEXT103),
}
