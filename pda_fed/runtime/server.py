"""A worker: the in-process runtime, served to coordinators elsewhere.

    coordinator --- mutual TLS, or a Unix socket --> WorkerServer --> Pool

The server speaks TFF's own executor protocol, whose client is
`tff.framework.RemoteExecutor`, and answers one call of its own, which tells the
versions. TLS is grpcio's: a client without a certificate of our CA never gets
as far as a call.
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
# A cohort's data and models travel in one message.
CHANNEL_OPTIONS = (
  ('grpc.max_receive_message_length', -1),
  ('grpc.max_send_message_length', -1),
)
# Version of the calls between coordinator and worker. Raise it with a change.
_PROTOCOL = 2
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
  return {
    'protocol': _PROTOCOL,
    'pda_fed': pda_fed.__version__,
    'tensorflow-federated': tff.__version__,
    'tensorflow': tf.__version__,
  }


class _Health(grpc.GenericRpcHandler):
  """Tells which life of which version answers; notes who asks."""

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
      return None  # Another handler's, or UNIMPLEMENTED.
    return grpc.unary_unary_rpc_method_handler(
      lambda request, context: self.answer
    )


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
  """Computes for coordinators, until it is stopped.

  Example:

  ```
  tls = runtime.TlsFiles(cert='b.lan.crt', key='b.lan.key', ca='ca.crt')
  server = runtime.WorkerServer('0.0.0.0:8443', tls=tls)
  ```

  Attributes:
    address: Where it listens, with the port that was chosen.
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
    """Starts to serve.

    Args:
      address: `HOST:PORT`, with port 0 for any, or `unix:/PATH`, a socket that
        only this user can open.
      tls: The worker's side of TLS; needed for a port.
      insecure: Whether a port may be open to everybody.
      max_concurrent_clients: How many clients are simulated at a time.
        Default: the cores.
      lease_s: Seconds after which what a silent coordinator has left here is
        removed.

    Raises:
      ValueError: If the address is none, or not protected.
      WorkerStartError: If the address cannot be listened on, or the TLS files
        cannot be used.
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
      # Else a second server on the port would take a share of the calls.
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
        ' authentication: whoever reaches it can run programs on this machine'
        ' and see what is computed.',
        RuntimeWarning,
        stacklevel=3,
      )
      port = self._server.add_insecure_port(address)
    return f'{address.rpartition(":")[0]}:{port}'

  def _tidy(self) -> None:
    while not self._stopping.wait(self._lease_s / 4):
      self._executors.dispose_silent(self._lease_s)

  def stop(self) -> None:
    """Ends calls under way, and the server. Again, it does nothing."""
    self._stopping.set()
    stopped = self._server.stop(_STOP_SECONDS)
    self._executors.close()
    stopped.wait()
    self._threads.shutdown(wait=False)
