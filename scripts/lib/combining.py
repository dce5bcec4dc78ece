"""--combine: one table and figure of finished comparisons."""

from collections.abc import Sequence
import pathlib
import warnings

from absl import flags
from pda_fed.analysis import cells
from pda_fed.analysis import figures
from pda_fed.common import files
from scripts.lib import job_flags
from scripts.lib import select_flags

COMBINE = flags.DEFINE_list(
  'combine',
  None,
  'Folders of finished comparisons: nothing is run, and they become one table,'
  ' table.md and table.tex, and one figure, cells.png and cells.svg. --metrics'
  ' chooses what they show.',
)


def _check(
  arguments: Sequence[str], of_runs: Sequence[str], folder: pathlib.Path
) -> None:
  """Raises if --combine comes with what is for runs."""
  given = [f'--{name}' for name in of_runs if flags.FLAGS[name].present]
  if given or arguments:
    raise ValueError(
      '--combine runs nothing: it takes --output_dir, --metrics and'
      ' --select_by alone, and commas between folders. Found'
      f' {" ".join([*given, *arguments])}.'
    )
  if folder.exists() and not folder.is_dir():
    raise ValueError(f'output_dir must be a folder. Found the file {folder}.')
  if (folder / 'runs').exists():
    raise ValueError(
      f'output_dir must be a folder of its own. Found {folder}, whose tables'
      ' are those of its runs.'
    )


def combine(
  arguments: Sequence[str], of_runs: Sequence[str], metrics: Sequence[str]
) -> None:
  """Makes one table and figure of finished comparisons.

  Args:
    arguments: What stands after --, where nothing may stand.
    of_runs: Flags that have a meaning for runs alone.
    metrics: Those to show.

  Raises:
    ValueError: If flags do not fit, or folders hold no comparisons.
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
