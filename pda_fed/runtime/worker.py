"""Starts, watches and ends TFF's C++ worker.

`LocalWorker` is one `worker_binary` process behind a supervisor of ours (see
`supervisor.py`), reached through a Unix socket that belongs to this user.
"""

import atexit
import collections
import enum
import importlib.util
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import Optional
import warnings

from pda_fed import _validate
from pda_fed import workers
from pda_fed.runtime import errors

# An unlimited message: a cohort's data and models travel in one.
CHANNEL_OPTIONS = (
  ('grpc.max_receive_message_length', -1),
  ('grpc.max_send_message_length', -1),
)
_SUPERVISOR = pathlib.Path(__file__).with_name('supervisor.py')
_LOG_TAIL_LINES = 5
_STOP_SECONDS = 5.0


class Isolation(enum.Enum):
  """How a worker is kept from the network.

  Attributes:
    AUTO: In a network namespace of its own; where the kernel forbids that, on
      an open port, with one warning.
    REQUIRED: In a network namespace of its own, or not at all.
    OFF: On an open port, on every interface, without authentication.
  """

  AUTO = 'auto'
  REQUIRED = 'required'
  OFF = 'off'


def available_cores() -> int:
  """The number of cores this process may use."""
  return len(os.sched_getaffinity(0))


def default_worker_binary() -> pathlib.Path:
  """The worker that the installed tensorflow_federated ships."""
  # Found, not imported: that takes seconds and 400 MB.
  spec = importlib.util.find_spec('tensorflow_federated')
  if spec is None:
    raise errors.WorkerStartError(
      'A worker is a program of tensorflow_federated, which is not installed;'
      ' it has wheels for Linux x86_64 alone.'
    )
  return pathlib.Path(spec.origin).parent / 'data' / 'worker_binary'


def _worker_environment(threads: int) -> dict[str, str]:
  """The program's environment, with limits and silence for TensorFlow.

  Args:
    threads: Threads of one TensorFlow operation, and of one graph.

  Returns:
    A copy of `os.environ`; variables that the user has set stay as they are.
  """
  environment = dict(os.environ)
  for name, value in (
    ('TF_NUM_INTRAOP_THREADS', str(threads)),
    ('TF_NUM_INTEROP_THREADS', str(threads)),
    ('OMP_NUM_THREADS', str(threads)),
    ('TF_CPP_MIN_LOG_LEVEL', '1'),
    ('CUDA_VISIBLE_DEVICES', ''),  # TFF's wheel is built for the CPU.
    # By default glibc keeps a heap for each of the worker's many threads, and
    # memory freed in one is lost to the others: 960 MB instead of 605 MB after
    # 200 rounds of a small model.
    ('MALLOC_ARENA_MAX', '2'),
  ):
    environment.setdefault(name, value)
  return environment


def _tail(path: pathlib.Path) -> str:
  try:
    with open(path, encoding='utf-8', errors='replace') as f:
      lines = collections.deque(f, maxlen=_LOG_TAIL_LINES)
  except FileNotFoundError:
    return ''
  return ''.join(f'\n    {line.rstrip()}' for line in lines)


def check_worker_binary(binary: pathlib.Path) -> None:
  """Checks what can be checked without starting it.

  Args:
    binary: The path of a `worker_binary`.

  Raises:
    WorkerStartError: If there is no such file, or it may not be executed.
  """
  reinstall = (
    'Install the lock again: pip install --no-deps --require-hashes'
    ' --force-reinstall -r requirements.txt'
  )
  if not binary.is_file():
    raise errors.WorkerStartError(
      f'There is no TFF worker at {binary}. {reinstall}'
    )
  if not os.access(binary, os.X_OK):
    raise errors.WorkerStartError(
      f'The TFF worker {binary} is not executable. Allow it with: chmod u+x'
      f' {binary}'
    )


