"""Strangers in the network of a run: which doors they find, and what behind."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests.runs import tiny_users
from tests.scripts import host_processes
from tests.scripts import programs

pytestmark = pytest.mark.slow

# Of the hosts and of the stranger, in two networks.
_HOSTS = ('10.77.1.1', '10.77.2.1')
_STRANGERS = ('10.77.1.2', '10.77.2.2')


class _Machine:
  """A network namespace, which lives as long as a process in it."""

  def __init__(self):
    self._process = subprocess.Popen(['unshare', '--net', 'sleep', '1000'])
    own = pathlib.Path(f'/proc/{os.getpid()}/ns/net').readlink()
    theirs = pathlib.Path(f'/proc/{self._process.pid}/ns/net')
    for _ in range(200):
      with contextlib.suppress(OSError):
        if theirs.readlink() != own:
          break
      time.sleep(0.02)
    else:
      raise OSError('unshare makes no namespace')

  @property
  def within(self):
    """The start of a command that runs there."""
    return ['nsenter', '--net', '--target', str(self._process.pid)]

  @property
  def pid(self):
    return str(self._process.pid)

  def run(self, *words):
    return subprocess.run(
      [*self.within, *words],
      cwd=programs.ROOT,
      env=os.environ | {'JAX_PLATFORMS': 'cpu'},
      capture_output=True,
      text=True,
      timeout=120,
      check=False,
    )

  def ip(self, *words):
    done = self.run('ip', *words)
    if done.returncode:
      raise OSError(done.stderr)

  def close(self):
    self._process.kill()
    self._process.wait()


@pytest.fixture
def machines():
  """The hosts' machine and a stranger's, with two networks between them."""
  found = []
  try:
    found += [_Machine(), _Machine()]
    for i, addresses in enumerate(zip(_HOSTS, _STRANGERS, strict=True)):
      end = ['peer', 'name', f'b{i}', 'netns', found[1].pid]
      found[0].ip('link', 'add', f'a{i}', 'type', 'veth', *end)
      for machine, name, address in zip(found, 'ab', addresses, strict=True):
        machine.ip('address', 'add', f'{address}/24', 'dev', f'{name}{i}')
        machine.ip('link', 'set', f'{name}{i}', 'up')
    for machine in found:
      machine.ip('link', 'set', 'lo', 'up')
  except OSError as e:
    for machine in found:
      machine.close()
    pytest.skip(f'Network namespaces need root, unshare and ip: {e}')
  yield found
  for machine in found:
    machine.close()


@pytest.fixture(scope='module')
def store(tmp_path_factory):
  return tiny_users.prepare_table(tmp_path_factory.mktemp('users') / 'store')


_CONNECT = """
import socket, sys
try:
  socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()
  print('open')
except OSError as e:
  print(type(e).__name__)
"""


def _door(machine, host, port):
  done = machine.run(sys.executable, '-c', _CONNECT, host, str(port))
  return done.stdout.strip()


def _wait_for_door(machine, host, port):
  for _ in range(100):
    if _door(machine, host, port) == 'open':
      return
    time.sleep(0.1)
  raise AssertionError('The coordinator does not listen.')


def _visit(machine, port, index):
  """What a stranger prints who connects as this host."""
  address = f'{_HOSTS[0]}:{port}'
  module = 'tests.scripts.stranger'
  return machine.run(sys.executable, '-m', module, address, str(index)).stdout


_SERVICE = """
import sys
from jax._src.lib import _jax
service = _jax.get_distributed_runtime_service(sys.argv[1], 2)
client = _jax.get_distributed_runtime_client(sys.argv[1], 0)
print('ready', flush=True)
client.connect()  # Until host 1 has come.
client.key_value_set('host/seeds', '4711')
sys.stdin.read()
"""


def test_the_stranger_enters_where_nobody_guards(machines):
  """Without the gate, the same stranger gets in and reads the seeds."""
  hosts, stranger = machines
  port = host_processes.port()
  service = subprocess.Popen(
    [*hosts.within, sys.executable, '-c', _SERVICE, f'{_HOSTS[0]}:{port}'],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  assert service.stdout.readline() == 'ready\n'
  found = _visit(stranger, port, 1)
  service.kill()
  service.communicate()
  assert found.startswith('inside') and "'4711'" in found


_WRONG_SECRET = """
import sys
from pda_fed.common import gate
gate.Gate(b'w' * 32, sys.argv[1], 1, 2, timeout_s=3)
"""


def test_strangers_stay_outside(machines, store, tmp_path):
  hosts, stranger = machines
  port = host_processes.port()
  address = f'{_HOSTS[0]}:{port}'

  def start(host):
    return host_processes.start(
      *(store, tmp_path / 'run', 1),
      *host_processes.place(store, address, 2, host),
      '--rounds=3000',
      within=hosts.within,
      seed=None,
    )

  leader = start(0)
  _wait_for_door(stranger, _HOSTS[0], port)
  for machine, host in (
    (stranger, _HOSTS[1]),
    (hosts, _HOSTS[1]),
    (hosts, '127.0.0.1'),
  ):
    assert _door(machine, host, port) == 'ConnectionRefusedError'
  # Before host 1, as host 1, and as an unknown one.
  for index in (1, 7):
    assert _visit(stranger, port, index) == ''
  done = stranger.run(sys.executable, '-c', _WRONG_SECRET, address)
  assert 'Host 1 did not prove that it knows the cluster secret' in done.stderr
  follower = start(1)
  for line in leader.stderr:
    assert not line.startswith('error')
    if line.startswith('round 2/'):
      break
  # After it, while they compute.
  assert _visit(stranger, port, 1) == ''
  follower.send_signal(signal.SIGTERM)
  for code, _, err in host_processes.ended([leader, follower]):
    assert code == 128 + signal.SIGTERM, err
    assert 'SIGTERM: saved after round' in err.splitlines()[-1]
