"""The door of a worker to other machines.

TFF's `worker_binary` has no encryption and no authentication, so it stays
behind its Unix socket (see `supervisor`), and this server stands before it:

    coordinator --- mutual TLS, or a Unix socket --> WorkerServer --> worker

It passes the calls of TFF's executor service on as bytes, and answers one call
of its own, which tells the versions and whether the worker is alive. The server
is grpcio's, which the lock holds anyway and whose TLS is BoringSSL: nothing
else has to be installed, and a client without a certificate of our CA never
gets as far as a call.
"""

from concurrent import futures
import contextlib
import functools
import importlib.metadata
import json
import os
import socket
import threading
import time
from typing import Any, Optional
import uuid
import warnings

import grpc
import pda_fed
from pda_fed import workers as workers_lib
from pda_fed.runtime import errors
from pda_fed.runtime import worker as worker_lib

HEALTH = '/pda_fed.Worker/Health'
SESSION = 'pda-fed-session'
# Of the calls between coordinator and worker; raised when these change.
_PROTOCOL = 1
_SERVICE = '/tensorflow_federated.v0.ExecutorGroup/'
# A gRPC server that answers at all answers UNIMPLEMENTED to this.
_PING = '/pda_fed.Worker/Ping'
_PING_SECONDS = 5.0
# A coordinator has few calls under way; those of one that hung up end.
_MAX_CALLS = 64
# Seconds after which what a silent coordinator has left is removed.
_LEASE_SECONDS = 600.0
_STOP_SECONDS = 2.0


def versions() -> dict[str, Any]:
  """Returns what coordinator and worker must have in common.

  Example:

    >>> sorted(versions())
    ['pda_fed', 'protocol', 'tensorflow', 'tensorflow-federated']
  """
  found = {'protocol': _PROTOCOL, 'pda_fed': pda_fed.__version__}
  for name in ('tensorflow-federated', 'tensorflow'):
    found[name] = importlib.metadata.version(name)
  return found


class _Sessions:
  """Which coordinator has which executors on the worker.

  A coordinator that was killed cannot tidy up, and a worker that lives on would
  keep its models and data for ever. Executors are known here by the bytes of
  TFF's GetExecutorResponse, which has the form of the DisposeExecutorRequest:
  in both, field 1 is the executor's id.
  """

  def __init__(self):
    self._lock = threading.Lock()
    self._executors: dict[str, set[bytes]] = {}
    self._seen: dict[str, float] = {}

  def saw(self, session: str) -> None:
    with self._lock:
      self._seen[session] = time.monotonic()

  def passed(self, session: str, method: str, request: bytes, response: bytes):
    """Notes an executor that a call has made or removed."""
    with self._lock:
      # A long call's session may have been taken for silent meanwhile.
      self._seen[session] = time.monotonic()
      owned = self._executors.setdefault(session, set())
      if method == f'{_SERVICE}GetExecutor':
        owned.add(response)
      elif method == f'{_SERVICE}DisposeExecutor':
        owned.discard(request)

  def take_silent(self, seconds: float) -> set[bytes]:
    """Forgets sessions silent for so long; returns their executors."""
    before = time.monotonic() - seconds
    with self._lock:
      silent = [s for s, seen in self._seen.items() if seen <= before]
      found = set()
      for session in silent:
        del self._seen[session]
        found |= self._executors.pop(session, set())
    return found


class _Relay(grpc.GenericRpcHandler):
  """Answers calls, most of them by asking the worker."""

  def __init__(self, worker: worker_lib.LocalWorker):
    self._worker = worker
    self._channel = grpc.insecure_channel(
      worker.target, worker_lib.CHANNEL_OPTIONS
    )
    self._health = json.dumps(
      {'versions': versions(), 'instance': uuid.uuid4().hex}
    ).encode()
    self.sessions = _Sessions()

  def service(self, handler_call_details):
    """See the base class."""
    method = handler_call_details.method
    session = dict(handler_call_details.invocation_metadata).get(SESSION, '')
    self.sessions.saw(session)
    if method == HEALTH:
      return grpc.unary_unary_rpc_method_handler(self._answer_health)
    if method.startswith(_SERVICE):
      return grpc.unary_unary_rpc_method_handler(
        functools.partial(self._pass_on, method, session)
      )
    return None  # gRPC answers UNIMPLEMENTED.

  def _answer_health(self, request: bytes, context) -> bytes:
    del request
    seconds = context.time_remaining() or _PING_SECONDS
    try:
      self._channel.unary_unary(_PING)(b'', timeout=seconds)
    except grpc.RpcError as e:
      if e.code() is not grpc.StatusCode.UNIMPLEMENTED:
        context.abort(e.code(), f'the TFF worker does not answer: {e.code()}')
    return self._health

  def _pass_on(
    self, method: str, session: str, request: bytes, context
  ) -> bytes:
    call = self._channel.unary_unary(method).future(request)
    if not context.add_callback(call.cancel):
      call.cancel()  # The coordinator has hung up already.
    try:
      response = call.result()
    except grpc.RpcError as e:
      context.abort(e.code(), e.details())
    except grpc.FutureCancelledError:
      context.abort(grpc.StatusCode.CANCELLED, 'the coordinator hung up')
    self.sessions.passed(session, method, request, response)
    return response

  def dispose(self, executors: set[bytes]) -> None:
    """Removes executors from the worker."""
    call = self._channel.unary_unary(f'{_SERVICE}DisposeExecutor')
    for executor in executors:
      with contextlib.suppress(grpc.RpcError):  # Gone, or the worker is.
        call(executor, timeout=_PING_SECONDS)

  def close(self) -> None:
    self._channel.close()


