"""Runs TFF's own tests on the in-process runtime.

    python -m bench.tff_tests --tests=tensorflow_federated/python

The folder is `tensorflow_federated/python` of TFF's sources: its wheel has no
tests. Each file runs in a process of its own, forked from one that has imported
TFF, which takes seconds, and has run nothing in TensorFlow. `tff_tests.json`
has the tests that are expected to fail, by reason. The exit code is 1 if
another test fails, or one of those passes.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
import collections
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import fnmatch
import importlib.abc
import importlib.util
import json
import os
import pathlib
import runpy
import signal
import sys
import tempfile
import traceback
from typing import NamedTuple
from xml.etree import ElementTree

from absl import flags
from pda_fed.common import tables
import tqdm

_TESTS = flags.DEFINE_string(
  'tests',
  None,
  "Folder with TFF's tests: tensorflow_federated/python of its sources.",
)
_ONLY = flags.DEFINE_string(
  'only', '*', 'Run files whose path matches this pattern, with * and ?.'
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
_PACKAGE = 'tensorflow_federated.python.'
_KINDS = ('passed', 'expected', 'failed', 'skipped')


class Outcome(NamedTuple):
  """What became of a test: passed, failed or skipped.

  The name is 'learning/a_test.py::Class.test_b', or just the file's path if the
  file failed outside of its tests. The error is the first line of the first.
  """

  name: str
  status: str
  error: str = ''


class _Helpers(importlib.abc.MetaPathFinder):
  """Finds the modules for tests that TFF's wheel lacks."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder

  def find_spec(self, fullname, path=None, target=None):
    if not fullname.startswith(_PACKAGE):
      return None
    parts = fullname.removeprefix(_PACKAGE).split('.')
    file = self._folder.joinpath(*parts).with_suffix('.py')
    if not file.exists():
      return None
    return importlib.util.spec_from_file_location(fullname, file)


def _run(folder: pathlib.Path, file: pathlib.Path, work: pathlib.Path):
  """Runs a file of tests as if it were the program; never returns."""
  os.setsid()  # So that what a test has started ends with it.
  signal.setitimer(signal.ITIMER_REAL, _TIME_LIMIT.value)
  output = os.open(work / 'output', os.O_CREAT | os.O_WRONLY)
  os.dup2(output, 1)
  os.dup2(output, 2)
  os.chdir(work)
  os.mkdir('tmp')
  tempfile.tempdir = os.environ['TEST_TMPDIR'] = str(work / 'tmp')
  sys.meta_path.append(_Helpers(folder))
  golden = (folder / file).with_name(f'{file.stem}_goldens')
  sys.argv = [
    str(folder / file),
    f'--test_tmpdir={work / "tmp"}',
    f'--xml_output_file={work / "results.xml"}',
    *(f'--golden={p}' for p in golden.glob('*')),
  ]
  try:
    runpy.run_path(sys.argv[0], run_name='__main__')
  except SystemExit:
    pass  # The results say which test failed.
  except BaseException:
    traceback.print_exc()
    os._exit(1)
  os._exit(0)  # Threads of TensorFlow and gRPC do not end.


def _tests(file: pathlib.Path, results: pathlib.Path) -> Iterator[Outcome]:
  """Yields the outcomes that the file's program has written."""
  for case in ElementTree.parse(results).iter('testcase'):
    # Parameters and subtests stand behind a space.
    test = case.get('name').partition(' ')[0]
    if test == 'test_session':  # Each class of TensorFlow's has this method.
      continue
    name = f'{file}::{case.get("classname").removeprefix("__main__.")}.{test}'
    error = next(iter(case), None)
    if error is not None:
      line, *_ = error.get('message').splitlines() or ['']
      yield Outcome(name, 'failed', f'{error.get("type")}: {line}')
    else:
      skipped = case.get('status') == 'notrun'
      yield Outcome(name, 'skipped' if skipped else 'passed')


def _outcomes(
  file: pathlib.Path, work: pathlib.Path, code: int
) -> list[Outcome]:
  """Returns the outcomes of a file whose process ended so, each test once."""
  found = {}
  results = work / 'results.xml'
  if results.exists() and results.stat().st_size:  # A crash leaves it empty.
    for outcome in _tests(file, results):
      if outcome.name not in found or found[outcome.name].status != 'failed':
        found[outcome.name] = outcome
  if code or not found:
    error = 'no test ran'
    if code == -signal.SIGALRM:
      error = f'took more than {_TIME_LIMIT.value:g} s'
    elif code < 0:
      error = f'crashed: {signal.Signals(-code).name}'
    elif code:
      error = (work / 'output').read_text().splitlines()[-1]
    found[str(file)] = Outcome(str(file), 'failed', error)
  return list(found.values())


