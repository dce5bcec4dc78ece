"""What the tests share."""

import os
import signal
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# Programs of tests run for a moment: compiling them is what takes time.
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')

import pathlib
import tempfile

import hypothesis
import pytest

from tests import machine

# Files that have nothing, or next to nothing, to run where there is no TFF.
_FILES_OF_TFF = (
  'tests/data_prep/client_data_test.py',
  'tests/data_prep/sources/tff_stackoverflow_test.py',
  'tests/experiments/remote_engine_test.py',
  'tests/experiments/tff_engine_test.py',
  'tests/learning/*_test.py',
  'tests/runtime/*_test.py',
  'tests/scripts/worker_test.py',
  'tests/vectorized/engines_agree_test.py',
)
_WHY = 'tensorflow-federated has no wheels for this machine'
# The one test that stands for such a file.
_WHOLE_FILE = 'whole_file'

# A busy machine is no reason to fail.
hypothesis.settings.register_profile(
  'patient',
  deadline=None,
  suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile('patient')

# A shell starts programs in the background with SIGINT ignored, which programs
# inherit: tests of Ctrl-C would then fail for no fault of ours.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def short_path():
  """A folder whose path leaves room for a Unix socket's name."""
  with tempfile.TemporaryDirectory(prefix='pda-', dir='/tmp') as folder:
    yield pathlib.Path(folder)


def pytest_addoption(parser):
  """Flags of tests/fuzz; here, since pytest asks no folder below for flags."""
  parser.addoption(
    '--fuzz_cases', type=int, default=500, help='Cases of each fuzz target.'
  )
  parser.addoption(
    '--fuzz_seed', type=int, default=0, help='Of the first fuzz case.'
  )


@pytest.fixture(scope='session')
def tff_worker():
  """One TFF worker for all tests of a pytest process that compute with TFF."""
  from pda_fed import runtime

  with runtime.local_workers() as workers:
    yield workers[0]


class _LeftOut(pytest.Item):
  def runtest(self):
    pytest.skip(_WHY)


class _FileLeftOut(pytest.File):
  def collect(self):
    yield _LeftOut.from_parent(self, name=_WHOLE_FILE)


def pytest_pycollect_makemodule(module_path, parent):
  """Leaves out the files that need TFF where there is none.

  Args:
    module_path: Of a test file.
    parent: Its node.

  Returns:
    What stands for the file; None to collect it as always.
  """
  if machine.HAS_TFF:
    return None
  if any(module_path.match(pattern) for pattern in _FILES_OF_TFF):
    return _FileLeftOut.from_parent(parent, path=module_path)
  return None


def pytest_collection_modifyitems(items):
  """Skips tests that are marked with needs_tff where there is none."""
  for item in items:
    of_tff = item.get_closest_marker('needs_tff') is not None
    of_tff |= 'tff_worker' in getattr(item, 'fixturenames', ())
    if of_tff and not machine.HAS_TFF:
      item.add_marker(pytest.mark.skip(reason=_WHY))


def pytest_terminal_summary(terminalreporter):
  """Says in one line what was left out for want of TFF, and why."""
  skipped = [
    report.nodeid
    for report in terminalreporter.stats.get('skipped', ())
    if _WHY in str(report.longrepr)
  ]
  files = sum(nodeid.endswith(f'::{_WHOLE_FILE}') for nodeid in skipped)
  if skipped:
    terminalreporter.write_line(
      f'LEFT OUT: {files} whole files and {len(skipped) - files} tests of'
      f' others: {_WHY}.',
      yellow=True,
    )


def pytest_unconfigure(config):
  """Lets go of TFF's default context while Python is still whole.

  Its destructor, run after Python has emptied the modules, prints a traceback.

  Args:
    config: Not used.
  """
  del config
  tff = sys.modules.get('tensorflow_federated')
  if tff is not None:

    class NoContext(tff.framework.SyncContext):
      def invoke(self, comp, arg):
        raise RuntimeError('The tests are over.')

    tff.framework.set_default_context(NoContext())
