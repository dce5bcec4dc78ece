"""Runs files of TFF's tests, each in its own process, and judges the outcomes.

The processes are forked from one that has imported TFF, which takes seconds.
That works as long as the parent has run nothing in TensorFlow.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import fnmatch
import importlib.abc
import importlib.util
import json
import multiprocessing
from multiprocessing import connection
import os
import pathlib
import re
import runpy
import shutil
import signal
import sys
import tempfile
import time
import unittest

from absl import flags
from absl.testing import absltest

_PACKAGE = 'tensorflow_federated.python'


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What became of a test.

  Attributes:
    name: 'learning/a_test.py::Class.test_b', or just the file's path if the
      file failed outside of its tests.
    status: 'passed', 'failed', 'skipped' or 'running'.
    error: The first error, in one line.
  """

  name: str
  status: str
  error: str = ''


class _Helpers(importlib.abc.MetaPathFinder):
  """Finds the modules for tests that TFF's wheel lacks."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder

  def find_spec(self, fullname, path=None, target=None):
    if not fullname.startswith(f'{_PACKAGE}.'):
      return None
    parts = fullname.removeprefix(f'{_PACKAGE}.').split('.')
    file = self._folder.joinpath(*parts).with_suffix('.py')
    if not file.exists():
      return None
    return importlib.util.spec_from_file_location(fullname, file)


class _Result(unittest.TestResult):
  """Writes what tests report, one line of JSON each."""

  def __init__(self, log):
    super().__init__()
    self._log = log

  def _write(self, test, status, error=None):
    test = getattr(test, 'test_case', test)  # Of a subtest.
    if isinstance(test, unittest.TestCase):
      name = f'{type(test).__qualname__}.{test._testMethodName}'
    else:  # 'setUpClass (__main__.Class)'.
      name = re.sub(r'(\w+) \((?:__main__\.?)?(.*)\)', r'\2.\1', test.id())
    line = '' if error is None else _one_line(error[1])
    print(json.dumps([name, status, line]), file=self._log, flush=True)

  def startTest(self, test):  # noqa: N802
    super().startTest(test)
    self._write(test, 'running')

  def addSuccess(self, test):  # noqa: N802
    self._write(test, 'passed')

  def addExpectedFailure(self, test, err):  # noqa: N802
    self._write(test, 'passed')

  def addUnexpectedSuccess(self, test):  # noqa: N802
    self._write(test, 'failed', (None, AssertionError('unexpected success')))

  def addSkip(self, test, reason):  # noqa: N802
    # TensorFlow has a method test_session in each class, which is no test.
    self._write(test, 'no test' if reason == 'Not a test.' else 'skipped')

  def addFailure(self, test, err):  # noqa: N802
    self._write(test, 'failed', err)

  addError = addFailure  # noqa: N815

  def addSubTest(self, test, subtest, err):  # noqa: N802
    if err is not None:
      self._write(test, 'failed', err)


def _one_line(error: BaseException) -> str:
  """Returns the first and the last line of an error."""
  lines = [' '.join(line.split()) for line in str(error).splitlines()]
  ends = list(dict.fromkeys(filter(None, lines[:1] + lines[-1:])))
  return ' ... '.join([type(error).__name__, *(end[:200] for end in ends)])


def _run(folder: pathlib.Path, file: pathlib.Path, work: pathlib.Path):
  """Runs a file of tests as if it were the program; never returns.

  Args:
    folder: TFF's package.
    file: Path of the file in it.
    work: An empty folder. The results are written to work/results.
  """
  os.setsid()  # So that what a test has started ends with it.
  output = os.open(work / 'output', os.O_CREAT | os.O_WRONLY)
  os.dup2(output, 1)
  os.dup2(output, 2)
  os.chdir(work)
  os.environ['TEST_TMPDIR'] = flags.FLAGS.test_tmpdir = str(work / 'tmp')
  os.mkdir('tmp')
  tempfile.tempdir = str(work / 'tmp')
  sys.meta_path.append(_Helpers(folder))
  sys.argv = [str(folder / file)]
  golden = (folder / file.with_suffix('')).with_name(f'{file.stem}_goldens')
  with open('results', 'w') as log:

    def main(*args, **kwargs):
      del args, kwargs
      if golden.exists():
        flags.FLAGS.golden = [str(path) for path in golden.iterdir()]
      module = sys.modules['__main__']
      absltest.TestLoader().loadTestsFromModule(module)(_Result(log))

    absltest.main = main
    if 'tensorflow' in sys.modules:
      sys.modules['tensorflow'].test.main = main
    try:
      runpy.run_path(sys.argv[0], run_name='__main__')
    except BaseException as e:
      print(json.dumps(['', 'failed', _one_line(e)]), file=log, flush=True)
  os._exit(0)  # Threads of TensorFlow and gRPC do not end.


def _read(file: pathlib.Path, work: pathlib.Path, ended: str) -> list[Outcome]:
  """Returns the outcomes of a file's tests.

  Args:
    file: Path of the file.
    work: Folder of the process.
    ended: How the process ended; '' if well.
  """
  found: dict[str, Outcome] = {}
  results = work / 'results'
  for line in results.read_text().splitlines() if results.exists() else ():
    test, status, error = json.loads(line)
    name = f'{file}::{test}' if test else str(file)
    if status == 'no test':
      del found[name]
    elif name not in found or found[name].status != 'failed':
      found[name] = Outcome(name, status, error)
  for name, outcome in found.items():
    if outcome.status == 'running':
      found[name] = Outcome(name, 'failed', ended or 'the process ended')
      ended = ''
  if ended or not found:
    found[str(file)] = Outcome(str(file), 'failed', ended or 'no test ran')
  return list(found.values())


class _Child:
  """A process that runs a file."""

  def __init__(
    self,
    folder: pathlib.Path,
    file: pathlib.Path,
    work: pathlib.Path,
    time_limit: float,
  ):
    self._file, self._work, self._time_limit = file, work, time_limit
    self._deadline = time.monotonic() + time_limit
    work.mkdir()
    self.process = multiprocessing.get_context('fork').Process(
      target=_run, args=(folder, file, work)
    )
    self.process.start()

  def left(self) -> float:
    """Returns the seconds that it may still take; 0 if it has ended."""
    if self.process.exitcode is not None:
      return 0
    return max(self._deadline - time.monotonic(), 0)

  def kill(self) -> None:
    """Ends the process, and what it has started."""
    self.process.kill()
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self.process.pid, signal.SIGKILL)
    self.process.join()

  def outcomes(self) -> list[Outcome]:
    """Ends the process; returns the file's outcomes."""
    code = self.process.exitcode
    ended = f'ended with code {code}' if code else ''
    if code is None:
      ended = f'took more than {self._time_limit:g} s'
    elif code < 0:
      ended = f'crashed: {signal.Signals(-code).name}'
    self.kill()
    found = _read(self._file, self._work, ended)
    shutil.rmtree(self._work, ignore_errors=True)
    return found


