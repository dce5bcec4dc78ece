"""Sentences about a comparison: verdicts, privacy, audits."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import statistics
from typing import Any, Optional

from pda_fed import audit
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import names
from pda_fed.compare import verdicts as verdicts_lib


def capitalized(text: str) -> str:
  """Returns text with its first letter capitalized."""
  return text[:1].upper() + text[1:]


def _how(lead: verdicts_lib.Difference) -> str:
  return '' if lead.paired else ', not paired: they share fewer than two seeds'


@dataclasses.dataclass(frozen=True)
class Writer:
  """Writes sentences about verdicts.

  Attributes:
    known: All metrics of the runs.
    means: Means by method and metric, which decide the number of decimals.
  """

  known: Sequence[str]
  means: Mapping[str, Mapping[str, float]]

  def sentence(self, verdict: verdicts_lib.Verdict) -> str:
    """Returns a verdict as a sentence."""
    lead = verdict.leads[verdict.rival]
    best, rival = map(names.method_title, (verdict.best, verdict.rival))
    name = names.metric_name(verdict.metric, self.known)
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
      out = ' and '.join(map(names.method_title, verdict.left_out))
      text += f' Left out because runs diverged: {out}.'
    return capitalized(text)

  def others(self, verdict: verdicts_lib.Verdict) -> list[str]:
    """Returns a sentence about methods that are clearly worse, if any.

    `sentence` already names the rival.
    """
    worse = [
      f'than {names.method_title(method)} by {size} (95 % interval'
      f' {interval}{_how(lead)})'
      for method, lead in verdict.leads.items()
      if method != verdict.rival and lead.is_clear
      for size, interval in [self.difference(verdict, method)]
    ]
    if not worse:
      return []
    listed = f'{", ".join(worse[:-1])} and {worse[-1]}'.removeprefix(' and ')
    name = names.metric_name(verdict.metric, self.known)
    best = names.method_title(verdict.best)
    return [capitalized(f'{best} is better in {name} {listed}.')]

  def difference(
    self, verdict: verdicts_lib.Verdict, rival: str
  ) -> tuple[str, str]:
    """Returns the best method's lead over another, and its interval."""
    lead, metric = verdict.leads[rival], verdict.metric
    digits = names.decimals(metric, self.means[verdict.best][metric])

    def shown(value: float) -> str:
      text = f'{names.scale(metric) * value:.{digits}f}'
      return text.removeprefix('-') if float(text) == 0 else text

    size = shown(lead.mean)
    if lead.low is None:
      return f'{size}{names.points(metric)}', ''
    ends = lead.low, lead.high
    most = digits + 3
    # Shows on which side of 0 the interval ends.
    while digits < most and any(e and not float(shown(e)) for e in ends):
      digits += 1
    size = f'{shown(lead.mean)}{names.points(metric)}'
    return size, f'{shown(lead.low)} to {shown(lead.high)}'

  def disagreement(
    self, verdicts: Mapping[str, verdicts_lib.Verdict]
  ) -> list[str]:
    """Returns a sentence if metrics prefer different methods.

    With several seeds, metrics disagree only if the best method by one metric
    is clearly worse by another.
    """
    by_best: dict[str, list[str]] = {}
    for metric, verdict in verdicts.items():
      by_best.setdefault(verdict.best, []).append(metric)
    leads = [
      a.leads.get(b.best)  # None if both have the same best.
      for a, b in itertools.permutations(verdicts.values(), 2)
    ]
    if not any(n is not None and (n.low is None or n.is_clear) for n in leads):
      return []
    parts = []
    for best, of_best in by_best.items():
      texts = [names.metric_name(name, self.known) for name in of_best]
      verb = '' if parts else ('prefers ' if len(texts) == 1 else 'prefer ')
      parts.append(f'{" and ".join(texts)} {verb}{names.method_title(best)}')
    return [f'Metrics disagree: {", ".join(parts)}.']


def writer(comparison: comparison_lib.Comparison) -> Writer:
  """Returns the writer of sentences about a comparison's verdicts."""
  return Writer(comparison.known, comparison.means)


def headline(comparison: comparison_lib.Comparison) -> str:
  """Returns the verdict by the metric of --select_by, in a sentence or two."""
  verdict = comparison.verdicts.get(comparison.selected)
  if verdict is None:
    return 'Nothing to compare: only one method has finite results.'
  text = writer(comparison).sentence(verdict)
  epsilons = [
    comparison.epsilon_of(method)
    for method in (verdict.best, verdict.rival)
    if method != names.PUBLIC
  ]
  if len(epsilons) == 2 and not comparison_lib.is_same_epsilon(*epsilons):
    shown = ' and '.join(map(names.format_epsilon, epsilons))
    text += f' Their epsilons differ: {shown}.'
  return text


