"""What conftest.py leaves out where there is no TFF, and nowhere else."""

import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_PROGRAM = """
import platform, sys
platform.machine = lambda: sys.argv[1]
sys.modules['tensorflow_federated'] = None  # As if it were not installed.
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""
_OF_TFF = 'import tensorflow_federated\n\ndef test_a(): pass\n'
_MIXED = """
import pytest

@pytest.mark.needs_tff
def test_b():
  import tensorflow_federated

def test_c(tff_worker): pass

def test_d(): pass
"""


@pytest.fixture
def tests(tmp_path):
  folder = tmp_path / 'tests'
  for name, text in (('learning', _OF_TFF), ('scripts', _MIXED)):
    (folder / name).mkdir(parents=True)
    (folder / name / 'some_test.py').write_text(text)
  return folder


def _run(machine, tests, *arguments):
  own = ['-c', str(_ROOT / 'pyproject.toml'), f'--rootdir={tests.parent}']
  plugins = ['-p', 'tests.conftest', '-p', 'no:cacheprovider']
  return subprocess.run(
    [sys.executable, '-c', _PROGRAM, machine]
    + [*own, *plugins, str(tests), *arguments],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )


@pytest.mark.parametrize('processes', [(), ('-n', '2')])
def test_on_aarch64_one_line_counts_what_is_left_out(tests, processes):
  done = _run('aarch64', tests, *processes)
  assert done.returncode == 0, done.stdout
  assert '1 passed, 3 skipped' in done.stdout
  assert 'LEFT OUT: 1 whole files and 2 tests of others' in done.stdout


def test_on_x86_64_a_missing_tff_fails(tests):
  done = _run('x86_64', tests, '--continue-on-collection-errors')
  assert done.returncode == 1
  # test_b fails, test_c and the file of test_a are errors.
  assert '1 failed, 1 passed, 2 errors' in done.stdout
  assert 'LEFT OUT' not in done.stdout
