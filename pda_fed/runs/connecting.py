"""Connects the hosts of a run, with JAX's distributed runtime."""

import ctypes
import dataclasses
import os
import re
import signal
import sys
import tempfile
from typing import Optional

from pda_fed.common import gate as gate_lib
from pda_fed.common import validate
from pda_fed.runs import hosts as hosts_lib

# Seconds within which all hosts must shut down.
_SHUTDOWN_S = 60
# JAX ends processes without a message, so its timeout is longer than ours.
_JAX_TIMEOUT_S = 600


@dataclasses.dataclass(frozen=True)
class HostSettings:
  """This process' place among the hosts.

  Values that are None come from the cluster: SLURM, Open MPI or another one
  that JAX supports.

  Example:

    >>> HostSettings('secret', '10.0.0.1:8476', 4, host_index=0).num_hosts
    4

  Attributes:
    secret_file: The file of the cluster secret, the same on all hosts.
    coordinator: HOST:PORT on which host 0 listens, and on no other address.
    num_hosts: The number of hosts.
    host_index: The index of this host, from 0.
    timeout_s: Seconds within which all hosts must connect.
  """

  secret_file: str
  coordinator: Optional[str] = None
  num_hosts: Optional[int] = None
  host_index: Optional[int] = None
  timeout_s: int = 45

  def __post_init__(self):
    validate.integers(1, timeout_s=self.timeout_s)
    if self.num_hosts is not None:
      validate.integers(1, num_hosts=self.num_hosts)
    if self.host_index is not None:
      validate.integers(0, host_index=self.host_index)
      if self.num_hosts is not None:
        validate.in_range(0, self.num_hosts - 1, host_index=self.host_index)
    if self.coordinator is not None:
      parts = re.fullmatch(r'.+:(\d{1,5})', self.coordinator)
      if parts is None or not 0 < int(parts[1]) < 2**16:
        raise ValueError(
          f'coordinator must be HOST:PORT. Found {self.coordinator!r}.'
        )


def no_answer(settings: HostSettings) -> str:
  """Returns the error message for hosts that do not connect.

  Args:
    settings: This host's settings.
  """
  return (
    f'All hosts must connect within {settings.timeout_s} s to the coordinator,'
    f' {settings.coordinator or "which the cluster names"}. At least one of'
    f' {settings.num_hosts or "the"} hosts did not connect, or cannot be'
    ' reached.'
  )


def _from_cluster(settings: HostSettings) -> HostSettings:
  """Returns settings whose missing values come from the cluster.

  Raises:
    ValueError: If the cluster does not provide them.
  """
  from jax._src import clusters  # JAX has no public access to these.

  place = (
    settings.coordinator or os.environ.get('JAX_COORDINATOR_ADDRESS'),
    settings.num_hosts,
    settings.host_index,
  )
  if None in place:
    detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
    place = detect(*place, None, None, settings.timeout_s)[:3]
  if None in place:
    raise ValueError(
      'coordinator, num_hosts and host_index must be given if the cluster does'
      f' not set them. Found {", ".join(map(str, place))}.'
    )
  coordinator, num_hosts, host_index = place
  return dataclasses.replace(
    settings,
    coordinator=coordinator,
    num_hosts=num_hosts,
    host_index=host_index,
  )


def connect(settings: HostSettings) -> hosts_lib.Hosts:
  """Connects to the other hosts. Call this before JAX computes anything.

  All hosts prove that they know the cluster secret before JAX starts.

  Args:
    settings: This host's settings.

  Raises:
    ValueError: If the coordinator does not answer, a host does not connect or
      does not know the secret, or a setting is missing and the cluster does not
      provide it.
  """
  import jax
  from jax._src import distributed  # JAX has no public access to the client.

  secret = gate_lib.read_secret(settings.secret_file)
  try:
    settings = _from_cluster(settings)
    place = settings.num_hosts, settings.host_index
    gate = gate_lib.Gate(
      secret, settings.coordinator, *place[::-1], timeout_s=settings.timeout_s
    )
    jax.distributed.initialize(
      gate.address,
      *place,
      coordinator_bind_address=gate.address,
      initialization_timeout=settings.timeout_s,
      heartbeat_timeout_seconds=_JAX_TIMEOUT_S,
      shutdown_timeout_seconds=_SHUTDOWN_S,
    )
  except RuntimeError as e:
    raise ValueError(
      f'{no_answer(settings)} JAX: {hosts_lib.first_line(e)}.'
    ) from e
  client = distributed.global_state.client
  return hosts_lib.Hosts(client, settings.host_index, settings.num_hosts)


class LastWords:
  """Sets the message and exit code of a process that JAX's runtime aborts.

  JAX's client aborts the process, with a stack trace, as soon as the process of
  host 0 has ended. This class hides the output of native libraries; Python's
  output is still shown.

  Example:

  ```
  with LastWords() as last_words:
    last_words.set('error: The coordinator does not answer.', 2)
    hosts = connect(settings)
  ```
  """

  def __init__(self):
    self._line = b''
    self._exit_code = 1

  def set(self, line: str, exit_code: int) -> None:
    """Sets the message and exit code of an abort from now on.

    Args:
      line: One line, or an empty string.
      exit_code: The exit code.
    """
    self._line = f'{line}\n'.encode() if line else b''
    self._exit_code = exit_code

  def _end(self, signum: int) -> None:
    del signum
    os.write(self._kept[1], self._line)
    os._exit(self._exit_code)

  def __enter__(self):
    self._streams = sys.stdout, sys.stderr
    self._flush()
    self._kept = os.dup(1), os.dup(2)
    sys.stdout, sys.stderr = (
      open(fd, 'w', buffering=1, closefd=False) for fd in self._kept
    )
    with tempfile.TemporaryFile() as aside:
      os.dup2(aside.fileno(), 1)
      os.dup2(aside.fileno(), 2)
    # Python's handlers run later, in the main thread: too late for an abort.
    self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._end)
    _set_handler(signal.SIGABRT, ctypes.cast(self._handler, ctypes.c_void_p))
    return self

  def __exit__(self, *exc_info):
    _set_handler(signal.SIGABRT, None)
    self._flush()
    for number, fd in enumerate(self._kept, 1):
      os.dup2(fd, number)
      os.close(fd)
    sys.stdout, sys.stderr = self._streams

  def _flush(self) -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _set_handler(signum: int, handler: Optional[ctypes.c_void_p]) -> None:
  """Calls C's `signal`."""
  function = ctypes.CDLL(None).signal
  function.argtypes = [ctypes.c_int, ctypes.c_void_p]
  function.restype = ctypes.c_void_p
  function(signum, handler)