def others(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns a sentence about clearly worse methods not in the headline."""
  verdict = comparison.verdicts.get(comparison.selected)
  return [] if verdict is None else writer(comparison).others(verdict)


def selection(comparison: comparison_lib.Comparison) -> str:
  """Returns a sentence about the metric that decides the headline."""
  name = names.metric_name(comparison.selected, comparison.known)
  if comparison.selected != comparison.select_by:
    name += f', which is exp({comparison.select_by})'
  return (
    f'The winner is decided by {name} (--select_by={comparison.select_by}).'
  )


def by_other_metrics(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns the verdicts by other metrics."""
  return [
    writer(comparison).sentence(verdict)
    for metric, verdict in comparison.verdicts.items()
    if metric != comparison.selected and verdict.has_intervals
  ]


def disagreement(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns a sentence if metrics prefer different methods."""
  return writer(comparison).disagreement(comparison.verdicts)


def verdict(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns all findings, with reservations."""
  return [
    headline(comparison),
    *others(comparison),
    *by_other_metrics(comparison),
    *disagreement(comparison),
    selection(comparison),
    *unequal_privacy(comparison),
  ]


def note(comparison: comparison_lib.Comparison, mark: str) -> list[str]:
  """Returns a note about the marks in a table and the test behind them.

  Args:
    comparison: The comparison. With one seed, nothing is marked.
    mark: How winners are marked, for example 'Bold'.
  """
  if not any(v.has_intervals for v in comparison.verdicts.values()):
    return []
  return [
    f'{mark}: clearly better than every other line. The best mean is compared'
    ' with every other mean, seed by seed (paired t intervals, 95 %), and no'
    ' interval may contain 0. A column without a mark has no clear winner.'
  ]


def unequal_privacy(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns a sentence for each privacy parameter in which methods differ."""
  every, lines = comparison.all_runs, []
  first = every[0].epsilon
  if not all(comparison_lib.is_same_epsilon(first, r.epsilon) for r in every):
    epsilons = {
      method: names.format_epsilon(comparison.epsilon_of(method))
      for method in comparison.runs
    }
    lines.append(_not_equal('epsilon', epsilons, len(every)))
  for name in ('delta', 'unit', 'neighbouring'):
    if len({getattr(run.plan, name) for run in every}) > 1:
      found = {
        method: getattr(runs[0].plan, name)
        for method, runs in comparison.runs.items()
      }
      shown = {
        method: f'{value:g}' if isinstance(value, float) else str(value)
        for method, value in found.items()
      }
      lines.append(_not_equal(name, shown, len(every)))
  return lines


def _not_equal(name: str, of_methods: Mapping[str, str], num_runs: int) -> str:
  groups: dict[str, list[str]] = {}
  for method, value in of_methods.items():
    groups.setdefault(value, []).append(names.method_title(method))
  parts = [f'{value} for {" and ".join(of)}' for value, of in groups.items()]
  if len(parts) == 1:  # Only runs of the same method differ.
    parts = [f'at most {parts[0]}, less in some of {num_runs} runs']
  return f'Not equally private: {name} is {", ".join(parts)}.'


def guarantees(comparison: comparison_lib.Comparison) -> dict[str, list[str]]:
  """Returns the distinct guarantees of runs with epsilon, and their methods."""
  found: dict[str, dict[str, None]] = {}
  for run in comparison.all_runs:
    if run.epsilon is not None:
      found.setdefault(run.plan.statement(run.epsilon), {})[run.method] = None
  return {statement: list(of) for statement, of in found.items()}


def caveats(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns the distinct caveats of runs: what epsilon does not cover."""
  configs = [run.config for run in comparison.all_runs]
  searches = [c.private_search for c in configs if c.private_search]
  own = [caveat for c in configs for caveat in c.caveats]
  return list(dict.fromkeys([*searches, *own]))


def _audits(
  comparison: comparison_lib.Comparison,
) -> dict[str, list[tuple[Optional[int], Mapping[str, Any]]]]:
  """Returns seeds and audit reports by method, of methods that have some."""
  found: dict[str, list[tuple[Optional[int], Mapping[str, Any]]]] = {}
  for run in comparison.all_runs:
    if run.result.get('audit'):
      found.setdefault(run.method, []).append((run.seed, run.result['audit']))
  return found


def audited(comparison: comparison_lib.Comparison) -> dict[str, str]:
  """Returns mean estimates and largest lower bounds of methods with audits."""
  cells = {}
  for method, reports in _audits(comparison).items():
    estimates = [
      max(view['estimate'] for view in report['views'].values())
      for _, report in reports
    ]
    bound = max(report['lower_bound'] for _, report in reports)
    mean = statistics.fmean(estimates)
    cells[method] = f'about {mean:.2g}, at least {bound:.2g}'
  return cells


def of_audits(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns a sentence about each method's worst audit."""
  lines = []
  for method, reports in _audits(comparison).items():
    seed, worst = max(reports, key=lambda pair: pair[1]['lower_bound'])
    text = ' '.join(audit.describe(worst))
    lines.append(f'{names.method_title(method)}, seed {seed}: {text}')
  return lines
