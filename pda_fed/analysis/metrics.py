"""Metrics of a test or of validation: which is better, and what it is called.

A name that begins with `accuracy` is better when larger, and shown in percent.
All others are better when smaller.
"""

from collections.abc import Collection, Sequence
import math
from typing import Optional

_ACCURACY = 'accuracy'
# Accuracy of next words: over those in the vocabulary, and over all tokens.
_OVER = {'accuracy': 'known words', 'accuracy_with_oov': 'all tokens'}
# What a table shows if runs have it. Perplexity is exp(loss): one is enough.
_USUAL = (('perplexity', 'loss'), ('accuracy',), ('accuracy_with_oov',))


def larger_is_better(metric: str) -> bool:
  """Returns whether larger values of a metric are better."""
  return metric.startswith(_ACCURACY)


def is_better(metric: str, a: float, b: float) -> bool:
  """Returns whether a value of a metric is better than another."""
  if math.isnan(a) or math.isnan(b):  # A run that diverged.
    return not math.isnan(a)
  return a > b if larger_is_better(metric) else a < b


def scale(metric: str) -> float:
  """Returns the factor between a value and how it is shown."""
  return 100.0 if larger_is_better(metric) else 1.0


def decimals(metric: str, value: float) -> int:
  """Returns how many decimals of a metric's values are shown.

  Args:
    metric: Its name.
    value: A typical value.
  """
  if larger_is_better(metric) or not abs(value) < 10:
    return 2
  return 4


def format_value(metric: str, value: float) -> str:
  """Formats a metric's value for people: accuracies in percent.

  Example:

    >>> format_value('accuracy', 0.1234), format_value('loss', 4.5)
    ('12.34', '4.5000')

  Args:
    metric: Its name.
    value: Its value.
  """
  return f'{scale(metric) * value:.{decimals(metric, value)}f}'


def name_of(metric: str, known: Collection[str] = ()) -> str:
  """Returns what a sentence calls a metric.

  Example:

    >>> name_of('accuracy'), name_of('accuracy', ['accuracy_with_oov'])
    ('accuracy', 'accuracy over known words')

  Args:
    metric: Its name.
    known: All metrics of the runs: two accuracies are told apart.
  """
  if metric in _OVER and {*_OVER} <= {metric, *known}:
    return f'accuracy over {_OVER[metric]}'
  return metric.replace('_', ' ')


def title_of(metric: str, known: Collection[str] = ()) -> str:
  """Returns what a metric is called at a column or an axis.

  Example:

    >>> title_of('accuracy', ['accuracy', 'accuracy_with_oov'])
    'accuracy, known words (%)'

  Args:
    metric: Its name.
    known: All metrics of the runs: two accuracies are told apart.
  """
  name = name_of(metric, known).replace(' over ', ', ')
  return f'{name} (%)' if larger_is_better(metric) else name


def to_show(
  known: Sequence[str],
  wanted: Optional[Sequence[str]] = None,
  select_by: str = 'loss',
) -> tuple[tuple[str, ...], str]:
  """Returns the metrics to show, and the one that names a winner.

  The latter is always shown. Perplexity, exp(loss), stands for the loss where
  it is shown and the loss is not: both have the same order.

  Example:

    >>> to_show(['accuracy', 'loss', 'perplexity'])
    (('perplexity', 'accuracy'), 'perplexity')
    >>> to_show(['accuracy', 'loss'], ['accuracy'])
    (('accuracy', 'loss'), 'loss')

  Args:
    known: Those that all runs have.
    wanted: Those to show; by default perplexity or loss, and accuracies.
    select_by: The metric by which a winner is named.

  Raises:
    ValueError: If one is not known; the message lists those that are.
  """
  check(known, wanted or ())
  check(known, [select_by], 'select_by')
  shown = list(wanted or ())
  if not shown:
    for names in _USUAL:
      shown += [name for name in names if name in known][:1]
  if select_by == 'loss' and 'loss' not in shown and 'perplexity' in shown:
    select_by = 'perplexity'
  if select_by not in shown:
    shown.append(select_by)
  return tuple(shown), select_by


def check(
  known: Sequence[str], names: Sequence[str], source: str = 'metrics'
) -> None:
  """Raises ValueError if a metric is not known.

  Args:
    known: The known ones, which the message lists.
    names: Those that are wanted.
    source: What they are given by, for the message.
  """
  for name in names:
    if name not in known:
      raise ValueError(
        f'{source} must be among {", ".join(sorted(known)) or "none"}. Found'
        f' {name!r}.'
      )
