"""Several comparisons in one table, as Table 2 of the paper has them.

A cell is a comparison of methods on one data set at one level of privacy, made
by `scripts/compare`; the table has a row for each of its metrics.
"""

from collections.abc import Sequence
import dataclasses
import os
import pathlib
from typing import Optional

from pda_fed import privacy
from pda_fed import tables
from pda_fed.experiments import comparison as comparison_lib
from pda_fed.experiments import config as config_lib
from pda_fed.experiments import errors
from pda_fed.experiments import outputs


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
  """A comparison among others.

  Attributes:
    name: What a table calls it.
    comparison: Its methods.
  """

  name: str
  comparison: comparison_lib.Comparison

  @property
  def epsilon(self) -> str:
    """The largest epsilon of its runs, rounded up; '?' if it is not known."""
    epsilon = self.comparison.epsilon
    return '?' if epsilon is None else privacy.round_up(epsilon)


def load_cell(
  folder: os.PathLike, metrics: Optional[Sequence[str]] = None
) -> Cell:
  """Reads what `scripts/compare` has made.

  Args:
    folder: Its --output_dir; runs that are not finished are left out.
    metrics: See `comparison.compare`.

  Raises:
    OutputError: If it has no finished run.
    ValueError: If a metric is not known.
  """
  folder = pathlib.Path(folder)
  paths = sorted(p.parent for p in folder.glob(f'runs/*/{outputs.CONFIG}'))
  runs = [
    comparison_lib.load_run(path)
    for path in paths
    if outputs.RunFolder(path).read_result() is not None
  ]
  if not runs:
    raise errors.OutputError(
      f'{folder} must hold the finished runs of a comparison. Found none.'
    )
  return Cell(folder.resolve().name, comparison_lib.compare(runs, metrics))


def methods_of(cells: Sequence[Cell]) -> list[str]:
  """Returns the methods that some cell has, in the usual order."""
  return [
    method
    for method in config_lib.METHODS
    if any(method in cell.comparison.runs for cell in cells)
  ]


def header(cells: Sequence[Cell]) -> list[str]:
  """Returns the names of the table's columns."""
  titles = [config_lib.METHODS[method].title for method in methods_of(cells)]
  return ['cell', 'epsilon', 'metric', *titles]


def rows(
  cells: Sequence[Cell], plus_minus: str = '±', best: str = '{}'
) -> list[list[str]]:
  """Returns the table's rows.

  Args:
    cells: The cells.
    plus_minus: Between mean and standard deviation.
    best: A pattern for the best mean of a row.
  """
  table = []
  for cell in cells:
    scores = cell.comparison.scores
    for metric in cell.comparison.metrics:
      row = [cell.name, cell.epsilon, comparison_lib.title_of(metric)]
      for method in methods_of(cells):
        if method not in scores:
          row.append('')
          continue
        score = scores[method][metric]
        text = comparison_lib.format_score(metric, score, plus_minus)
        row.append(best.format(text) if score.best else text)
      table.append(row)
  return table


def as_text(cells: Sequence[Cell]) -> str:
  """Returns the table for a terminal."""
  return tables.format_table(header(cells), rows(cells))


def as_markdown(cells: Sequence[Cell]) -> str:
  """Returns the table in Markdown, the best means in bold."""
  names = header(cells)
  lines = [
    names,
    ['---', '---:', '---', *['---:'] * (len(names) - 3)],
    *rows(cells, best='**{}**'),
  ]
  return '\n'.join(f'| {" | ".join(cells)} |' for cells in lines) + '\n'


def as_latex(cells: Sequence[Cell]) -> str:
  """Returns the table for LaTeX with the package booktabs."""
  body = [header(cells), *rows(cells, r'$\pm$', r'\textbf{{{}}}')]
  lines = [
    ' & '.join(map(comparison_lib.escape_latex, row)) + r' \\' for row in body
  ]
  columns = 'lrl' + 'r' * (len(body[0]) - 3)
  return (
    '\n'.join(
      [
        rf'\begin{{tabular}}{{{columns}}}',
        r'\toprule',
        lines[0],
        r'\midrule',
        *lines[1:],
        r'\bottomrule',
        r'\end{tabular}',
      ]
    )
    + '\n'
  )