class LocalWorker:
  """A running `worker_binary` that belongs to this process alone.

  It ends when `stop` is called, at exit, and when this process dies of any
  signal, SIGKILL included.

  Attributes:
    target: The gRPC address of the worker, `unix:...`.
    pid: The process id of the worker itself.
    log_path: The file that holds the worker's output.
    isolated: Whether the worker is out of the network's reach.
  """

  def __init__(
    self,
    *,
    binary: Optional[os.PathLike] = None,
    log_dir: Optional[os.PathLike] = None,
    max_concurrent_computation_calls: Optional[int] = None,
    threads: Optional[int] = None,
    start_timeout: float = 18.0,
    isolation: Isolation = Isolation.AUTO,
  ):
    """Starts the worker and waits until it can be used.

    Args:
      binary: The worker; by default the one in tensorflow_federated's wheel.
      log_dir: Where `worker-<pid>-<n>.log` is written and kept. By default the
        log lies in a temporary folder that goes away after a clean end.
      max_concurrent_computation_calls: How many clients the worker simulates
        at a time. Default: the number of cores.
      threads: Threads of a TensorFlow operation within one client. Default:
        the number of cores.
      start_timeout: Seconds to wait for the worker.
      isolation: See `Isolation`.

    Raises:
      IsolationError: If isolation is required and the kernel forbids it.
      TypeError: If `isolation` is not an `Isolation`.
      ValueError: If a number is not positive.
      WorkerStartError: If the worker cannot be started.
    """
    cores = available_cores()
    if max_concurrent_computation_calls is None:
      max_concurrent_computation_calls = cores
    threads = cores if threads is None else threads
    _validate.integers(
      1,
      max_concurrent_computation_calls=max_concurrent_computation_calls,
      threads=threads,
    )
    _validate.positive(start_timeout=start_timeout)
    if not isinstance(isolation, Isolation):
      raise TypeError(f'isolation must be an Isolation. Found {isolation!r}.')
    self._concurrency = max_concurrent_computation_calls
    self._threads = threads
    self._binary = pathlib.Path(binary or default_worker_binary()).absolute()
    check_worker_binary(self._binary)
    self._owner_pid = os.getpid()
    self._stop_lock = threading.Lock()
    self._stopped = False
    self._supervisor: Optional[subprocess.Popen] = None
    self._folder = self._make_folder()
    try:
      self.log_path = self._choose_log_path(log_dir)
      self.isolated = self._start(isolation, start_timeout)
    except errors.WorkerStartError:
      self._kill()  # The message names the log, which stays.
      raise
    except BaseException:
      self._kill()
      shutil.rmtree(self._folder, ignore_errors=True)
      raise
    atexit.register(self.stop)

  def _make_folder(self) -> pathlib.Path:
    """A 0700 folder in which a socket's path is legal for Linux and gRPC."""
    folder = tempfile.mkdtemp(prefix='pda_fed-')
    path = os.path.join(folder, 'worker.sock')
    if not workers.is_socket_path(path):
      os.rmdir(folder)
      folder = tempfile.mkdtemp(prefix='pda_fed-', dir='/tmp')
    return pathlib.Path(folder)

  def _choose_log_path(self, log_dir: Optional[os.PathLike]) -> pathlib.Path:
    if log_dir is None:
      return self._folder / 'worker.log'
    os.makedirs(log_dir, exist_ok=True)
    unique = self._folder.name.removeprefix('pda_fed-')
    return (
      pathlib.Path(log_dir).absolute() / f'worker-{os.getpid()}-{unique}.log'
    )

  @property
  def _socket_path(self) -> pathlib.Path:
    return self._folder / 'worker.sock'

  @property
  def target(self) -> str:
    return f'unix:{self._socket_path}'

  def _start(self, isolation: Isolation, start_timeout: float) -> bool:
    """Starts the supervisor; returns whether the worker is isolated."""
    deadline = time.monotonic() + start_timeout
    if isolation is not Isolation.OFF:
      refusal = self._launch(True, deadline)
      if refusal is None:
        return True
      if isolation is Isolation.REQUIRED:
        raise errors.IsolationError(
          'The kernel does not let the TFF worker have a network namespace'
          f' of its own ({refusal}). Allow unprivileged user namespaces, or'
          ' run as root (in a container: with CAP_SYS_ADMIN), or pass'
          " isolation 'auto'."
        )
      warnings.warn(
        'The TFF worker listens on an open port of every network interface,'
        ' without authentication, because this kernel does not let it have a'
        f' network namespace of its own ({refusal}). On a shared network,'
        ' allow unprivileged user namespaces, run as root, or close the'
        ' machine with a firewall.',
        RuntimeWarning,
        stacklevel=5,
      )
    self._launch(False, deadline)
    return False

  def _launch(self, isolate: bool, deadline: float) -> Optional[str]:
    """Runs the supervisor until the worker is ready.

    Args:
      isolate: Whether to use a network namespace.
      deadline: When to give up, in the time of `time.monotonic`.

    Returns:
      None, or why a namespace could not be had.

    Raises:
      WorkerStartError: If the worker did not come up in time.
    """
    command = [sys.executable, '-I', '-S', str(_SUPERVISOR)]
    command += [f'--parent={os.getpid()}', f'--socket={self._socket_path}']
    command += [f'--log={self.log_path}', f'--remove={self._folder}']
    command += ['--isolate'] if isolate else []
    command += ['--', str(self._binary)]
    command += [f'--max_concurrent_computation_calls={self._concurrency}']
    self._supervisor = subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      env=_worker_environment(self._threads),
      start_new_session=True,
    )
    report = self._read_report(deadline)
    if report['event'] == 'ready':
      self.pid = report['pid']
      return None
    if report['event'] == 'no_isolation':
      self._reap()
      return report['reason']
    raise errors.WorkerStartError(
      f'The TFF worker {self._binary} did not start: {report["reason"]}. Its'
      f' log is {self.log_path}{_tail(self.log_path)}'
    )

  def _read_report(self, deadline: float) -> dict:
    remaining = max(0.0, deadline - time.monotonic())
    poll = select.poll()  # Unlike select.select, for any number of open files.
    poll.register(self._supervisor.stdout, select.POLLIN)
    if not poll.poll(1000 * remaining):
      return {'event': 'failed', 'reason': 'it was not ready in time'}
    line = self._supervisor.stdout.readline()
    if not line:
      return {'event': 'failed', 'reason': 'its supervisor ended'}
    return json.loads(line)

  @property
  def alive(self) -> bool:
    """Whether the worker can still be used."""
    return not self._stopped and self._supervisor.poll() is None

  def check_owner(self) -> None:
    """Raises `WorkerDiedError` in a process that did not start the worker."""
    if os.getpid() != self._owner_pid:
      raise errors.WorkerDiedError(
        f'The TFF worker belongs to process {self._owner_pid}: a forked process'
        ' has to start its own.'
      )

  def check_alive(self) -> None:
    """Raises `WorkerDiedError` if the worker can no longer be used."""
    self.check_owner()
    if self._stopped:
      raise errors.WorkerDiedError('The TFF worker has been stopped.')
    if not self.alive:
      raise errors.WorkerDiedError(
        'The TFF worker died (out of memory is the usual cause). Its log is'
        f' {self.log_path}{_tail(self.log_path)}'
      )

  def stop(self) -> None:
    """Ends the worker. Calling it again, or in a forked child, does nothing."""
    if os.getpid() != self._owner_pid:
      return
    with self._stop_lock:
      if self._stopped:
        return
      self._stopped = True
    atexit.unregister(self.stop)
    died = self._supervisor.poll() is not None
    # The supervisor takes either as the end; a forked child of ours may hold
    # its standard input open.
    self._supervisor.stdin.close()
    self._supervisor.terminate()
    try:
      self._supervisor.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
      self._supervisor.kill()
    self._reap()
    # The supervisor has done this already, unless it was killed. The log of a
    # worker that died stays, if it says anything.
    if not (died and _tail(self.log_path)):
      shutil.rmtree(self._folder, ignore_errors=True)

  def _kill(self) -> None:
    """Ends a supervisor that does not answer; its worker dies with it."""
    self._stopped = True
    if self._supervisor is not None:
      self._supervisor.kill()
      self._reap()

  def _reap(self) -> None:
    self._supervisor.wait()
    self._supervisor.stdin.close()
    self._supervisor.stdout.close()
