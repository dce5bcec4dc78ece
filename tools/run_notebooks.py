"""Runs the tutorials and saves their outputs.

    python tools/run_notebooks.py docs/tutorials/*.ipynb

`make notebooks` does this for all of them. Outputs that change from run to run,
such as times and process ids, are removed, so that a notebook only changes if
its results do.
"""

import os
import pathlib
import sys

import nbclient
import nbformat

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# Maximum seconds of a cell: ten times as long as cells take.
_CELL_TIMEOUT = 600


def execute(path: os.PathLike) -> nbformat.NotebookNode:
  """Runs a notebook in its own folder.

  Args:
    path: A notebook. The file is not changed.

  Returns:
    The notebook with its outputs.

  Raises:
    nbclient.exceptions.CellExecutionError: If a cell fails.
  """
  path = pathlib.Path(path)
  notebook = nbformat.read(path, as_version=4)
  client = nbclient.NotebookClient(
    notebook,
    timeout=_CELL_TIMEOUT,
    kernel_name='python3',
    resources={'metadata': {'path': str(path.resolve().parent)}},
    record_timing=False,
    coalesce_streams=True,
  )
  client.execute()
  return clean(notebook)


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
  """Removes, in place, what depends on the machine or the time."""
  kernel = {'display_name': 'Python 3', 'language': 'python', 'name': 'python3'}
  notebook.metadata = nbformat.from_dict(
    {'kernelspec': kernel, 'language_info': {'name': 'python'}}
  )
  for cell in notebook.cells:
    cell.metadata = nbformat.from_dict({})
    if cell.cell_type != 'code':
      continue
    # Without warnings, such as those of a machine without a GPU.
    cell.outputs = [o for o in cell.outputs if o.get('name') != 'stderr']
    for output in cell.outputs:
      if output.output_type != 'stream':
        output.metadata = nbformat.from_dict({})
        if 'image/png' in output.data:  # Only '<Figure size ...>'.
          output.data.pop('text/plain', None)
  return notebook


def main() -> None:
  """Runs the given notebooks, in place."""
  paths = sys.argv[1:] or sorted((_ROOT / 'docs/tutorials').glob('*.ipynb'))
  for path in paths:
    print(f'{path} ...', end=' ', flush=True)
    nbformat.write(execute(path), path)
    print('done')


if __name__ == '__main__':
  main()
