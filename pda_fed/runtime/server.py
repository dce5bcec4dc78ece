"""A worker: serves the in-process runtime to remote coordinators.

    coordinator --- mutual TLS, or a Unix socket --> WorkerServer --> Pool

The server implements TFF's executor protocol, whose client is
`tff.framework.RemoteExecutor`, and one additional call that returns the
versions. TLS is grpcio's: a client without a certificate of our CA cannot make
any call.
"""

from concurrent import futures
import contextlib
import json
import os
import socket
import threading
from typing import Any, Optional
import uuid
import warnings

import grpc
import pda_fed
from pda_fed.common import workers as workers_lib
from pda_fed.runtime import errors
from pda_fed.runtime import service
import tensorflow as tf
import tensorflow_federated as tff

HEALTH = '/pda_fed.Worker/Health'
# One message holds the data and models of a cohort.
CHANNEL_OPTIONS = (
  ('grpc.max_receive_message_length', -1),
  ('grpc.max_send_message_length', -1),
)
# Version of the protocol between coordinator and worker. Increment it with
# every change.
_PROTOCOL = 2
# A coordinator makes few calls at a time; calls end when it disconnects.
_MAX_CALLS = 64
# Seconds after which the data of a silent coordinator is removed.
_LEASE_SECONDS = 600.0
_STOP_SECONDS = 2.0


def versions() -> dict[str, Any]:
  """Returns the versions that coordinator and worker must share.

  Example:

    >>> sorted(versions())
    ['pda_fed', 'protocol', 'tensorflow', 'tensorflow-federated']
  """
  return {
    'protocol': _PROTOCOL,
    'pda_fed': pda_fed.__version__,
    'tensorflow-federated': tff.__version__,
    'tensorflow': tf.__version__,
  }


class _Health(grpc.GenericRpcHandler):
  """Returns versions and instance id, and records who asks."""

  def __init__(self, executors: service.ExecutorService):
    self._executors = executors
    self.answer = json.dumps(
      {'versions': versions(), 'instance': uuid.uuid4().hex}
    ).encode()

  def service(self, handler_call_details):
    """See the base class."""
    metadata = dict(handler_call_details.invocation_metadata)
    self._executors.saw(metadata.get(service.SESSION, ''))
    if handler_call_details.method != HEALTH:
      return None  # For another handler, or UNIMPLEMENTED.
    return grpc.unary_unary_rpc_method_handler(
      lambda request, context: self.answer
    )


def _credentials(tls: workers_lib.TlsFiles) -> grpc.ServerCredentials:
  cert, key, ca = tls.read()
  return grpc.ssl_server_credentials(
    [(key, cert)], root_certificates=ca, require_client_auth=True
  )


def _check_free(path: str) -> None:
  """Raises if a Unix socket is in use; gRPC would take it over."""
  with socket.socket(socket.AF_UNIX) as s:
    with contextlib.suppress(OSError):
      s.connect(path)
      raise errors.WorkerStartError(f'Another worker uses unix:{path}.')


class WorkerServer:
  """Serves coordinators until it is stopped.

  Example:

  ```
  tls = runtime.TlsFiles(cert='b.lan.crt', key='b.lan.key', ca='ca.crt')
  server = runtime.WorkerServer('0.0.0.0:8443', tls=tls)
  ```

  Attributes:
    address: The address on which it listens, with the actual port.
  """

  def __init__(
    self,
    address: str,
    *,
    tls: Optional[workers_lib.TlsFiles] = None,
    insecure: bool = False,
    max_concurrent_clients: Optional[int] = None,
    lease_s: float = _LEASE_SECONDS,
  ):
    """Starts the server.

    Args:
      address: `HOST:PORT`, with port 0 for any free port, or `unix:/PATH`, a
        socket that only this user can open.
      tls: The worker's TLS files; required for a port.
      insecure: Whether a port may be open without TLS.
      max_concurrent_clients: Number of clients simulated at a time; by default
        the number of cores.
      lease_s: Seconds after which the data of a silent coordinator is removed.

    Raises:
      ValueError: If the address is invalid, or not protected.
      WorkerStartError: If the address cannot be used, or the TLS files are
        invalid.
    """
    workers_lib.check_address(address, lowest_port=0)
    workers_lib.check_protected([address], tls, insecure)
    self._lease_s = lease_s
    self._executors = service.ExecutorService(max_concurrent_clients)
    self._health = _Health(self._executors)
    self._threads = futures.ThreadPoolExecutor(_MAX_CALLS)
    self._server = grpc.server(
      self._threads,
      handlers=[self._health],
      # Otherwise a second server on the port would take some of the calls.
      options=(*CHANNEL_OPTIONS, ('grpc.so_reuseport', 0)),
    )
    self._executors.add_to(self._server)
    try:
      self.address = self._listen(address, tls)
    except (RuntimeError, OSError) as e:
      self._executors.close()
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
        ' authentication: anyone who can reach it can run programs on this'
        ' machine and read the data.',
        RuntimeWarning,
        stacklevel=3,
      )
      port = self._server.add_insecure_port(address)
    return f'{address.rpartition(":")[0]}:{port}'

  def _tidy(self) -> None:
    while not self._stopping.wait(self._lease_s / 4):
      self._executors.dispose_silent(self._lease_s)

  def stop(self) -> None:
    """Ends calls in progress and stops the server; may be called twice."""
    self._stopping.set()
    stopped = self._server.stop(_STOP_SECONDS)
    self._executors.close()
    stopped.wait()
    self._threads.shutdown(wait=False)