def _credentials(tls: workers_lib.TlsFiles) -> grpc.ServerCredentials:
  cert, key, ca = tls.read()
  return grpc.ssl_server_credentials(
    [(key, cert)], root_certificates=ca, require_client_auth=True
  )


def _check_free(path: str) -> None:
  """Raises if somebody listens on a Unix socket; gRPC would take it over."""
  with socket.socket(socket.AF_UNIX) as s:
    with contextlib.suppress(OSError):
      s.connect(path)
      raise errors.WorkerStartError(f'Another worker listens on unix:{path}.')


class WorkerServer:
  """Serves a local worker to coordinators, until it is stopped.

  Attributes:
    address: Where it listens, with the port that was chosen.
  """

  def __init__(
    self,
    worker: worker_lib.LocalWorker,
    address: str,
    *,
    tls: Optional[workers_lib.TlsFiles] = None,
    insecure: bool = False,
    lease_s: float = _LEASE_SECONDS,
  ):
    """Starts to serve.

    Args:
      worker: Not stopped with the server.
      address: `HOST:PORT`, with port 0 for any, or `unix:/PATH`, a socket that
        only this user can open.
      tls: The worker's side of TLS; needed for a port.
      insecure: Whether a port may be open to everybody.
      lease_s: Seconds after which what a silent coordinator has left on the
        worker is removed.

    Raises:
      ValueError: If the address is none, or not protected.
      WorkerStartError: If the address cannot be listened on, or the TLS files
        cannot be used.
    """
    workers_lib.check_address(address, lowest_port=0)
    workers_lib.check_protected([address], tls, insecure)
    self._lease_s = lease_s
    self._relay = _Relay(worker)
    self._server = grpc.server(
      futures.ThreadPoolExecutor(_MAX_CALLS),
      handlers=[self._relay],
      # Else a second server on the port would take a share of the calls.
      options=(*worker_lib.CHANNEL_OPTIONS, ('grpc.so_reuseport', 0)),
    )
    try:
      self.address = self._listen(address, tls)
    except (RuntimeError, OSError) as e:
      self._relay.close()
      raise errors.WorkerStartError(f'Cannot listen on {address}: {e}') from e
    self._server.start()
    self._stopping = threading.Event()
    threading.Thread(target=self._tidy, daemon=True).start()

  def _listen(self, address: str, tls: Optional[workers_lib.TlsFiles]) -> str:
    if address.startswith(workers_lib.UNIX):
      _check_free(address.removeprefix(workers_lib.UNIX))
      umask = os.umask(0o177)
      try:
        self._server.add_insecure_port(address)
      finally:
        os.umask(umask)
      return address
    if tls is not None:
      port = self._server.add_secure_port(address, _credentials(tls))
    else:
      warnings.warn(
        f'The worker listens on {address} without encryption or'
        ' authentication: whoever reaches it can run programs on this machine'
        ' and see what is computed.',
        RuntimeWarning,
        stacklevel=3,
      )
      port = self._server.add_insecure_port(address)
    return f'{address.rpartition(":")[0]}:{port}'

  def _tidy(self) -> None:
    while not self._stopping.wait(self._lease_s / 4):
      self._relay.dispose(self._relay.sessions.take_silent(self._lease_s))

  def stop(self) -> None:
    """Ends calls under way, and the server. Again, it does nothing."""
    self._stopping.set()
    self._server.stop(_STOP_SECONDS).wait()
    self._relay.close()