def run_files(
  folder: pathlib.Path,
  files: Sequence[pathlib.Path],
  *,
  jobs: int,
  time_limit: float,
) -> Iterator[list[Outcome]]:
  """Runs files of tests, each in a forked process.

  Args:
    folder: The folder `tensorflow_federated/python` of TFF's sources.
    files: Paths of the files in it.
    jobs: Number of files to run at a time.
    time_limit: Seconds that a file may take.

  Yields:
    The outcomes of each file, as soon as it has ended.
  """
  waiting = list(enumerate(files))[::-1]
  running: list[_Child] = []
  with tempfile.TemporaryDirectory() as work:
    try:
      while waiting or running:
        while waiting and len(running) < jobs:
          i, file = waiting.pop()
          own = pathlib.Path(work, str(i))
          running.append(_Child(folder, file, own, time_limit))
        sentinels = [child.process.sentinel for child in running]
        connection.wait(sentinels, min(child.left() for child in running))
        for child in [child for child in running if not child.left()]:
          running.remove(child)
          yield child.outcomes()
    finally:
      for child in running:
        child.kill()


def covers(pattern: str, name: str) -> bool:
  """Returns whether a row of the table of expected failures is about a test.

  Args:
    pattern: Name of a file, a class or a test; may have * and ?.
    name: Name of an outcome.
  """
  whole = (pattern, f'{pattern}::*', f'{pattern}.*')
  return any(fnmatch.fnmatchcase(name, p) for p in whole)


def _folder_of(name: str) -> str:
  first, *others = pathlib.PurePath(name.partition('::')[0]).parts[:-1] or '.'
  return f'{first}/{others[0]}' if first == 'core' and others else first


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
    rows = [p for p in patterns if covers(p, outcome.name)]
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
