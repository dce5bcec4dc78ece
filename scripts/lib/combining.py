"""--combine, which merges finished comparisons into one table and figure."""

from collections.abc import Sequence
import pathlib
import warnings

from absl import flags
from pda_fed.common import files
from pda_fed.compare import cells
from pda_fed.compare import figures
from scripts.lib import job_flags
from scripts.lib import select_flags

COMBINE = flags.DEFINE_list(
  'combine',
  None,
  'Folders of finished comparisons, separated by commas. Runs nothing, but'
  ' merges them into one table (table.md, table.tex) and one figure'
  ' (cells.png, cells.svg). --metrics chooses the metrics to show.',
)


def _check(
  arguments: Sequence[str], of_runs: Sequence[str], folder: pathlib.Path
) -> None:
  """Raises if --combine is given with flags of runs."""
  given = [f'--{name}' for name in of_runs if flags.FLAGS[name].present]
  if given or arguments:
    raise ValueError(
      '--combine must only be given with --output_dir, --metrics and'
      ' --select_by, and its folders must be separated by commas. Found'
      f' {" ".join([*given, *arguments])}.'
    )
  if folder.exists() and not folder.is_dir():
    raise ValueError(f'output_dir must be a folder. Found the file {folder}.')
  if (folder / 'runs').exists():
    raise ValueError(
      f'output_dir must be a separate folder. Found {folder}, which holds a'
      " comparison's own tables and runs."
    )


def combine(
  arguments: Sequence[str], of_runs: Sequence[str], metrics: Sequence[str]
) -> None:
  """Merges finished comparisons into one table and one figure.

  Args:
    arguments: Arguments after --. There must be none.
    of_runs: Names of flags that only make sense for runs.
    metrics: Names of the metrics to show.

  Raises:
    ValueError: If flags do not fit --combine, or a folder holds no comparison.
  """
  folder = job_flags.output_dir()
  _check(arguments, of_runs, folder)
  found = cells.load_cells(COMBINE.value, metrics, select_flags.SELECT_BY.value)
  folder.mkdir(parents=True, exist_ok=True)
  lines = cells.lines(found)
  markdown = '\n'.join(
    [
      cells.as_markdown(found),
      *(f'{n}\n' for n in [*lines, *cells.note(found)]),
    ]
  )
  files.write_atomically(folder / 'table.md', markdown.encode())
  files.write_atomically(folder / 'table.tex', cells.as_latex(found).encode())
  print(cells.as_text(found))
  print()
  for line in lines:
    print(line)
  try:
    figures.draw_cells(found, folder)
  except ImportError as e:
    warnings.warn(f'No figures: {e}.', stacklevel=1)
  print(f'\nThe table and the figure: {folder.resolve()}')
