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
    nbclient.exceptions.CellExecutionError: If a cell fails. The message has the
      cell and the traceback.
  """
  path = pathlib.Path(path)
  notebook = nbformat.read(path, as_version=4)
  client = nbclient.NotebookClient(
    notebook,
    timeout=_CELL_TIMEOUT,
    kernel_name='python3',
    resources={'metadata': {'path': str(path.resolve().parent)}},
    record_timing=False,
  )
  client.execute()
  return clean(notebook)


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
  """Removes everything that depends on the machine or the time.

  Args:
    notebook: The notebook, changed in place.

  Returns:
    The notebook.
  """
  notebook.metadata = nbformat.from_dict(
    {
      'kernelspec': {
        'display_name': 'Python 3',
        'language': 'python',
        'name': 'python3',
      },
      'language_info': {'name': 'python'},
    }
  )
  for cell in notebook.cells:
    cell.metadata = nbformat.from_dict({})
    if cell.cell_type != 'code':
      continue
    # Merge text that was printed in several pieces.
    outputs = []
    for output in cell.outputs:
      if output.output_type == 'stream' and output.name == 'stderr':
        continue
      output.pop('metadata', None)
      if output.output_type in ('display_data', 'execute_result'):
        output.metadata = nbformat.from_dict({})
        if 'image/png' in output.data:  # Only '<Figure size ...>'.
          output.data.pop('text/plain', None)
      last = outputs[-1] if outputs else None
      if (
        last is not None and last.output_type == output.output_type == 'stream'
      ):
        last.text += output.text
      else:
        outputs.append(output)
    cell.outputs = outputs
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
