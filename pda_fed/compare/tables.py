"""Tables of comparisons, for terminals, Markdown, LaTeX and HTML."""

from collections.abc import Mapping, Sequence
import dataclasses
import html
from typing import Optional

from pda_fed.common import tables
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import findings
from pda_fed.compare import names

_LATEX = {c: rf'\{c}' for c in '%_&#${}'} | {
  '\\': r'\textbackslash{}',
  '~': r'\textasciitilde{}',
  '^': r'\textasciicircum{}',
  '±': r'$\pm$',
}


class Best(str):
  """A cell of a clear winner, which tables mark."""


@dataclasses.dataclass(frozen=True)
class Table:
  r"""Rows under a header.

  Example:

    >>> table = Table(['method', 'loss_1'], [['warm', Best('1 ± 0')]])
    >>> print(table.as_markdown())
    | method | loss_1 |
    | --- | ---: |
    | warm | **1 ± 0** |
    <BLANKLINE>
    >>> print(table.as_latex().splitlines()[4])
    warm & \textbf{1 $\pm$ 0} \\

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

  @property
  def _alignment(self) -> str:
    return ''.join('rl'[i in self.left] for i in range(len(self.header)))

  def _marked(self, mark: str, escape=str) -> list[list[str]]:
    return [
      [
        mark.format(escape(cell)) if isinstance(cell, Best) else escape(cell)
        for cell in row
      ]
      for row in self.rows
    ]

  def as_text(self) -> str:
    """Returns the table for a terminal, without marks."""
    return tables.format_table(self.header, self.rows)

  def as_markdown(self) -> str:
    """Returns the table in Markdown, clear winners in bold."""
    rows = self._marked('**{}**')
    return tables.format_markdown(self.header, rows, self._alignment)

  def as_latex(self) -> str:
    """Returns the table for LaTeX, with the booktabs package."""

    def escaped(text: str) -> str:
      return ''.join(_LATEX.get(character, character) for character in text)

    rows = [list(map(escaped, self.header))]
    rows += self._marked(r'\textbf{{{}}}', escaped)
    first, *rest = [' & '.join(row) + r' \\' for row in rows]
    begin = rf'\begin{{tabular}}{{{self._alignment}}}'
    end = r'\bottomrule', r'\end{tabular}'
    lines = [begin, r'\toprule', first, r'\midrule', *rest, *end]
    return '\n'.join(lines) + '\n'

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


def all_methods(compared: Sequence[comparison_lib.Comparison]) -> list[str]:
  """Returns the methods of all comparisons, in the usual order."""
  return names.in_order({m for c in compared for m in c.scores})


def combined_epsilon(comparison: comparison_lib.Comparison) -> str:
  """Returns epsilon of the runs, formatted; the largest if they differ."""
  differ = 'at most ' if findings.unequal_privacy(comparison) else ''
  return differ + names.format_epsilon(comparison.epsilon)


def of_several(compared: Mapping[str, comparison_lib.Comparison]) -> Table:
  """Returns comparisons in one table, like Table 2 of the paper.

  Args:
    compared: Comparisons by name. Each has a row for each of its metrics.
  """
  methods, rows = all_methods(list(compared.values())), []
  for name, comparison in compared.items():
    for metric in comparison.metrics:
      title = names.metric_title(metric, comparison.known)
      row = [name, combined_epsilon(comparison), title]
      for method in methods:
        of = comparison.scores.get(method)
        row.append('' if of is None else format_score(metric, of[metric]))
      rows.append(row)
  header = ['cell', 'epsilon', 'metric', *map(names.method_title, methods)]
  return Table(header, rows, left=(0, 2))


def lines_of_several(
  compared: Mapping[str, comparison_lib.Comparison],
) -> list[str]:
  """Returns the verdict of each comparison, and differences in privacy.

  Args:
    compared: Comparisons by name.
  """
  return [
    f'{name}: {line}'
    for name, comparison in compared.items()
    for line in (
      findings.headline(comparison),
      *findings.unequal_privacy(comparison),
    )
  ]


def as_document(table: Table, lines: Sequence[str]) -> str:
  """Returns table.md: a table, and paragraphs below it."""
  return '\n'.join([table.as_markdown(), *(f'{line}\n' for line in lines)])