def _kill(group: int) -> None:
  with contextlib.suppress(ProcessLookupError):
    os.killpg(group, signal.SIGKILL)


def _run_files(
  folder: pathlib.Path, files: Sequence[pathlib.Path]
) -> Iterator[list[Outcome]]:
  """Yields the outcomes of each file, as soon as it has ended."""
  waiting, running = list(files)[::-1], {}
  with tempfile.TemporaryDirectory() as temporary:
    try:
      while waiting or running:
        while waiting and len(running) < _JOBS.value:
          file = waiting.pop()
          work = pathlib.Path(temporary, str(len(waiting)))
          work.mkdir()
          pid = os.fork()
          if not pid:
            _run(folder, file, work)
          running[pid] = file, work
        pid, status = os.wait()
        _kill(pid)
        yield _outcomes(*running.pop(pid), os.waitstatus_to_exitcode(status))
    finally:
      for pid in running:
        _kill(pid)


def _covers(pattern: str, name: str) -> bool:
  """Whether a row of the table of expected failures is about an outcome."""
  whole = (pattern, f'{pattern}::*', f'{pattern}.*')
  return any(fnmatch.fnmatchcase(name, p) for p in whole)


def _folder_of(name: str) -> str:
  parts = pathlib.PurePath(name.partition('::')[0]).parts[:-1] or ('.',)
  return '/'.join(parts[: 2 if parts[0] == 'core' else 1])


def judge(
  outcomes: Sequence[Outcome], patterns: Sequence[str]
) -> tuple[Mapping[str, collections.Counter], list[str]]:
  """Compares outcomes to the table of expected failures.

  Args:
    outcomes: What became of the tests.
    patterns: The rows of the table for the files that ran.

  Returns:
    For each folder, how many tests were passed, expected, failed and skipped;
    a line for each problem.
  """
  counts = collections.defaultdict(collections.Counter)
  problems = []
  used = set()
  for outcome in outcomes:
    rows = [p for p in patterns if _covers(p, outcome.name)]
    failed = outcome.status == 'failed'
    used.update(rows if failed else ())
    kind = 'expected' if failed and rows else outcome.status
    counts[_folder_of(outcome.name)][kind] += 1
    if kind == 'failed':
      problems.append(f'{outcome.name}: {outcome.error}')
    elif rows and kind == 'passed':
      problems.append(f'{outcome.name}: passed; expected to fail: {rows[0]}')
  problems += [f'{p}: has no failure' for p in set(patterns) - used]
  return counts, sorted(problems)


def _table(counts: Mapping[str, collections.Counter]) -> str:
  rows = [
    [folder, sum(c.values()), *(c[kind] for kind in _KINDS)]
    for folder, c in sorted(counts.items())
  ]
  rows.append(['all', *(sum(r[i] for r in rows) for i in range(1, 6))])
  return tables.format_table(['folder', 'tests', *_KINDS], rows)


def _find_files(folder: pathlib.Path) -> list[pathlib.Path]:
  found = sorted(p.relative_to(folder) for p in folder.rglob('*_test.py'))
  files = [f for f in found if fnmatch.fnmatchcase(str(f), _ONLY.value)]
  if not files:
    raise ValueError(
      f'--tests must have files *_test.py whose path matches --only'
      f' ({_ONLY.value!r}). Found {len(found)} files *_test.py in {folder}.'
    )
  return files


def _read_expected(files: Sequence[pathlib.Path]) -> list[str]:
  """Returns the rows of the table for some files."""
  try:
    groups = json.loads(pathlib.Path(_EXPECTED.value).read_text())
  except ValueError as e:
    raise ValueError(
      f'--expected must be a JSON file. Found {_EXPECTED.value!r}: {e}.'
    ) from e
  return [
    pattern
    for group in groups.values()
    for pattern in group
    if any(_covers(pattern.partition('::')[0], str(f)) for f in files)
  ]


def main() -> None:
  """Runs the files and prints what failed."""
  if not _TESTS.value:
    raise ValueError('--tests must be given.')
  folder = pathlib.Path(_TESTS.value).resolve()
  files = _find_files(folder)
  patterns = _read_expected(files)
  for module in _IMPORTS.value:
    importlib.import_module(module)
  outcomes = []
  for found in tqdm.tqdm(
    _run_files(folder, files), total=len(files), unit='file', disable=None
  ):
    outcomes += found
  counts, problems = judge(outcomes, patterns)
  print(_table(counts))
  if problems:
    print('', *problems, sep='\n')
    sys.exit(1)


if __name__ == '__main__':
  cli.run(main)
