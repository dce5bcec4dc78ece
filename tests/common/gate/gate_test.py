"""Gates of several hosts, as processes of this machine."""

import asyncio
from concurrent import futures
import contextlib
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import time

from pda_fed.common import gate
from pda_fed.common.gate import channel
from pda_fed.common.gate import process
import pytest

_SECRET = b's' * 32


def _port():
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    return s.getsockname()[1]


@pytest.fixture
def place():
  return f'127.0.0.1:{_port()}'


@pytest.fixture
def open_gates(place):
  """Opens gates of hosts side by side; returns gates or error messages."""
  opened = []

  def start(task):
    secret, index, count, timeout_s = task
    try:
      found = gate.Gate(secret, place, index, count, timeout_s=timeout_s)
    except gate.GateError as e:
      return str(e)
    opened.append(found)
    return found

  def open_all(*tasks):
    with futures.ThreadPoolExecutor(len(tasks)) as pool:
      return list(pool.map(start, tasks))

  yield open_all
  for found in opened:
    found.close()


def _path(found):
  return found.address.removeprefix('unix:')


def _echo_once(path):
  """A server of JAX's kind on a Unix socket, which answers in capitals."""
  server = socket.socket(socket.AF_UNIX)
  server.bind(path)
  server.listen()
  server.settimeout(20)
  pool = futures.ThreadPoolExecutor(1)

  def serve():
    connection, _ = server.accept()
    with connection:
      connection.sendall(connection.recv(100).upper())

  return pool.submit(serve)


def test_bytes_pass_between_hosts(open_gates):
  leader, first, second = open_gates(*((_SECRET, i, 3, 20) for i in range(3)))
  for follower in (first, second):
    with contextlib.suppress(FileNotFoundError):
      os.remove(_path(leader))
    done = _echo_once(_path(leader))
    with socket.socket(socket.AF_UNIX) as s:
      s.settimeout(20)
      s.connect(_path(follower))
      s.sendall(b'open')
      assert s.recv(100) == b'OPEN'
    done.result(timeout=20)
  mode = os.stat(os.path.dirname(_path(leader))).st_mode
  assert mode & 0o077 == 0


def test_jax_may_start_after_its_clients(open_gates):
  leader, follower = open_gates(*((_SECRET, i, 2, 20) for i in range(2)))
  with socket.socket(socket.AF_UNIX) as s:
    s.settimeout(20)
    s.connect(_path(follower))
    s.sendall(b'open')
    time.sleep(0.3)
    _echo_once(_path(leader))
    assert s.recv(100) == b'OPEN'


def test_all_hosts_name_the_one_with_another_secret(open_gates):
  # The secret's owner has its line at once, the others when time is over.
  tasks = [(_SECRET, 0, 3, 2), (_SECRET, 1, 3, 20), (b'o' * 32, 2, 3, 20)]
  for words in open_gates(*tasks):
    assert words.startswith('Host 2 did not prove that it knows the cluster')
    assert '--cluster_secret_file' in words and '\n' not in words


def test_all_hosts_name_the_one_that_is_missing(open_gates):
  leader, follower = open_gates((_SECRET, 0, 3, 2), (_SECRET, 2, 3, 20))
  assert leader == follower
  assert 'must connect within 2 s' in leader
  assert leader.endswith('Missing: host 1 of 3, counted from 0.')


def test_nobody_answers(place, open_gates):
  (words,) = open_gates((_SECRET, 1, 2, 1))
  assert words.startswith('All hosts must connect within 1 s to the coordi')
  assert place in words and 'does not answer host 1' in words


@pytest.mark.parametrize(
  'second, words',
  [
    ((_SECRET, 1, 3, 20), 'num_hosts must be the same on all hosts. Found 2'),
    ((_SECRET, 4, 5, 20), 'num_hosts must be the same on all hosts. Found 2'),
  ],
)
def test_numbers_of_hosts_that_differ(open_gates, second, words):
  for found in open_gates((_SECRET, 0, 2, 20), second):
    assert found.startswith(words)


def test_an_index_that_two_hosts_have(open_gates):
  tasks = [(_SECRET, 0, 3, 20), (_SECRET, 1, 3, 20), (_SECRET, 1, 3, 20)]
  words = {found for found in open_gates(*tasks)}
  assert len(words) <= 2  # One of the two may see the end of host 0 alone.
  assert any('host_index must differ' in found for found in words)


def test_a_host_that_is_started_again_is_sent_away(open_gates):
  leader, follower = open_gates(*((_SECRET, i, 2, 20) for i in range(2)))
  (again,) = open_gates((_SECRET, 1, 2, 20))
  assert again.startswith('host_index must differ between hosts. Found 1')
  _echo_once(_path(leader))
  with socket.socket(socket.AF_UNIX) as s:
    s.settimeout(20)
    s.connect(_path(follower))
    s.sendall(b'on')
    assert s.recv(100) == b'ON'


@pytest.mark.parametrize('place', ['192.0.2.1:8476', 'no-such-host.invalid:1'])
def test_a_coordinator_that_is_not_this_host(place):
  with pytest.raises(
    gate.GateError, match='^coordinator must be an address of host 0, this'
  ):
    gate.Gate(_SECRET, place, 0, 2, timeout_s=1)


def test_a_port_that_is_taken(place):
  host, port = place.split(':')
  with socket.create_server((host, int(port))):
    with pytest.raises(gate.GateError, match='a free port. .*in use'):
      gate.Gate(_SECRET, place, 0, 2, timeout_s=1)


