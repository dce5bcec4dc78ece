"""The worker as a process: how it starts, fails to start, and ends."""

import os
import pathlib
import resource
import signal
import socket
import sys
import textwrap
import time
import warnings

from pda_fed import runtime
from pda_fed.runtime import supervisor
from pda_fed.runtime import worker as worker_lib
import pytest

from tests.runtime import processes


def _listening_port(pid: int) -> int:
  """The port that the worker listens on, in its own network namespace."""
  own = supervisor.socket_inodes(pid)
  ports = supervisor.listening_ports(pid)
  return next(port for inode, port in ports.items() if inode in own)


def _can_connect(address: str, port: int) -> bool:
  try:
    with socket.create_connection((address, port), timeout=2):
      return True
  except OSError:
    return False


_LISTENER = """#!{python}
import signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
port = [a for a in sys.argv if a.startswith('--port=')][0][7:]
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(('127.0.0.1', int(port)))
s.listen()
time.sleep(600)
"""


@pytest.fixture
def make_worker():
  workers = []

  def make(**options):
    workers.append(runtime.LocalWorker(**options))
    return workers[-1]

  yield make
  for worker in workers:
    worker.stop()


def _fake_binary(folder: pathlib.Path, text: str) -> pathlib.Path:
  path = folder / 'worker_binary'
  path.write_text(text)
  path.chmod(0o755)
  return path


class TestStart:
  def test_socket_is_for_this_user_alone(self, make_worker):
    worker = make_worker()
    path = pathlib.Path(worker.target.removeprefix('unix:'))
    assert path.is_socket()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert worker.alive

  def test_log_dir_keeps_the_log(self, make_worker, tmp_path):
    worker = make_worker(log_dir=tmp_path / 'logs')
    worker.stop()
    assert worker.log_path.parent == tmp_path / 'logs'
    assert worker.log_path.exists()

  def test_temporary_folder_goes_away(self, make_worker):
    worker = make_worker()
    folder = worker.log_path.parent
    worker.stop()
    assert not folder.exists()

  def test_long_temporary_folder_still_fits_a_socket(
    self, make_worker, tmp_path, monkeypatch
  ):
    deep = tmp_path / ('d' * 60) / ('e' * 60)
    deep.mkdir(parents=True)
    monkeypatch.setattr('tempfile.tempdir', str(deep))
    assert make_worker().alive

  @pytest.mark.parametrize('name', ['h#x', 'h?x', 'h%20x', 'h x'])
  def test_odd_temporary_folder(self, tmp_path, name):
    # gRPC takes the path for a URI.
    (tmp_path / name).mkdir()
    output = processes.run_program(
      """
      with runtime.local_workers():
        print(add_one(1.0))
      """,
      env=os.environ | {'TMPDIR': str(tmp_path / name)},
    )
    assert output == '2.0\n'

  def test_more_than_1024_open_files(self, make_worker):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
      pytest.skip('the hard limit on open files is too low')
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    files = [os.open('/dev/null', os.O_RDONLY) for _ in range(1100)]
    try:
      assert make_worker().alive
    finally:
      for fd in files:
        os.close(fd)
      resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

  @pytest.mark.parametrize(
    'isolation', [runtime.Isolation.REQUIRED, runtime.Isolation.OFF]
  )
  def test_two_at_once_do_not_collide(self, make_worker, isolation):
    first, second = (
      make_worker(isolation=isolation),
      make_worker(isolation=isolation),
    )
    assert first.alive and second.alive
    assert first.pid != second.pid
    assert first.target != second.target


