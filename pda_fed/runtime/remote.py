"""Runs TFF computations on workers on other machines."""

import atexit
from collections.abc import Iterator, Sequence
from concurrent import futures
import contextlib
import json
import os
import threading
import time
from typing import Any, Optional
import uuid
import warnings

import grpc
from pda_fed.common import workers as workers_lib
from pda_fed.runtime import errors
from pda_fed.runtime import executors
from pda_fed.runtime import server
from pda_fed.runtime import service
from pda_fed.runtime import sharing
import tensorflow_federated as tff

# Connect to workers directly, without the HTTP proxy.
_OPTIONS = (*server.CHANNEL_OPTIONS, ('grpc.enable_http_proxy', 0))
_RETRY_SECONDS = 0.5
# Longest pause between health checks, whatever the timeout: a worker removes
# the data of a silent coordinator.
_MAX_PAUSE_SECONDS = 15.0
_END_SECONDS = 5.0


class _Connection:
  """A channel to one instance of a worker; see `executors.Worker`."""

  def __init__(
    self,
    target: str,
    channel: grpc.Channel,
    instance: str,
    session: str,
  ):
    self.target = target
    self.channel = channel
    self.instance = instance
    self.session = session
    self.lost: Optional[str] = None
    self._owner_pid = os.getpid()
    self._lock = threading.Lock()
    self._calls = 0
    self._factory = executors.WorkerExecutorFactory(
      self, channel, ((service.SESSION, session),)
    )
    self._context = executors.WorkerContext(self._factory)

  def check_owner(self) -> None:
    if os.getpid() != self._owner_pid:
      raise errors.WorkerDiedError(
        f'The connection to the worker {self.target} belongs to process'
        f' {self._owner_pid}: a forked process must open its own.'
      )

  def check_alive(self) -> None:
    self.check_owner()
    if self.lost is not None:
      raise errors.WorkerDiedError(self.lost)

  def invoke(self, comp: Any, arg: Any) -> Any:
    with self._lock:
      self.check_alive()
      self._calls += 1
    try:
      return self._context.invoke(comp, arg)
    finally:
      self._end_if_unused(calls_ended=1)

  def lose(self, reason: str) -> None:
    self.lost = reason
    self._factory.abandon()  # Calls in progress fail.
    self._end_if_unused()

  def close(self) -> None:
    self.lost = f'The connection to the worker {self.target} is closed.'
    self._factory.close()
    self._end_if_unused()

  def _end_if_unused(self, calls_ended: int = 0) -> None:
    """Ends the context's thread once no call is in progress."""
    with self._lock:
      self._calls -= calls_ended
      if self.lost is None or self._calls or self._context is None:
        return
      context, self._context = self._context, None
    context.end()


