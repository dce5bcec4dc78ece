"""The runner of TFF's tests, on small files of tests."""

import collections
import json
import pathlib
import subprocess
import sys

from bench import tff_tests

_ROOT = pathlib.Path(__file__).parents[2]
_ABSL = """
from absl.testing import absltest
from absl.testing import parameterized

class ATest(parameterized.TestCase):
  @parameterized.parameters(1, 2)
  def test_number(self, number):
    self.assertEqual(number, {number})

  def test_skipped(self):
    self.skipTest('later')

if __name__ == '__main__':
  absltest.main()
"""
_CRASH = """
import os
import signal
from absl.testing import absltest

class CrashTest(absltest.TestCase):
  def test_a(self):
    pass

  def test_b(self):
    os.kill(os.getpid(), signal.SIGSEGV)

if __name__ == '__main__':
  absltest.main()
"""
_ASYNC = """
import asyncio
import sys
import types
import unittest
for name in ('', '.python', '.python.learning'):  # Importing TFF takes long.
  package = types.ModuleType('tensorflow_federated' + name)
  package.__path__ = []
  sys.modules[package.__name__] = package
from absl.testing import absltest
from tensorflow_federated.python.learning import made_up_helper

class AsyncTest(unittest.IsolatedAsyncioTestCase):
  async def test_helper(self):
    await asyncio.sleep(0)
    self.assertEqual(made_up_helper.VALUE, 7)

  async def test_subtests(self):
    for i in range(3):
      with self.subTest(i):
        self.assertEqual(i, 1, msg='first\\nmiddle\\nlast')

if __name__ == '__main__':
  absltest.main()
"""
_SLOW = """
import time
time.sleep(60)
"""


def _run(folder, expected, *flags):
  path = folder.parent / 'expected.json'
  path.write_text(json.dumps(expected))
  command = [sys.executable, '-m', 'bench.tff_tests', '--imports=']
  command += [f'--tests={folder}', f'--expected={path}', *flags]
  return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)


def _write(folder, **files):
  for name, text in files.items():
    path = folder / 'learning' / f'{name}.py'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return folder


def test_outcomes(tmp_path):
  folder = _write(
    tmp_path / 'tests',
    absl_test=_ABSL.replace('{number}', 'number'),
    crash_test=_CRASH,
    other_test=_ABSL.replace('{number}', '1'),
    broken_test='import no_such_module',
    empty_test='',
  )
  expected = {'wrong': ['learning/other_test.py::ATest.test_number*']}
  found = _run(folder, expected)
  assert found.returncode == 1, found.stderr
  table, _, problems = found.stdout.partition('\n\n')
  assert table.splitlines()[2].split() == 'learning 9 3 1 3 2'.split()
  assert problems.splitlines() == [
    'learning/broken_test.py: ModuleNotFoundError: No module named'
    " 'no_such_module'",
    'learning/crash_test.py: crashed: SIGSEGV',
    'learning/empty_test.py: no test ran',
    'learning/other_test.py::ATest.test_number0: passed; expected to'
    ' fail: learning/other_test.py::ATest.test_number*',
  ]


def test_helpers_subtests_and_async_tests(tmp_path):
  folder = _write(
    tmp_path / 'tests', async_test=_ASYNC, made_up_helper='VALUE = 7'
  )
  name = 'learning/async_test.py::AsyncTest.test_subtests'
  found = _run(folder, {})
  assert f"{name}: <class 'AssertionError'>: 0 != 1 : first" in found.stdout
  found = _run(folder, {'a reason': [name], 'not run': ['core/b_test.py']})
  assert found.returncode == 0, found.stdout
  assert found.stdout.splitlines()[2].split() == 'learning 2 1 1 0 0'.split()


def test_time_limit(tmp_path):
  found = _run(
    _write(tmp_path / 'tests', slow_test=_SLOW), {}, '--time_limit=0.5'
  )
  assert found.returncode == 1
  assert 'slow_test.py: took more than 0.5 s' in found.stdout


def test_bad_input(tmp_path):
  found = _run(tmp_path, {})
  assert found.returncode == 2
  assert 'Found 0 files *_test.py in' in found.stderr
  assert len(found.stderr.splitlines()) == 1


def test_rows_of_the_table():
  failed = tff_tests.Outcome('core/impl/a_test.py::BTest.test_c', 'failed', 'e')
  rows = {
    'core/impl/a_test.py': True,
    'core/*/a_test.py::B*': True,
    'core/impl/a_test.py::BTest': True,
    'core/impl/a_test.py::BTest.test_?': True,
    'core/impl/a_test.py::BTest.test': False,
    'core/impl/a_test.py::B': False,
  }
  for row, covers in rows.items():
    counts, problems = tff_tests.judge([failed], [row])
    kind = 'expected' if covers else 'failed'
    assert counts == {'core/impl': collections.Counter({kind: 1})}
    wanted = [f'{failed.name}: e', f'{row}: has no failure']
    assert problems == ([] if covers else sorted(wanted))