class TestCannotStart:
  def _error(self, seconds=20.0, **options) -> str:
    started = time.monotonic()
    with pytest.raises(runtime.WorkerStartError) as info:
      runtime.LocalWorker(**options)
    # Not a benchmark: the promise is that nothing waits for ever.
    assert time.monotonic() - started < seconds
    return str(info.value)

  def test_missing(self, tmp_path):
    error = self._error(binary=tmp_path / 'nowhere')
    assert 'There is no TFF worker at' in error
    assert 'requirements.txt' in error

  def test_not_executable(self, tmp_path):
    binary = _fake_binary(tmp_path, '')
    binary.chmod(0o644)
    assert 'not executable' in self._error(binary=binary)

  def test_not_a_program(self, tmp_path):
    binary = _fake_binary(tmp_path, 'not a program')
    assert 'Exec format error' in self._error(binary=binary)

  def test_wrong_libc_shows_what_the_loader_said(self, tmp_path):
    binary = _fake_binary(
      tmp_path, '#!/bin/sh\necho "version \'GLIBC_9.99\' not found"\nexit 1\n'
    )
    error = self._error(binary=binary)
    assert 'exit code 1' in error
    assert "version 'GLIBC_9.99' not found" in error
    assert 'worker.log' in error

  def test_killed_by_a_signal(self, tmp_path):
    binary = _fake_binary(tmp_path, '#!/bin/sh\nkill -ILL $$\n')
    assert 'signal 4' in self._error(binary=binary)

  def test_never_ready(self, tmp_path):
    marker = tmp_path / 'pid'
    binary = _fake_binary(
      tmp_path, f'#!/bin/sh\necho $$ > {marker}\nexec sleep 600\n'
    )
    assert 'not ready in time' in self._error(binary=binary, start_timeout=1.5)
    pid = int(marker.read_text())
    assert processes.wait_until(lambda: not processes.alive(pid), 60)

  @pytest.mark.parametrize(
    'options, error',
    [
      (dict(threads=-1), ValueError),
      (dict(max_concurrent_computation_calls=-2), ValueError),
      (dict(threads=0), ValueError),
      (dict(start_timeout=0), ValueError),
      (dict(start_timeout=float('inf')), ValueError),
      (dict(isolation='auto'), TypeError),
    ],
  )
  def test_bad_arguments(self, options, error):
    with pytest.raises(error, match=next(iter(options))):
      runtime.LocalWorker(**options)


class TestIsolation:
  # With a bind to every interface, 127.0.0.2 leads to the worker as any other
  # address of the machine does; so does ::1.
  _ADDRESSES = ('127.0.0.1', '127.0.0.2', '::1')

  def test_no_address_leads_to_the_worker(self, make_worker):
    worker = make_worker(isolation=runtime.Isolation.REQUIRED)
    port = _listening_port(worker.pid)
    assert [a for a in self._ADDRESSES if _can_connect(a, port)] == []
    assert not supervisor.listening_inodes(port)
    assert os.readlink(f'/proc/{worker.pid}/ns/net') != os.readlink(
      '/proc/self/ns/net'
    )
    with open(f'/proc/{worker.pid}/net/dev', encoding='ascii') as f:
      interfaces = [line.split(':')[0].strip() for line in f if ':' in line]
    assert 'lo' in interfaces
    # A new namespace may hold tunnel templates; none has an address or is up.
    with open(f'/proc/{worker.pid}/net/if_inet6', encoding='ascii') as f:
      assert {line.split()[-1] for line in f} <= {'lo'}

  def test_without_isolation_it_would_be_open(self, make_worker):
    # The control of the test above: what it shows is not true by itself.
    worker = make_worker(isolation=runtime.Isolation.OFF)
    assert not worker.isolated
    port = _listening_port(worker.pid)
    assert _can_connect('127.0.0.2', port)

  def test_ordinary_user_is_isolated_too(self):
    # Without CAP_SYS_ADMIN, as any user, the way leads over a user namespace.
    output = processes.run_program(
      """
        with runtime.local_workers(isolation=runtime.Isolation.REQUIRED) as w:
          print(w[0].isolated, add_one(1.0))
        """,
      preexec_fn=_drop_admin_capability,
    )
    assert output == 'True 2.0\n'

  @pytest.fixture
  def forbidding_kernel(self, tmp_path, monkeypatch):
    fake = tmp_path / 'supervisor.py'
    real = str(worker_lib._SUPERVISOR)
    report = '{"event": "no_isolation", "reason": "not permitted"}'
    fake.write_text(
      textwrap.dedent(f"""\
        import os, sys
        if '--isolate' in sys.argv:
          print({report!r})
        else:
          os.execv(sys.executable, [sys.executable, {real!r}, *sys.argv[1:]])
        """)
    )
    monkeypatch.setattr(worker_lib, '_SUPERVISOR', fake)

  def test_falls_back_with_one_warning(self, make_worker, forbidding_kernel):
    with pytest.warns(RuntimeWarning, match='firewall') as record:
      worker = make_worker()
    assert len(record) == 1
    assert 'not permitted' in str(record[0].message)
    assert worker.alive and not worker.isolated

  def test_required_refuses(self, forbidding_kernel):
    with pytest.raises(runtime.IsolationError, match='not permitted'):
      runtime.LocalWorker(isolation=runtime.Isolation.REQUIRED)

  def test_second_listener_on_the_port_is_noticed(self, tmp_path):
    # gRPC servers share a port silently, and so do these two.
    binary = _fake_binary(tmp_path, _LISTENER.format(python=sys.executable))
    with socket.socket() as other:
      other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
      other.bind(('127.0.0.1', 0))
      port = other.getsockname()[1]
      worker = supervisor.Worker([str(binary)], port, str(tmp_path / 'log'))
      try:
        assert processes.wait_until(worker.listens_alone, 60)
        other.listen()
        with pytest.raises(OSError, match='another process listens'):
          worker.listens_alone()
      finally:
        worker.end()


