"""How methods and metrics are named, ordered, formatted and coloured.

A metric whose name starts with `accuracy` is better if larger, and is shown in
percent. All other metrics are better if smaller.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Optional

from pda_fed import methods
from pda_fed import privacy

# Listed like a method: the warm start itself, which has seen no private data.
PUBLIC = 'public data alone'

# In the order of tables.
_COLOURS = {
  'cold': '#5b8def',
  'warm': '#e08e2b',
  'pda': '#2fa37c',
  'semi_dp': '#b05cc6',
  'dope': '#d64550',
  'adadps': '#8c6d46',
}
# Of methods of others.
_OTHERS = ('#c2185b', '#00838f', '#7cb342', '#5d4037', '#f9a825', '#37474f')
_UNKNOWN = '0.5'

_ACCURACY = 'accuracy'
# Next-word accuracy over words in the vocabulary, and over all tokens.
_OVER = {'accuracy': 'known words', 'accuracy_with_oov': 'all tokens'}
# Metrics that tables show by default, the first available one of each group.
# Perplexity is exp(loss), so one of the two is enough.
_USUAL = (('perplexity', 'loss'), ('accuracy',), ('accuracy_with_oov',))


def method_title(method: str) -> str:
  """Returns the title of a method, by its name in results, or of `PUBLIC`."""
  return PUBLIC if method == PUBLIC else methods.title(method)


def in_order(some: Iterable[str]) -> list[str]:
  """Returns methods in the order of tables; those of others come last."""
  places = {name: i for i, name in enumerate([PUBLIC, *_COLOURS])}
  return sorted(some, key=lambda name: (places.get(name, len(places)), name))


def colour(method: str) -> str:
  """Returns the colour in figures of a method, by its name in results."""
  others = [name for name in methods.names() if name not in _COLOURS]
  if method in others:
    return _OTHERS[others.index(method) % len(_OTHERS)]
  return _COLOURS.get(method, _UNKNOWN)


def format_epsilon(epsilon: Optional[float]) -> str:
  """Formats epsilon, rounded up; '?' if it was not computed."""
  return '?' if epsilon is None else privacy.round_up(epsilon)


def sign(metric: str) -> int:
  """Returns 1 if larger values of a metric are better, otherwise -1."""
  return 1 if metric.startswith(_ACCURACY) else -1


def scale(metric: str) -> float:
  """Returns the factor by which values are multiplied when shown."""
  return 100.0 if metric.startswith(_ACCURACY) else 1.0


def points(metric: str) -> str:
  """Returns the unit of differences, with a space, or ''."""
  return ' points' if metric.startswith(_ACCURACY) else ''


def decimals(metric: str, value: float) -> int:
  """Returns with how many decimals a metric's typical value is shown."""
  return 2 if metric.startswith(_ACCURACY) or not abs(value) < 10 else 4


def format_value(metric: str, value: float) -> str:
  """Formats a metric's value; accuracies in percent.

  Example:

    >>> format_value('accuracy', 0.1234), format_value('loss', 4.5)
    ('12.34', '4.5000')
  """
  return f'{scale(metric) * value:.{decimals(metric, value)}f}'


def metric_name(metric: str, known: Collection[str] = ()) -> str:
  """Returns the name of a metric in sentences.

  Example:

    >>> metric_name('accuracy', ['accuracy_with_oov'])
    'accuracy over known words'

  Args:
    metric: The metric's name.
    known: All metrics of the runs. If they have two accuracies, the name tells
      them apart.
  """
  if metric in _OVER and {*_OVER} <= {metric, *known}:
    return f'accuracy over {_OVER[metric]}'
  return metric.replace('_', ' ')


def metric_title(metric: str, known: Collection[str] = ()) -> str:
  """Returns the title of a metric for a column or an axis.

  Example:

    >>> metric_title('accuracy', ['accuracy', 'accuracy_with_oov'])
    'accuracy, known words (%)'
  """
  name = metric_name(metric, known).replace(' over ', ', ')
  return f'{name} (%)' if metric.startswith(_ACCURACY) else name


def to_show(
  known: Sequence[str], wanted: Sequence[str] = (), select_by: str = 'loss'
) -> tuple[tuple[str, ...], str]:
  """Returns the metrics to show, and the metric that decides the winner.

  The deciding metric is always shown. If perplexity, exp(loss), is shown and
  the loss is not, perplexity replaces the loss: both have the same order.

  Example:

    >>> to_show(['accuracy', 'loss', 'perplexity'])
    (('perplexity', 'accuracy'), 'perplexity')

  Args:
    known: The metrics that all runs have.
    wanted: The metrics to show; by default perplexity or loss, and accuracies.
    select_by: The metric that decides the winner.

  Raises:
    ValueError: If a metric is unknown; the message lists the known ones.
  """
  for source, given in (('metrics', wanted), ('select_by', [select_by])):
    for name in given:
      if name not in known:
        raise ValueError(
          f'{source} must be among {", ".join(sorted(known)) or "none"}. Found'
          f' {name!r}.'
        )
  usual = [next((n for n in of if n in known), None) for of in _USUAL]
  shown = list(wanted) or [name for name in usual if name]
  if select_by == 'loss' and 'loss' not in shown and 'perplexity' in shown:
    select_by = 'perplexity'
  return tuple(dict.fromkeys([*shown, select_by])), select_by
