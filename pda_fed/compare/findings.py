"""Sentences about the results of a comparison, for terminals and reports."""

from typing import Optional

from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import fairness
from pda_fed.compare import metrics as metrics_lib


def headline(comparison: comparison_lib.Comparison) -> str:
  """Returns the verdict by the metric of --select_by, in one or two sentences.

  Args:
    comparison: The comparison.
  """
  verdict = comparison.verdicts.get(comparison.selected)
  if verdict is None:
    return 'Nothing to compare: only one method has finite results.'
  text = comparison.writer.sentence(verdict)
  epsilons = [
    comparison.epsilon_of(method)
    for method in (verdict.best, verdict.rival)
    if method != comparison_lib.PUBLIC
  ]
  if len(epsilons) == 2 and not fairness.is_same(*epsilons):
    shown = ' and '.join(map(fairness.format_epsilon, epsilons))
    text += f' Their epsilons differ: {shown}.'
  return text


def others(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns a sentence about clearly worse methods not in the headline.

  Args:
    comparison: The comparison.

  Returns:
    A list of one sentence, or an empty list.
  """
  verdict = comparison.verdicts.get(comparison.selected)
  text = verdict and comparison.writer.others(verdict)
  return [text] if text else []


def selection(comparison: comparison_lib.Comparison) -> str:
  """Returns a sentence about the metric that decides the headline.

  Args:
    comparison: The comparison.
  """
  name = metrics_lib.name_of(comparison.selected, comparison.known)
  if comparison.selected != comparison.select_by:
    name += f', which is exp({comparison.select_by})'
  return (
    f'The winner is decided by {name} (--select_by={comparison.select_by}).'
  )


def by_other_metrics(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns the verdicts by other metrics, and whether metrics disagree.

  Args:
    comparison: The comparison.
  """
  lines = [
    comparison.writer.sentence(verdict)
    for metric, verdict in comparison.verdicts.items()
    if metric != comparison.selected and verdict.has_intervals
  ]
  disagreement = disagree(comparison)
  return [*lines, *([disagreement] if disagreement else [])]


def disagree(comparison: comparison_lib.Comparison) -> Optional[str]:
  """Returns a sentence if metrics prefer different methods, or None.

  Args:
    comparison: The comparison.
  """
  return comparison.writer.disagreement(comparison.verdicts)


def unequal_privacy(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns a sentence for each privacy parameter in which methods differ.

  Args:
    comparison: The comparison.
  """
  return fairness.differences(comparison.runs)


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