class TestEnd:
  def test_stop_twice_and_use_after(self, make_worker):
    worker = make_worker()
    worker.stop()
    worker.stop()
    assert not processes.alive(worker.pid)
    with pytest.raises(runtime.WorkerDiedError, match='stopped'):
      worker.check_alive()

  def test_killed_worker_is_noticed_and_its_log_kept(self, make_worker):
    worker = make_worker()
    worker.log_path.write_text('out of memory')
    os.kill(worker.pid, signal.SIGKILL)
    assert processes.wait_until(lambda: not worker.alive, 60)
    with pytest.raises(runtime.WorkerDiedError, match='out of memory'):
      worker.check_alive()
    worker.stop()
    assert worker.log_path.exists()

  def test_killed_supervisor_takes_the_worker_along(self, make_worker):
    worker = make_worker()
    worker._supervisor.kill()
    assert processes.wait_until(lambda: not processes.alive(worker.pid), 60)
    worker.stop()
    assert not worker.log_path.parent.exists()

  def test_stop_in_a_forked_child_leaves_the_parents_worker(self, make_worker):
    worker = make_worker()
    pid = os.fork()
    if pid == 0:
      worker.stop()
      os._exit(0)
    os.waitpid(pid, 0)
    assert worker.alive and processes.alive(worker.pid)

  def test_stop_does_not_wait_for_a_forked_child(self, make_worker):
    worker = make_worker()
    pid = os.fork()
    if pid == 0:
      time.sleep(60)  # It holds the pipe to the supervisor open.
      os._exit(0)
    try:
      worker.stop()
      # Not killed for want of an answer: it ended by itself.
      assert worker._supervisor.returncode == 0
    finally:
      os.kill(pid, signal.SIGKILL)
      os.waitpid(pid, 0)

  def test_interrupted_start_leaves_nothing(self, tmp_path, monkeypatch):
    def interrupt(*_):
      raise KeyboardInterrupt

    monkeypatch.setattr(runtime.LocalWorker, '_read_report', interrupt)
    with pytest.raises(KeyboardInterrupt):
      runtime.LocalWorker()
    assert list(tmp_path.glob('pda_fed-*')) == []

  def test_stubborn_worker_is_killed(self, tmp_path):
    # It ignores SIGTERM and listens, so it counts as ready.
    binary = _fake_binary(tmp_path, _LISTENER.format(python=sys.executable))
    worker = runtime.LocalWorker(binary=binary)
    worker.stop()
    assert not processes.alive(worker.pid)


def _drop_admin_capability():
  import ctypes

  pr_capbset_drop, cap_sys_admin = 24, 21
  ctypes.CDLL(None).prctl(pr_capbset_drop, cap_sys_admin)


def test_environment_of_the_user_wins(monkeypatch):
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '7')
  environment = worker_lib._worker_environment(threads=2)
  assert environment['TF_NUM_INTRAOP_THREADS'] == '7'
  assert environment['TF_NUM_INTEROP_THREADS'] == '2'


def test_no_warning_without_reason(make_worker):
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    make_worker()
