"""The worker as a process: how it starts, fails to start, and ends."""

import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import time
import warnings

from pda_fed import runtime
from pda_fed.runtime import supervisor
from pda_fed.runtime import worker as worker_lib
import pytest

_ROOT = pathlib.Path(__file__).parents[2]


def _alive(pid: int) -> bool:
  try:
    with open(f'/proc/{pid}/stat', encoding='ascii') as f:
      return f.read().rpartition(')')[2].split()[0] != 'Z'
  except (FileNotFoundError, ProcessLookupError):
    return False


def _wait_until(condition, seconds: float) -> bool:
  deadline = time.monotonic() + seconds
  while time.monotonic() < deadline:
    if condition():
      return True
    time.sleep(0.05)
  return condition()


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


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path, monkeypatch):
  """Here folders of workers that die on purpose may stay."""
  monkeypatch.setenv('TMPDIR', str(tmp_path))
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
  return tmp_path


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
    output = _run_program(
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
    assert _wait_until(lambda: not _alive(pid), 5)

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
    output = _run_program(
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
        assert _wait_until(worker.listens_alone, 20)
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
    assert not _alive(worker.pid)
    with pytest.raises(runtime.WorkerDiedError, match='stopped'):
      worker.check_alive()

  def test_killed_worker_is_noticed_and_its_log_kept(self, make_worker):
    worker = make_worker()
    worker.log_path.write_text('out of memory')
    os.kill(worker.pid, signal.SIGKILL)
    assert _wait_until(lambda: not worker.alive, 5)
    with pytest.raises(runtime.WorkerDiedError, match='out of memory'):
      worker.check_alive()
    worker.stop()
    assert worker.log_path.exists()

  def test_killed_supervisor_takes_the_worker_along(self, make_worker):
    worker = make_worker()
    worker._supervisor.kill()
    assert _wait_until(lambda: not _alive(worker.pid), 5)
    worker.stop()
    assert not worker.log_path.parent.exists()

  def test_stop_in_a_forked_child_leaves_the_parents_worker(self, make_worker):
    worker = make_worker()
    pid = os.fork()
    if pid == 0:
      worker.stop()
      os._exit(0)
    os.waitpid(pid, 0)
    assert worker.alive and _alive(worker.pid)

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
    assert not _alive(worker.pid)


def _drop_admin_capability():
  import ctypes

  pr_capbset_drop, cap_sys_admin = 24, 21
  ctypes.CDLL(None).prctl(pr_capbset_drop, cap_sys_admin)


_PRELUDE = """
import os, sys, time
os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
import numpy as np
from pda_fed import runtime
import tensorflow as tf
import tensorflow_federated as tff

@tff.tensorflow.computation(np.float32)
def add_one(x):
  return x + 1

@tff.tensorflow.computation(np.float32)
def slow(x):
  return tf.while_loop(lambda v: v < 1e12, lambda v: [v + 1], [x])[0]
"""


def _program(body: str) -> list[str]:
  return [sys.executable, '-c', _PRELUDE + textwrap.dedent(body)]


def _run_program(body: str, **options) -> str:
  return subprocess.run(
    _program(body),
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=120,
    check=True,
    **options,
  ).stdout


_WITH_BLOCK = """
  with runtime.local_workers() as workers:
    print(workers[0].pid, add_one(1.0), flush=True)
    {then}
"""
_NOTEBOOK = """
  worker = runtime.use_local_worker()
  print(worker.pid, add_one(1.0), flush=True)
  {then}
"""
_STYLES = pytest.mark.parametrize(
  'style', [_WITH_BLOCK, _NOTEBOOK], ids=['with_block', 'notebook']
)


class TestProgramEnds:
  """No worker is alive 5 s after its program, however that ended."""

  def _start(self, style: str, then: str) -> tuple[subprocess.Popen, int]:
    process = subprocess.Popen(
      _program(style.format(then=then)),
      cwd=_ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      bufsize=0,  # So that readline() takes no more than a line.
      start_new_session=True,  # A terminal gives a program a group too.
    )
    line = process.stdout.readline().split()
    assert line[1:] == [b'2.0'], process.stderr.read()
    return process, int(line[0])

  @_STYLES
  def test_normally_with_its_output_in_a_pipe(self, style, temporary_folder):
    process, pid = self._start(style, 'print("end")')
    # communicate() returns when every holder of the pipe has closed it, as
    # `program | cat` does: a worker that inherited it would hold it open.
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == (b'end\n', b'', 0)
    assert _wait_until(lambda: not _alive(pid), 5)
    assert list(temporary_folder.glob('pda_fed-*')) == []

  @_STYLES
  def test_by_ctrl_c_in_a_long_call(self, style):
    process, pid = self._start(style, 'slow(0.0)')
    time.sleep(1)  # So that the call is under way.
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode != 0
    assert b'KeyboardInterrupt' in err
    assert _wait_until(lambda: not _alive(pid), 5)

  @pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGKILL])
  @_STYLES
  def test_by_a_signal_in_a_long_call(self, style, number, temporary_folder):
    process, pid = self._start(style, 'slow(0.0)')
    time.sleep(1)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number
    assert _wait_until(lambda: not _alive(pid), 5)
    # The supervisor outlives the program just long enough to tidy up.
    folders = temporary_folder.glob
    assert _wait_until(lambda: not list(folders('pda_fed-*')), 5)

  def test_silently_however_often_workers_come_and_go(self):
    # gRPC threads that outlive a closed channel print tracebacks, sometimes.
    program = _program("""
      for _ in range(6):
        with runtime.local_workers():
          add_one(1.0)
      """)
    done = subprocess.run(
      program, cwd=_ROOT, capture_output=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == (b'', b'', 0)

  def test_by_an_exception(self):
    process, pid = self._start(_WITH_BLOCK, 'raise ValueError("mine")')
    _, err = process.communicate(timeout=30)
    assert err.strip().endswith(b'ValueError: mine')
    assert _wait_until(lambda: not _alive(pid), 5)

  def test_worker_killed_in_a_long_call_is_an_error_not_a_wait(self):
    process, pid = self._start(_WITH_BLOCK, 'slow(0.0)')
    time.sleep(1)
    os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert b'WorkerDiedError' in err


def test_environment_of_the_user_wins(monkeypatch):
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '7')
  environment = worker_lib._worker_environment(threads=2)
  assert environment['TF_NUM_INTRAOP_THREADS'] == '7'
  assert environment['TF_NUM_INTEROP_THREADS'] == '2'


def test_no_warning_without_reason(make_worker):
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    make_worker()
