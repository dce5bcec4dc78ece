"""Where hosts are, as flags or clusters say it."""

import subprocess
import sys

from pda_fed.runs import connecting
import pytest


@pytest.mark.parametrize(
  'settings, words',
  [
    ({'coordinator': 'a'}, 'coordinator must be HOST:PORT'),
    ({'coordinator': 'a:65536'}, 'coordinator must be HOST:PORT'),
    ({'timeout_s': 0}, 'timeout_s must be at least 1'),
    ({'num_hosts': 0}, 'num_hosts must be at least 1'),
    ({'host_index': -1}, 'host_index must be at least 0'),
    ({'num_hosts': 2, 'host_index': 2}, r'host_index must be in \[0, 1\]'),
  ],
)
def test_bad_settings(settings, words):
  with pytest.raises(ValueError, match=words):
    connecting.HostSettings('secret', **settings)


@pytest.fixture
def job(monkeypatch):
  """The variables of a job of SLURM."""
  monkeypatch.delenv('JAX_COORDINATOR_ADDRESS', raising=False)
  values = {
    'JOB_ID': '77',
    'STEP_NODELIST': 'node[03-06]',
    'NTASKS': '4',
    'PROCID': '2',
    'LOCALID': '0',
  }
  for name, value in values.items():
    monkeypatch.setenv(f'SLURM_{name}', value)


@pytest.mark.usefixtures('job')
def test_a_cluster_fills_what_is_not_given():
  found = connecting._from_cluster(connecting.HostSettings('secret'))
  assert found.coordinator.startswith('node03:')
  assert (found.num_hosts, found.host_index) == (4, 2)
  given = connecting.HostSettings('secret', 'a.lan:8476', 2, 1, 7)
  assert connecting._from_cluster(given) == given


@pytest.mark.usefixtures('job')
def test_the_gate_is_at_the_coordinator_of_the_cluster(monkeypatch, tmp_path):
  """Not on every address of host 0."""
  opened = []

  def open_gate(secret, coordinator, index, count, *, timeout_s):
    opened.append((secret, coordinator.split(':')[0], index, count, timeout_s))
    raise connecting.gate_lib.GateError('enough')

  monkeypatch.setattr(connecting.gate_lib, 'Gate', open_gate)
  path = tmp_path / 'secret'
  path.touch(mode=0o600)
  path.write_text('s' * 32)
  with pytest.raises(ValueError, match='^enough$'):
    connecting.connect(connecting.HostSettings(str(path), timeout_s=3))
  assert opened == [(b's' * 32, 'node03', 2, 4, 3)]


def test_no_cluster(monkeypatch):
  for name in ('JOB_ID', 'NTASKS'):
    monkeypatch.delenv(f'SLURM_{name}', raising=False)
  monkeypatch.delenv('JAX_COORDINATOR_ADDRESS', raising=False)
  with pytest.raises(ValueError, match='must be given if the cluster does not'):
    connecting._from_cluster(connecting.HostSettings('secret', num_hosts=2))


_ABORT = """
import os, sys, threading
from pda_fed.runs import connecting as lib
with lib.LastWords() as last_words:
  last_words.set('error: too early', 1)
  print('seen')
  os.write(1, b'hidden')
  os.write(2, b'hidden')
  last_words.set('error: it is gone', 3)
  if len(sys.argv) > 1:
    thread = threading.Thread(target=os.abort)
    thread.start()
    thread.join()
print('seen, too', file=sys.stderr)
os.write(1, b'back')
"""


def _run_abort(*arguments):
  return subprocess.run(
    [sys.executable, '-c', _ABORT, *arguments],
    capture_output=True,
    text=True,
    check=False,
  )


def test_an_abort_ends_with_one_line():
  done = _run_abort('abort')
  assert (done.returncode, done.stdout) == (3, 'seen\n')
  assert done.stderr == 'error: it is gone\n'


@pytest.mark.slow
def test_output_comes_back():
  done = _run_abort()
  assert (done.returncode, done.stdout) == (0, 'seen\nback')
  assert done.stderr == 'seen, too\n'
