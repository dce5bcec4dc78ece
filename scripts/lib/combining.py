"""Merges finished comparisons into one table and one figure."""

from collections.abc import Sequence
import pathlib
import warnings

from pda_fed.common import files
from pda_fed.compare import cells
from pda_fed.compare import figures
from scripts.lib import spec_flags


def combine(
  folders: Sequence[str],
  output_dir: pathlib.Path,
  metrics: Sequence[str],
  select_by: str,
) -> None:
  """Merges finished comparisons into one table and one figure.

  Args:
    folders: Folders of comparisons.
    output_dir: Where to write.
    metrics: Names of the metrics to show.
    select_by: The metric that decides the winner.

  Raises:
    ValueError: If settings of runs are given too, or a folder holds no
      comparison.
  """
  given = [f'--{name}' for name in spec_flags.given()]
  if given:
    raise ValueError(
      '--combine must only be given with --output_dir, --metrics and'
      f' --select_by. Found {" ".join(given)}.'
    )
  if output_dir.exists() and not output_dir.is_dir():
    raise ValueError(
      f'output_dir must be a folder. Found the file {output_dir}.'
    )
  if (output_dir / 'runs').exists():
    raise ValueError(
      f'output_dir must be a separate folder. Found {output_dir}, which holds a'
      " comparison's own tables and runs."
    )
  found = cells.load_cells(folders, metrics, select_by)
  output_dir.mkdir(parents=True, exist_ok=True)
  lines = cells.lines(found)
  markdown = '\n'.join(
    [
      cells.as_markdown(found),
      *(f'{n}\n' for n in [*lines, *cells.note(found)]),
    ]
  )
  for name, text in {
    'table.md': markdown,
    'table.tex': cells.as_latex(found),
  }.items():
    files.write_atomically(output_dir / name, text.encode())
  print(cells.as_text(found))
  print()
  for line in lines:
    print(line)
  try:
    figures.draw_cells(found, output_dir)
  except ImportError as e:
    warnings.warn(f'No figures: {e}.', stacklevel=1)
  print(f'\nThe table and the figure: {output_dir.resolve()}')
