"""Tables of comparisons, for terminals, in Markdown and in HTML."""

from collections.abc import Sequence
import dataclasses
import html
from typing import Optional

from pda_fed.common import tables
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import findings
from pda_fed.compare import names


class Best(str):
  """A cell of a clear winner, which tables mark."""


@dataclasses.dataclass(frozen=True)
class Table:
  """Rows under a header.

  Example:

    >>> print(Table(['method', 'loss'], [['warm', Best('1')]]).as_markdown())
    | method | loss |
    | --- | ---: |
    | warm | **1** |
    <BLANKLINE>

  Attributes:
    header: Names of the columns.
    rows: Cells of each row, some of them `Best`.
    left: Which columns align left.
    winner: The column whose best cell marks a whole row in HTML.
    style: The class of the table in HTML.
  """

  header: Sequence[str]
  rows: Sequence[Sequence[str]]
  left: Sequence[int] = (0,)
  winner: Optional[int] = None
  style: str = ''

  def as_text(self) -> str:
    """Returns the table for a terminal, without marks."""
    return tables.format_table(self.header, self.rows)

  def as_markdown(self, lines: Sequence[str] = ()) -> str:
    """Returns the table in Markdown, clear winners in bold.

    Args:
      lines: Paragraphs below the table.
    """
    rows = [
      [f'**{cell}**' if isinstance(cell, Best) else cell for cell in row]
      for row in self.rows
    ]
    sides = ''.join('rl'[i in self.left] for i in range(len(self.header)))
    table = tables.format_markdown(self.header, rows, sides)
    return '\n'.join([table, *(f'{line}\n' for line in lines)])

  def as_html(self) -> str:
    """Returns the table for a page, clear winners marked by classes."""
    lines = [f'<div class="scroll"><table class="{self.style}"><thead><tr>']
    lines += [f'<th>{html.escape(name)}</th>' for name in self.header]
    lines.append('</tr></thead><tbody>')
    for row in self.rows:
      wins = self.winner is not None and isinstance(row[self.winner], Best)
      lines.append('<tr class="winner">' if wins else '<tr>')
      for cell in row:
        start = '<td class="best">' if isinstance(cell, Best) else '<td>'
        lines.append(f'{start}{html.escape(cell)}</td>')
      lines.append('</tr>')
    return ''.join([*lines, '</tbody></table></div>'])


def format_score(metric: str, score: comparison_lib.Score) -> str:
  """Formats a mean, and the standard deviation of several seeds."""
  text = names.format_value(metric, score.mean)
  if score.std is not None:
    digits = names.decimals(metric, score.mean)
    text += f' ± {names.scale(metric) * score.std:.{digits}f}'
  return Best(text) if score.wins else text


def of_comparison(comparison: comparison_lib.Comparison) -> Table:
  """Returns the table of a comparison: a row for each method."""
  audited = findings.audited(comparison)
  titles = [
    names.metric_title(metric, comparison.known)
    for metric in comparison.metrics
  ]
  rows = []
  for method, scores in comparison.scores.items():
    row = [names.method_title(method)]
    row += [format_score(*item) for item in scores.items()]
    row.append(names.format_epsilon(comparison.epsilon_of(method)))
    row += [audited.get(method, '')] if audited else []
    of_method = comparison.runs.get(method)
    rows.append([*row, str(len(of_method)) if of_method else ''])
  last = ['epsilon', *(['audited'] if audited else []), 'runs']
  winner = 1 + comparison.metrics.index(comparison.selected)
  return Table(['method', *titles, *last], rows, winner=winner)
