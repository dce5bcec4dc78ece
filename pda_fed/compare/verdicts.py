"""Decides which method is better, from a few seeds.

For each metric, the method with the best mean is compared with every other
method (`statistics.difference`). It is the clear winner if each of these 95 %
intervals excludes 0. Because all of them must, no correction for their number
is needed: if the best methods are equally good, a winner is named in at most
5 % of comparisons (in simulations with 3 seeds: 5 % with two methods, 1 % with
three or four).
"""

from collections.abc import Callable, Mapping
import dataclasses
import itertools
import math
import statistics
from typing import Optional

from pda_fed.compare import metrics as metrics_lib
from pda_fed.compare import statistics as statistics_lib

# Returns the title of a method.
Title = Callable[[str], str]


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The best method by a metric, and its leads over the others.

  Example: see `decide`.

  Attributes:
    metric: The metric's name.
    best: The method with the best mean.
    leads: How much better the best method is than each other method, in the
      order of their means. Positive is better, whatever the metric.
    left_out: Methods that diverged: some value is not finite.
  """

  metric: str
  best: str
  leads: dict[str, statistics_lib.Difference]
  left_out: tuple[str, ...] = ()

  @property
  def is_clear(self) -> bool:
    """Whether the best method is clearly better than every other one."""
    return all(lead.is_clear for lead in self.leads.values())

  @property
  def has_intervals(self) -> bool:
    """Whether there are enough seeds for intervals."""
    return all(lead.low is not None for lead in self.leads.values())

  @property
  def rival(self) -> str:
    """The best method that is not clearly worse, or else the second best."""
    unclear = [m for m, lead in self.leads.items() if not lead.is_clear]
    return next(iter(unclear or self.leads))


def decide(
  metric: str, values: Mapping[str, statistics_lib.BySeed]
) -> Optional[Verdict]:
  """Returns the verdict by a metric.

  Example:

    >>> found = decide('loss', {'a': {0: 1.0, 1: 1.1}, 'b': {0: 2.0, 1: 2.1}})
    >>> found.best, round(found.leads['b'].mean, 3), found.is_clear
    ('a', 1.0, True)

  Args:
    metric: The metric's name.
    values: Values by method and seed.

  Returns:
    The verdict, or None if fewer than two methods have finite values.
  """
  finite = {
    method: by_seed
    for method, by_seed in values.items()
    if all(map(math.isfinite, by_seed.values()))
  }
  if len(finite) < 2:
    return None
  sign = 1 if metrics_lib.larger_is_better(metric) else -1
  signed = {
    method: {seed: sign * value for seed, value in by_seed.items()}
    for method, by_seed in finite.items()
  }
  means = {m: statistics.fmean(v.values()) for m, v in signed.items()}
  best, *others = sorted(means, key=means.get, reverse=True)
  return Verdict(
    metric,
    best,
    {m: statistics_lib.difference(signed[best], signed[m]) for m in others},
    tuple(m for m in values if m not in finite),
  )


class Writer:
  """Writes sentences about verdicts."""

  def __init__(
    self, known: tuple[str, ...], title: Title, means: Mapping[str, Mapping]
  ):
    """Initializes the writer.

    Args:
      known: All metrics of the runs.
      title: Returns the title of a method.
      means: Means by method and metric, which decide the number of decimals.
    """
    self._known = known
    self._title = title
    self._means = means

  def sentence(self, verdict: Verdict) -> str:
    """Returns a verdict as a sentence."""
    lead = verdict.leads[verdict.rival]
    best, rival = self._title(verdict.best), self._title(verdict.rival)
    name = metrics_lib.name_of(verdict.metric, self._known)
    size, interval = self.difference(verdict, verdict.rival)
    if not verdict.has_intervals:
      text = (
        f'One seed: no verdict. {capitalized(best)} has the best {name},'
        f' {size} better than {rival}.'
      )
    elif verdict.is_clear:
      text = (
        f'{best} is better than {rival} in {name}, by {size}'
        f' (95 % interval {interval}{_how(lead)}).'
      )
    else:
      text = (
        f'No clear winner between {best} and {rival} in {name} (difference'
        f' {size}, 95 % interval {interval}{_how(lead)}).'
      )
    if verdict.left_out:
      names = ' and '.join(map(self._title, verdict.left_out))
      text += f' Left out because runs diverged: {names}.'
    return capitalized(text)

  def others(self, verdict: Verdict) -> Optional[str]:
    """Returns a sentence about other methods that are clearly worse.

    Args:
      verdict: The verdict, whose `sentence` already names the rival.

    Returns:
      The sentence, or None if there is no such method.
    """
    worse = [
      f'than {self._title(method)} by {size} (95 % interval'
      f' {interval}{_how(lead)})'
      for method, lead in verdict.leads.items()
      if method != verdict.rival and lead.is_clear
      for size, interval in [self.difference(verdict, method)]
    ]
    if not worse:
      return None
    listed = f'{", ".join(worse[:-1])} and {worse[-1]}'.removeprefix(' and ')
    name = metrics_lib.name_of(verdict.metric, self._known)
    return capitalized(
      f'{self._title(verdict.best)} is better in {name} {listed}.'
    )

  def difference(self, verdict: Verdict, rival: str) -> tuple[str, str]:
    """Returns the best method's lead over another, and its interval."""
    lead, metric = verdict.leads[rival], verdict.metric
    digits = metrics_lib.decimals(metric, self._means[verdict.best][metric])
    unit = ' points' if metrics_lib.larger_is_better(metric) else ''

    def shown(value: float) -> str:
      text = f'{metrics_lib.scale(metric) * value:.{digits}f}'
      return text.removeprefix('-') if float(text) == 0 else text

    if lead.low is None:
      return f'{shown(lead.mean)}{unit}', ''
    ends = lead.low, lead.high
    most = digits + 3
    # Shows on which side of 0 the interval ends.
    while digits < most and any(e and not float(shown(e)) for e in ends):
      digits += 1
    size = f'{shown(lead.mean)}{unit}'
    return size, f'{shown(lead.low)} to {shown(lead.high)}'

  def disagreement(self, verdicts: Mapping[str, Verdict]) -> Optional[str]:
    """Returns a sentence if metrics prefer different methods, or None.

    With several seeds, metrics disagree only if the best method by one metric
    is clearly worse by another.

    Args:
      verdicts: Verdicts by metric.
    """
    by_best: dict[str, list[str]] = {}
    for metric, verdict in verdicts.items():
      by_best.setdefault(verdict.best, []).append(metric)
    all_pairs = itertools.permutations(verdicts.values(), 2)
    if not any(_contradict(a, b) for a, b in all_pairs):
      return None
    parts = []
    for best, names in by_best.items():
      texts = [metrics_lib.name_of(name, self._known) for name in names]
      verb = '' if parts else ('prefers ' if len(names) == 1 else 'prefer ')
      parts.append(f'{" and ".join(texts)} {verb}{self._title(best)}')
    return f'Metrics disagree: {", ".join(parts)}.'


def _contradict(a: Verdict, b: Verdict) -> bool:
  """Returns whether b's best is clearly worse by a, or has no interval."""
  lead = a.leads.get(b.best)  # None if both have the same best.
  return lead is not None and (lead.low is None or lead.is_clear)


def _how(lead: statistics_lib.Difference) -> str:
  return '' if lead.paired else ', not paired: they share fewer than two seeds'


def capitalized(text: str) -> str:
  """Returns text with its first letter capitalized."""
  return text[:1].upper() + text[1:]