class RemoteWorker:
  """A worker on another machine, with health checks and reconnection.

  It implements `sharing.Seat`.

  Attributes:
    name: The worker's address.
  """

  def __init__(self, address: str, settings: workers_lib.RemoteWorkers):
    """Initializes the worker without connecting.

    Args:
      address: One of the addresses in `settings`.
      settings: Connection settings.
    """
    self.name = address
    self._settings = settings
    self._owner_pid = os.getpid()
    self._lock = threading.Lock()
    self._connection: Optional[_Connection] = None
    self._closing = threading.Event()
    self._watcher = threading.Thread(target=self._watch, daemon=True)

  @property
  def usable(self) -> bool:
    """See `sharing.Seat`."""
    return self._connection is not None

  def check_owner(self) -> None:
    """See `sharing.Seat`."""
    if os.getpid() != self._owner_pid:
      raise errors.WorkerDiedError(
        f'The connection to {self.name} belongs to process {self._owner_pid}:'
        ' a forked process must open its own.'
      )

  def _open_channel(self) -> grpc.Channel:
    if self._settings.tls is None or self.name.startswith(workers_lib.UNIX):
      return grpc.insecure_channel(self.name, _OPTIONS)
    cert, key, ca = self._settings.tls.read()
    credentials = grpc.ssl_channel_credentials(ca, key, cert)
    return grpc.secure_channel(self.name, credentials, _OPTIONS)

  def _ask_health(
    self, channel: grpc.Channel, session: str, seconds: float
  ) -> str:
    """Returns the id of the worker instance that answers.

    Args:
      channel: The channel to the worker.
      session: The id of our session on the worker.
      seconds: Timeout in seconds.

    Raises:
      WorkerVersionError: If it has another version, or is not a pda_fed worker.
      grpc.RpcError: If it does not answer.
    """
    try:
      answer = channel.unary_unary(server.HEALTH)(
        b'', timeout=seconds, metadata=((service.SESSION, session),)
      )
    except grpc.RpcError as e:
      if e.code() is grpc.StatusCode.UNIMPLEMENTED:
        raise errors.WorkerVersionError(
          f'{self.name} is not a pda_fed worker: start it with scripts.worker.'
        ) from e
      raise
    try:
      health = json.loads(answer)
      theirs, instance = health['versions'], health['instance']
    except (ValueError, KeyError, TypeError) as e:
      raise errors.WorkerVersionError(
        f'{self.name} does not answer like a pda_fed worker: {e!r}.'
      ) from e
    ours = server.versions()
    if theirs != ours:
      raise errors.WorkerVersionError(
        f'The worker {self.name} must have the same versions as this program,'
        f' {_show(ours)}. Found {_show(theirs)}.'
      )
    return instance

  def _connect_once(self, seconds: float) -> None:
    channel = self._open_channel()
    # One session per connection: if the connection is lost, the worker removes
    # its data even while a newer connection is alive.
    session = uuid.uuid4().hex
    try:
      instance = self._ask_health(channel, session, seconds)
    except BaseException:
      channel.close()
      raise
    with self._lock:
      if self._closing.is_set():
        channel.close()
        return
      self._connection = _Connection(self.name, channel, instance, session)

  def connect(self) -> Optional[str]:
    """Connects, and starts the health checks.

    Returns:
      Why the worker cannot be reached, or None.

    Raises:
      WorkerVersionError: If it has another version, or is not a pda_fed worker.
    """
    deadline = time.monotonic() + self._settings.timeout_s
    trouble = None
    while not self.usable:
      left = deadline - time.monotonic()
      if left <= 0:
        break
      try:
        self._connect_once(left)
        trouble = None
      except grpc.RpcError as e:
        trouble = f'{self.name} cannot be reached ({executors.describe(e)})'
        self._closing.wait(min(_RETRY_SECONDS, left))
    self._watcher.start()
    return trouble

  def _watch(self) -> None:
    """Checks the worker's health regularly; disconnects and reconnects."""
    timeout = self._settings.timeout_s
    seen = time.monotonic()
    pause = min(timeout / 4, _MAX_PAUSE_SECONDS)
    refused = None
    while not self._closing.wait(pause):
      connection = self._connection
      try:
        if connection is None:
          self._connect_once(timeout / 2)
        elif not self._is_same(connection, timeout / 2):
          self._lose(connection, 'was restarted')
        seen = time.monotonic()
      except errors.WorkerVersionError as e:
        if connection is not None:
          self._lose(connection, 'was replaced')
        if str(e) != refused:  # Warn once; the right worker may still come.
          refused = str(e)
          warnings.warn(refused, RuntimeWarning, stacklevel=2)
      except (grpc.RpcError, ValueError) as e:
        # ValueError: the channel was closed, or TLS files are being replaced.
        silent = time.monotonic() - seen
        if connection is not None and silent >= timeout:
          why = executors.describe(e)
          self._lose(connection, f'did not respond for {silent:.0f} s ({why})')

  def _lose(self, connection: _Connection, what: str) -> None:
    with self._lock:
      if self._connection is not connection:
        return
      self._connection = None
    connection.lose(f'The worker {self.name} {what}.')

  def invoke(self, comp: Any, arg: Any) -> Any:
    """See `sharing.Seat`."""
    connection = self._connection
    if connection is None:
      raise errors.WorkerDiedError(f'The worker {self.name} is lost.')
    try:
      return connection.invoke(comp, arg)
    except errors.WorkerDiedError as e:
      self._lose(connection, f'is lost: {e}')
      raise
    except Exception as e:
      if self._answers(connection):
        _raise_as_ours(e)
        raise  # The computation's own error.
      self._lose(
        connection, f'failed in a computation ({executors.describe(e)})'
      )
      raise errors.WorkerDiedError(connection.lost) from e

  def _is_same(self, connection: _Connection, seconds: float) -> bool:
    """Returns whether the connection's instance of the worker answers."""
    instance = self._ask_health(connection.channel, connection.session, seconds)
    return instance == connection.instance

  def _answers(self, connection: _Connection) -> bool:
    """Returns whether this instance of the worker still answers."""
    try:
      return self._is_same(connection, self._settings.timeout_s)
    except (grpc.RpcError, ValueError, errors.WorkerError):
      return False

  def close(self) -> None:
    """Closes the connection; the worker keeps running."""
    self._closing.set()
    with self._lock:
      connection, self._connection = self._connection, None
    if connection is not None:
      connection.close()
    if self._watcher.ident is not None:  # It has been started.
      self._watcher.join(_END_SECONDS)


