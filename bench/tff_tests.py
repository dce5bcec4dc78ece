"""Runs TFF's own tests on the in-process runtime.

    python -m bench.tff_tests --tests=tensorflow_federated/python

The folder is `tensorflow_federated/python` of TFF's sources: its wheel has no
tests. Each file runs in a process of its own, forked from one that has imported
TFF. `tff_tests.json` has the tests that are expected to fail, by reason. The
exit code is 1 if another test fails, or one of those passes.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
import collections
from collections.abc import Mapping, Sequence
import importlib
import json
import pathlib
import re
import sys

from absl import flags
from pda_fed.common import tables
import tqdm

from bench import forked_tests

_TESTS = flags.DEFINE_string(
  'tests',
  None,
  "Folder with TFF's tests: tensorflow_federated/python of its sources.",
  required=True,
)
_ONLY = flags.DEFINE_string(
  'only', '', 'Regular expression: run files whose path matches it.'
)
_JOBS = flags.DEFINE_integer(
  'jobs', 2, 'Number of files to run at a time.', lower_bound=1
)
_TIME_LIMIT = flags.DEFINE_float(
  'time_limit', 900, 'Seconds that a file may take.', lower_bound=0
)
_EXPECTED = flags.DEFINE_string(
  'expected',
  str(pathlib.Path(__file__).with_suffix('.json')),
  'JSON file: for each reason, names of files, classes or tests that fail for'
  ' it. Names may have * and ?.',
)
_IMPORTS = flags.DEFINE_list(
  'imports',
  ['pda_fed.tff.runtime', 'tensorflow_federated', 'tensorflow_privacy'],
  'Modules to import before the processes are forked.',
)


def _table(counts: Mapping[str, collections.Counter]) -> str:
  kinds = ('passed', 'expected', 'failed', 'skipped')
  rows = [
    [folder, sum(c.values()), *(c[kind] for kind in kinds)]
    for folder, c in sorted(counts.items())
  ]
  rows.append(['all', *(sum(r[i] for r in rows) for i in range(1, 6))])
  return tables.format_table(['folder', 'tests', *kinds], rows)


def _find_files(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the paths of the files to run."""
  try:
    only = re.compile(_ONLY.value)
  except re.error as e:
    raise ValueError(
      f'--only must be a regular expression. Found {_ONLY.value!r}: {e}.'
    ) from e
  found = sorted(p.relative_to(folder) for p in folder.rglob('*_test.py'))
  files = [file for file in found if only.search(str(file))]
  if not files:
    raise ValueError(
      f'--tests must have files *_test.py whose path matches --only'
      f' ({_ONLY.value!r}). Found {len(found)} files *_test.py in {folder}.'
    )
  return files


def _read_expected(files: Sequence[pathlib.Path]) -> list[str]:
  """Returns the rows of the table for some files."""
  text = pathlib.Path(_EXPECTED.value).read_text()
  try:
    groups = json.loads(text)
  except ValueError as e:
    raise ValueError(
      f'--expected must be a JSON file. Found {_EXPECTED.value!r}: {e}.'
    ) from e
  return [
    pattern
    for group in groups.values()
    for pattern in group
    if any(
      forked_tests.covers(pattern.partition('::')[0], str(file))
      for file in files
    )
  ]


def main() -> None:
  """Runs the files and prints what failed."""
  folder = pathlib.Path(_TESTS.value).resolve()
  files = _find_files(folder)
  patterns = _read_expected(files)
  for module in _IMPORTS.value:
    importlib.import_module(module)
  outcomes = []
  with tqdm.tqdm(total=len(files), unit='file', disable=None) as bar:
    for found in forked_tests.run_files(
      folder, files, jobs=_JOBS.value, time_limit=_TIME_LIMIT.value
    ):
      outcomes += found
      bar.update()
  counts, problems = forked_tests.judge(outcomes, patterns)
  print(_table(counts))
  if problems:
    print('', *problems, sep='\n')
    sys.exit(1)


if __name__ == '__main__':
  cli.run(main)