def test_strangers_change_nothing(place, open_gates):
  """They connect before the hosts do, and stay."""
  address = place.split(':')[0], int(place.split(':')[1])
  with contextlib.ExitStack() as stack, futures.ThreadPoolExecutor(1) as pool:
    leader = pool.submit(open_gates, (_SECRET, 0, 2, 20))
    for words in (None, b'', b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', b'\x16\x03'):
      s = stack.enter_context(_once_it_listens(address))
      if words:
        s.sendall(words)
      if words is None:  # One that speaks TLS.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with pytest.raises(OSError):
          context.wrap_socket(s)
    (follower,) = open_gates((_SECRET, 1, 2, 20))
    assert isinstance(follower, gate.Gate)
    assert isinstance(leader.result()[0], gate.Gate)


def test_strangers_do_not_fill_memory(place):
  """Wrong proofs are remembered of hosts alone, however many there are."""
  host, port = place.split(':')
  leader = process._Leader(process.Task(_SECRET, place, 0, 2, '/none', 20))

  async def knock():
    opening = asyncio.ensure_future(leader.open())
    await asyncio.sleep(0)
    for index in (1, 2, 3, 2**32 - 1):
      with pytest.raises(gate.GateError):
        await channel.connect(host, int(port), b'o' * 32, b'J', index, 2)
    opening.cancel()

  asyncio.run(knock())
  assert leader._refused == {1: host}


def _once_it_listens(address):
  for _ in range(200):
    try:
      return socket.create_connection(address, timeout=5)
    except ConnectionRefusedError:
      time.sleep(0.05)
  raise AssertionError(f'Nobody listens on {address}.')


def test_a_stranger_cannot_carry_data(place, open_gates):
  """What passes is of hosts that have proven the secret."""
  leader, _ = open_gates(*((_SECRET, i, 2, 20) for i in range(2)))
  done = _echo_once(_path(leader))
  with _once_it_listens((place.split(':')[0], int(place.split(':')[1]))) as s:
    s.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' * 10)
    s.settimeout(20)
    with contextlib.suppress(OSError):
      assert b'HTTP' not in s.recv(1000)
  assert not done.done()


_OWNER = """
import sys, time
from pda_fed.common import gate
print(gate.Gate(b's' * 32, sys.argv[1], 0, 1, timeout_s=9).address, flush=True)
time.sleep(100)
"""


def test_a_gate_ends_with_its_process(place):
  owner = subprocess.Popen(
    [sys.executable, '-c', _OWNER, place],
    stdout=subprocess.PIPE,
    text=True,
    cwd=pathlib.Path(__file__).parents[3],
  )
  folder = pathlib.Path(owner.stdout.readline()[len('unix:') :]).parent
  assert folder.is_dir()
  owner.send_signal(signal.SIGKILL)
  owner.communicate(timeout=20)
  _until(lambda: not folder.exists() and not _listens(place))


def _listens(place):
  try:
    socket.create_connection(('127.0.0.1', int(place.split(':')[1]))).close()
  except ConnectionRefusedError:
    return False
  return True


def _until(condition):
  for _ in range(400):
    if condition():
      return
    time.sleep(0.05)
  raise AssertionError('It never came.')


def test_a_secret_is_read(tmp_path):
  path = tmp_path / 'secret'
  path.touch(mode=0o600)
  path.write_bytes(b' ' + _SECRET + b'\n')
  path.chmod(0o400)
  assert gate.read_secret(path) == _SECRET
  link = tmp_path / 'link'  # As Kubernetes mounts secrets.
  link.symlink_to(path)
  assert gate.read_secret(link) == _SECRET


@pytest.mark.parametrize(
  'content, mode, words',
  [
    (_SECRET, 0o640, r'owner alone \(mode 0600 or 0400\). Found 0640.'),
    (_SECRET, 0o604, 'Found 0604.'),
    (_SECRET, 0o620, 'Found 0620.'),
    (_SECRET, 0o602, 'Found 0602.'),
    (b'', 0o600, 'must have at least 32 bytes. Found 0.'),
    (b'x' * 31 + b' \n', 0o600, 'Found 31. To create it: .*openssl rand'),
    # A gate's pipe would be full before the gate reads.
    (b'x' * 100_000, 0o600, 'must have at most 1024 bytes. Found more.'),
  ],
)
def test_secrets_that_are_refused(tmp_path, content, mode, words):
  path = tmp_path / 'secret'
  path.write_bytes(content)
  path.chmod(mode)
  with pytest.raises(gate.GateError, match=words):
    gate.read_secret(path)
  link = tmp_path / 'link'
  link.symlink_to(path)
  with pytest.raises(gate.GateError, match=words):
    gate.read_secret(link)


def test_the_longest_secret(tmp_path, place):
  path = tmp_path / 'secret'
  path.touch(mode=0o600)
  path.write_bytes(b'x' * 1024)
  gate.Gate(gate.read_secret(path), place, 0, 1, timeout_s=20).close()


@pytest.mark.parametrize('index', [0, 1])
def test_a_long_folder_of_temporary_files(tmp_path, monkeypatch, index):
  folder = tmp_path / ('x' * 100)
  folder.mkdir()
  monkeypatch.setattr('tempfile.tempdir', str(folder))
  with pytest.raises(gate.GateError, match='^TMPDIR must be .* shorter, .*/xx'):
    gate.Gate(_SECRET, '127.0.0.1:1', index, 2, timeout_s=1)
  assert not any(folder.iterdir())


@pytest.mark.parametrize('name', ['none', '.'])
def test_a_secret_that_is_no_file(tmp_path, name):
  with pytest.raises(gate.GateError, match='^cluster_secret_file .* cannot be'):
    gate.read_secret(tmp_path / name)
