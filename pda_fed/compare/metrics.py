"""Names, titles, formats and order of test and validation metrics.

A metric whose name starts with `accuracy` is better if larger, and is shown in
percent. All other metrics are better if smaller.
"""

from collections.abc import Collection, Sequence
from typing import Optional

_ACCURACY = 'accuracy'
# Next-word accuracy over words in the vocabulary, and over all tokens.
_OVER = {'accuracy': 'known words', 'accuracy_with_oov': 'all tokens'}
# Metrics that tables show by default, the first available one of each group.
# Perplexity is exp(loss), so one of the two is enough.
_USUAL = (('perplexity', 'loss'), ('accuracy',), ('accuracy_with_oov',))


def larger_is_better(metric: str) -> bool:
  """Returns whether larger values of a metric are better."""
  return metric.startswith(_ACCURACY)


def scale(metric: str) -> float:
  """Returns the factor by which values are multiplied when shown."""
  return 100.0 if larger_is_better(metric) else 1.0


def decimals(metric: str, value: float) -> int:
  """Returns the number of decimals with which a metric is shown.

  Args:
    metric: The metric's name.
    value: A typical value.
  """
  if larger_is_better(metric) or not abs(value) < 10:
    return 2
  return 4


def format_value(metric: str, value: float) -> str:
  """Formats a metric's value; accuracies in percent.

  Example:

    >>> format_value('accuracy', 0.1234), format_value('loss', 4.5)
    ('12.34', '4.5000')

  Args:
    metric: The metric's name.
    value: The value.
  """
  return f'{scale(metric) * value:.{decimals(metric, value)}f}'


def name_of(metric: str, known: Collection[str] = ()) -> str:
  """Returns the name of a metric in sentences.

  Example:

    >>> name_of('accuracy'), name_of('accuracy', ['accuracy_with_oov'])
    ('accuracy', 'accuracy over known words')

  Args:
    metric: The metric's name.
    known: All metrics of the runs. If they have two accuracies, the name tells
      them apart.
  """
  if metric in _OVER and {*_OVER} <= {metric, *known}:
    return f'accuracy over {_OVER[metric]}'
  return metric.replace('_', ' ')


def title_of(metric: str, known: Collection[str] = ()) -> str:
  """Returns the title of a metric for a column or an axis.

  Example:

    >>> title_of('accuracy', ['accuracy', 'accuracy_with_oov'])
    'accuracy, known words (%)'

  Args:
    metric: The metric's name.
    known: All metrics of the runs. If they have two accuracies, the title tells
      them apart.
  """
  name = name_of(metric, known).replace(' over ', ', ')
  return f'{name} (%)' if larger_is_better(metric) else name


def to_show(
  known: Sequence[str],
  wanted: Optional[Sequence[str]] = None,
  select_by: str = 'loss',
) -> tuple[tuple[str, ...], str]:
  """Returns the metrics to show, and the metric that decides the winner.

  The deciding metric is always shown. If perplexity, exp(loss), is shown and
  the loss is not, perplexity replaces the loss: both have the same order.

  Example:

    >>> to_show(['accuracy', 'loss', 'perplexity'])
    (('perplexity', 'accuracy'), 'perplexity')
    >>> to_show(['accuracy', 'loss'], ['accuracy'])
    (('accuracy', 'loss'), 'loss')

  Args:
    known: The metrics that all runs have.
    wanted: The metrics to show; by default perplexity or loss, and accuracies.
    select_by: The metric that decides the winner.

  Raises:
    ValueError: If a metric is unknown; the message lists the known ones.
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
  """Raises ValueError if a metric is unknown.

  Args:
    known: The known metrics, which the message lists.
    names: The metrics to check.
    source: The name of the flag that gives the metrics, for the message.
  """
  for name in names:
    if name not in known:
      raise ValueError(
        f'{source} must be among {", ".join(sorted(known)) or "none"}. Found'
        f' {name!r}.'
      )
