"""What a comparison found, in sentences for terminals and pages."""

from typing import Optional

from pda_fed.analysis import comparison as comparison_lib
from pda_fed.analysis import fairness
from pda_fed.analysis import metrics as metrics_lib


def headline(comparison: comparison_lib.Comparison) -> str:
  """Returns the verdict by the metric of --select_by, as one sentence or two.

  Args:
    comparison: What was compared.
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
  """Returns which methods the headline does not name and are clearly worse.

  Args:
    comparison: What was compared.

  Returns:
    A sentence, or nothing.
  """
  verdict = comparison.verdicts.get(comparison.selected)
  text = verdict and comparison.writer.others(verdict)
  return [text] if text else []


def selection(comparison: comparison_lib.Comparison) -> str:
  """Returns by what the headline was decided.

  Args:
    comparison: What was compared.
  """
  name = metrics_lib.name_of(comparison.selected, comparison.known)
  if comparison.selected != comparison.select_by:
    name += f', which is exp({comparison.select_by})'
  return (
    f'The winner is decided by {name} (--select_by={comparison.select_by}).'
  )


def by_other_metrics(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns the verdicts by the other metrics, and whether metrics disagree.

  Args:
    comparison: What was compared.
  """
  lines = [
    comparison.writer.sentence(verdict)
    for metric, verdict in comparison.verdicts.items()
    if metric != comparison.selected and verdict.has_intervals
  ]
  disagreement = disagree(comparison)
  return [*lines, *([disagreement] if disagreement else [])]


def disagree(comparison: comparison_lib.Comparison) -> Optional[str]:
  """Returns a sentence if metrics prefer different methods, else None.

  Args:
    comparison: What was compared.
  """
  return comparison.writer.disagreement(comparison.verdicts)


def unequal_privacy(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns in which guarantees methods differ, a sentence each.

  Args:
    comparison: What was compared.
  """
  return fairness.differences(comparison.runs)


def note(comparison: comparison_lib.Comparison, mark: str) -> list[str]:
  """Returns what marks in a table mean, and which tests decide.

  Args:
    comparison: What was compared; with one seed nothing is marked.
    mark: What is marked looks so: 'Bold'.
  """
  if not any(v.has_intervals for v in comparison.verdicts.values()):
    return []
  return [
    f'{mark}: clearly better than every other line. The best mean is compared'
    ' with each other one, seed by seed (paired t intervals, 95 %), and no'
    ' interval may contain 0. A column without it has no clear winner.'
  ]
