"""Several comparisons in one table, like Table 2 of the paper.

A cell is a comparison of methods on one data set at one level of privacy, made
by `scripts/compare`. The table has a row for each of its metrics.
"""

from collections.abc import Sequence
import dataclasses
import os
import pathlib
from typing import Optional
import warnings

from pda_fed import errors
from pda_fed.common import tables
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import fairness
from pda_fed.compare import findings
from pda_fed.compare import metrics as metrics_lib
from pda_fed.compare import result_tables
from pda_fed.compare import styles
from pda_fed.runs import outputs


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
  """One of several comparisons.

  Attributes:
    name: The name in tables.
    comparison: The comparison.
  """

  name: str
  comparison: comparison_lib.Comparison

  @property
  def epsilon(self) -> str:
    """Epsilon of the runs, formatted; the largest if they differ."""
    differ = 'at most ' if findings.unequal_privacy(self.comparison) else ''
    return differ + fairness.format_epsilon(self.comparison.epsilon)


def load_cell(
  folder: os.PathLike | str,
  metrics: Optional[Sequence[str]] = None,
  select_by: str = 'loss',
) -> Cell:
  """Reads the results of `scripts/compare`.

  Args:
    folder: The --output_dir of the comparison. Unfinished runs are left out,
      with a warning.
    metrics: See `comparison.compare`.
    select_by: See `comparison.compare`.

  Raises:
    OutputError: If the folder has no finished run, or a run is damaged.
    ValueError: If a metric is unknown, or runs use different data.
  """
  folder = pathlib.Path(folder)
  if not folder.is_dir():
    raise errors.OutputError(
      f'{folder} must be the folder of a comparison. Found no such folder.'
    )
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
  if len(runs) < len(paths):
    warnings.warn(
      f'{folder}: {len(paths) - len(runs)} of {len(paths)} runs are not'
      ' finished and are left out.',
      stacklevel=2,
    )
  try:
    compared = comparison_lib.compare(runs, metrics, select_by)
  except ValueError as e:
    raise ValueError(f'{folder}: {e}') from e
  return Cell(folder.resolve().name, compared)


def load_cells(
  folders: Sequence[os.PathLike | str],
  metrics: Optional[Sequence[str]] = None,
  select_by: str = 'loss',
) -> list[Cell]:
  """Reads several comparisons.

  Args:
    folders: See `load_cell`. A cell is named after its folder, or by the whole
      path if several folders have the same name.
    metrics: See `comparison.compare`.
    select_by: See `comparison.compare`.

  Raises:
    OutputError: See `load_cell`.
    ValueError: If no folder is given, a folder is given twice, or a metric is
      unknown.
  """
  if not all(os.fspath(folder) for folder in folders) or not folders:
    raise ValueError(
      'combine must be a comma-separated list of folders of comparisons. Found'
      f' {",".join(str(folder) for folder in folders)!r}.'
    )
  places = [pathlib.Path(folder).resolve() for folder in folders]
  for place in places:
    if places.count(place) > 1:
      raise ValueError(
        f'combine must name each folder once. Found {place} more than once.'
      )
  cells = [load_cell(folder, metrics, select_by) for folder in folders]
  names = [cell.name for cell in cells]
  return [
    cell
    if names.count(cell.name) == 1
    else dataclasses.replace(cell, name=str(folder))
    for cell, folder in zip(cells, folders, strict=True)
  ]


def methods_of(cells: Sequence[Cell]) -> list[str]:
  """Returns the methods of all cells, in the usual order."""
  found = {m for c in cells for m in c.comparison.scores}
  public = [comparison_lib.PUBLIC] if comparison_lib.PUBLIC in found else []
  return [*public, *styles.in_order(found - {comparison_lib.PUBLIC})]


def header(cells: Sequence[Cell]) -> list[str]:
  """Returns the names of the table's columns."""
  titles = [comparison_lib.title_of(method) for method in methods_of(cells)]
  return ['cell', 'epsilon', 'metric', *titles]


def rows(
  cells: Sequence[Cell], plus_minus: str = '±', wins: str = '{}', escape=str
) -> list[list[str]]:
  """Returns the table's rows.

  Args:
    cells: The cells.
    plus_minus: The sign between mean and standard deviation.
    wins: A format string for the score of a clear winner.
    escape: Escapes the names of cells and metrics.
  """
  table = []
  for cell in cells:
    scores = cell.comparison.scores
    for metric in cell.comparison.metrics:
      title = metrics_lib.title_of(metric, cell.comparison.known)
      row = [escape(cell.name), cell.epsilon, escape(title)]
      for method in methods_of(cells):
        if method not in scores:
          row.append('')
          continue
        score = scores[method][metric]
        text = result_tables.format_score(metric, score, plus_minus)
        row.append(wins.format(text) if score.wins else text)
      table.append(row)
  return table


def lines(cells: Sequence[Cell]) -> list[str]:
  """Returns the verdict of each cell, and differences in privacy.

  Args:
    cells: The cells.
  """
  found = []
  for cell in cells:
    found.append(f'{cell.name}: {findings.headline(cell.comparison)}')
    unequal = findings.unequal_privacy(cell.comparison)
    found += [f'{cell.name}: {line}' for line in unequal]
  return found


def note(cells: Sequence[Cell]) -> list[str]:
  """Returns a note about the meaning of bold text, if there is any.

  Args:
    cells: The cells.
  """
  found = [line for c in cells for line in findings.note(c.comparison, 'Bold')]
  return found[:1]


def _alignment(cells: Sequence[Cell]) -> str:
  return 'lrl' + 'r' * len(methods_of(cells))


def as_text(cells: Sequence[Cell]) -> str:
  """Returns the table for a terminal."""
  return tables.format_table(header(cells), rows(cells))


def as_markdown(cells: Sequence[Cell]) -> str:
  """Returns the table in Markdown, clear winners in bold."""
  bold = rows(cells, wins='**{}**')
  return tables.format_markdown(header(cells), bold, _alignment(cells))


def as_latex(cells: Sequence[Cell]) -> str:
  """Returns the table for LaTeX, with the booktabs package."""
  bold = rows(cells, r'$\pm$', r'\textbf{{{}}}', tables.escape_latex)
  names = [tables.escape_latex(name) for name in header(cells)]
  return tables.format_latex(names, bold, _alignment(cells))
