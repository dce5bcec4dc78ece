"""The table of a comparison, for terminals, in Markdown and in LaTeX."""

import dataclasses
from typing import Optional

from pda_fed.common import tables
from pda_fed.compare import audits
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import fairness
from pda_fed.compare import metrics as metrics_lib


@dataclasses.dataclass(frozen=True)
class Line:
  """A line of a comparison's table.

  Attributes:
    title: The title of a method, or of public data alone.
    scores: Scores by metric.
    epsilon: Epsilon, formatted.
    num_runs: The number of runs, formatted.
    audited: The result of audits, formatted; None without audits.
  """

  title: str
  scores: dict[str, comparison_lib.Score]
  epsilon: str
  num_runs: str
  audited: Optional[str] = None


def lines(comparison: comparison_lib.Comparison) -> list[Line]:
  """Returns the lines of a comparison's table."""
  audited = audits.found(comparison.runs)
  return [
    Line(
      comparison_lib.title_of(method),
      scores,
      fairness.format_epsilon(comparison.epsilon_of(method)),
      str(len(comparison.runs[method])) if method in comparison.runs else '',
      audits.cell(audited, method),
    )
    for method, scores in comparison.scores.items()
  ]


def titles(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns the titles of the metrics' columns."""
  return [
    metrics_lib.title_of(metric, comparison.known)
    for metric in comparison.metrics
  ]


def header(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns the names of the columns of a comparison's table."""
  audited = ['audited'] if audits.found(comparison.runs) else []
  return ['method', *titles(comparison), 'epsilon', *audited, 'runs']


def format_score(
  metric: str, score: comparison_lib.Score, plus_minus: str
) -> str:
  """Formats a mean, and the standard deviation of several seeds.

  Args:
    metric: The metric's name.
    score: The mean and the standard deviation.
    plus_minus: The sign between the two.
  """
  text = metrics_lib.format_value(metric, score.mean)
  if score.std is not None:
    digits = metrics_lib.decimals(metric, score.mean)
    std = metrics_lib.scale(metric) * score.std
    text += f' {plus_minus} {std:.{digits}f}'
  return text


def rows(
  comparison: comparison_lib.Comparison, plus_minus: str = '±', wins: str = '{}'
) -> list[list[str]]:
  """Returns the cells of a comparison's table.

  Args:
    comparison: The comparison.
    plus_minus: The sign between mean and standard deviation.
    wins: A format string for the score of a clear winner.
  """
  table = []
  for line in lines(comparison):
    cells = [line.title]
    for metric, score in line.scores.items():
      text = format_score(metric, score, plus_minus)
      cells.append(wins.format(text) if score.wins else text)
    of_audit = [] if line.audited is None else [line.audited]
    table.append([*cells, line.epsilon, *of_audit, line.num_runs])
  return table


def as_text(comparison: comparison_lib.Comparison) -> str:
  """Returns the table for a terminal."""
  return tables.format_table(header(comparison), rows(comparison))


def as_markdown(comparison: comparison_lib.Comparison) -> str:
  """Returns the table in Markdown, clear winners in bold."""
  names = header(comparison)
  return tables.format_markdown(
    names, rows(comparison, wins='**{}**'), 'l' + 'r' * (len(names) - 1)
  )


def as_latex(comparison: comparison_lib.Comparison) -> str:
  """Returns the table for LaTeX, with the booktabs package."""
  names = ['Algorithm', *map(tables.escape_latex, titles(comparison))]
  table = [
    [tables.escape_latex(title), *cells[: len(comparison.metrics)]]
    for title, *cells in rows(comparison, r'$\pm$', r'\textbf{{{}}}')
  ]
  return tables.format_latex(names, table, 'l' * len(names))