def _raise_as_ours(error: Exception) -> None:
  """Raises a worker's error as our own exception, if it is one."""
  if not isinstance(error, grpc.Call):
    return
  if error.code() is grpc.StatusCode.ABORTED:
    client = dict(error.trailing_metadata() or ()).get(service.CLIENT)
    place = errors.Place('a worker', None if client is None else int(client))
    raise errors.ComputationError(place, error.details()) from error
  if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
    raise ValueError(error.details()) from error


def _show(found: Any) -> str:
  if not isinstance(found, dict):
    return repr(found)
  return ', '.join(f'{name} {version}' for name, version in found.items())


class _Session:
  """Remote workers and the context that uses them."""

  def __init__(self, settings: workers_lib.RemoteWorkers):
    self._owner_pid = os.getpid()
    self.workers = [
      RemoteWorker(address, settings) for address in settings.addresses
    ]
    try:
      with futures.ThreadPoolExecutor(len(self.workers)) as threads:
        found = list(threads.map(RemoteWorker.connect, self.workers))
      trouble = '; '.join(why for why in found if why)
      if not any(worker.usable for worker in self.workers):
        raise errors.WorkerStartError(f'No worker is available: {trouble}.')
      if trouble:
        warnings.warn(
          f'{trouble}. The other workers continue; connecting is retried.',
          RuntimeWarning,
          stacklevel=5,
        )
    except BaseException:
      self.stop()
      raise
    self.context = sharing.SharedContext(self.workers)
    atexit.register(self.stop)

  def stop(self) -> None:
    if os.getpid() != self._owner_pid:
      return
    atexit.unregister(self.stop)
    for worker in self.workers:
      worker.close()


@contextlib.contextmanager
def remote_workers(
  addresses: Sequence[str],
  *,
  tls: Optional[workers_lib.TlsFiles] = None,
  insecure: bool = False,
  timeout_s: float = workers_lib.DEFAULT_TIMEOUT_S,
) -> Iterator[list[RemoteWorker]]:
  """Runs the TFF computations of a `with` block on remote workers.

  The clients of each computation are split over the workers. Sums are merged
  before the noise is added. If a worker dies, hangs or cannot be reached, there
  is a warning and the other workers compute its clients; the result is the
  same. The worker is used again when it comes back.

  Example:

  ```
  tls = runtime.TlsFiles(cert='me.crt', key='me.key', ca='ca.crt')
  with runtime.remote_workers(['a.lan:8443', 'b.lan:8443'], tls=tls):
    state = process.initialize()
  ```

  Args:
    addresses: `HOST:PORT`, `[IPV6]:PORT` or `unix:/PATH` of workers started
      with `scripts.worker`.
    tls: The coordinator's TLS files, for addresses with a port.
    insecure: Whether ports may be used without TLS.
    timeout_s: Timeout in seconds. A worker that does not respond for this long
      is lost. It is also how long to wait for workers at the start.

  Yields:
    The workers.

  Raises:
    ValueError: If addresses or options are invalid.
    WorkerStartError: If no worker can be reached.
    WorkerVersionError: If a worker has another version.
  """
  settings = workers_lib.RemoteWorkers(
    addresses=tuple(addresses), tls=tls, insecure=insecure, timeout_s=timeout_s
  )
  if insecure:
    warnings.warn(
      "The workers are used without encryption or authentication: users' data"
      ' and the noise seed are sent over the network in the clear.',
      RuntimeWarning,
      stacklevel=3,
    )
  session = _Session(settings)
  try:
    with tff.framework.get_context_stack().install(session.context):
      yield session.workers
  finally:
    session.stop()
