"""The hosts that compute one run: they connect, prove a secret and talk.

They talk by the key-value store of JAX's coordination service, which serves
anyone who reaches it and encrypts nothing. So hosts first prove to each other
that they know a secret, each message has a tag that only they can make, and
seeds are never sent: each host derives them from the secret.
"""

from collections.abc import Callable
import hmac
import json
import math
import os
import re
import secrets
import signal
import socket
import stat
import time
from typing import Any, Optional

from pda_fed import errors as base_errors
from pda_fed import privacy
from pda_fed.common import signals
from pda_fed.common import typed

# JAX ends all hosts this many seconds after the last heartbeat of one.
HEARTBEAT_S = 60
# Hosts wait for each other at the end, because host 0 has the store.
_SHUTDOWN_S = 20
_LEAST_SECRET = 32
_MAKE_SECRET = 'To create it: (umask 077; openssl rand -hex 32 > FILE).'


class HostError(base_errors.PdaFedError):
  """A host of a run on several hosts is lost.

  Example:

    >>> HostError('Host 1 is lost.').exit_code
    3
  """

  exit_code = 3


def read_secret(path: str) -> bytes:
  """Returns the secret of a run's hosts.

  Args:
    path: The file. Nobody but its owner may have access to it.

  Raises:
    ValueError: If the file is missing, too short, or open to other users.
  """
  name = f'cluster_secret_file {path}'
  try:
    with open(path, 'rb') as f:
      # Of the open file: a name may be a link, and may change.
      mode = os.fstat(f.fileno()).st_mode
      secret = f.read().strip()
  except OSError as e:
    raise ValueError(
      f'{name} cannot be read: {e.strerror}. {_MAKE_SECRET}'
    ) from e
  if mode & 0o077:
    raise ValueError(
      f'{name} must be accessible to its owner alone (mode 0600 or 0400). Found'
      f' {stat.S_IMODE(mode):04o}.'
    )
  if len(secret) < _LEAST_SECRET:
    raise ValueError(
      f'{name} must have at least {_LEAST_SECRET} bytes. Found'
      f' {len(secret)}. {_MAKE_SECRET}'
    )
  return secret


def _own_address(coordinator: str) -> str:
  """Returns one address of host 0: JAX would listen on all of them.

  It would also crash if the port is taken.
  """
  name, _, port = coordinator.rpartition(':')
  try:
    found = socket.getaddrinfo(name.strip('[]'), port, type=socket.SOCK_STREAM)
    family, _, _, _, address = found[0]
    socket.create_server(address, family=family).close()
  except OSError as e:
    raise ValueError(
      'coordinator must be an address of host 0, this host, and a free port.'
      f' Found {coordinator}: {e.strerror}.'
    ) from e
  own = f'[{address[0]}]' if family == socket.AF_INET6 else address[0]
  return f'{own}:{port}'


def connect(
  secret: bytes,
  coordinator: Optional[str] = None,
  num_hosts: Optional[int] = None,
  host_index: Optional[int] = None,
  timeout_s: int = 45,
) -> 'Hosts':
  """Connects to the other hosts. Call this before JAX computes anything.

  Arguments that are None come from the cluster: SLURM, Open MPI or another one
  that JAX supports. JAX ends the process if the hosts do not connect in time.

  Args:
    secret: The secret of all hosts.
    coordinator: HOST:PORT on which host 0 listens, and on no other address.
    num_hosts: The number of hosts.
    host_index: The index of this host, from 0.
    timeout_s: Seconds within which all hosts must connect.

  Raises:
    ValueError: If an argument is wrong, or missing and the cluster does not
      provide it, or a host does not prove the secret.
  """
  import jax
  from jax._src import clusters  # JAX has no public access to these.
  from jax._src import distributed

  place = coordinator or os.environ.get('JAX_COORDINATOR_ADDRESS')
  detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
  place, num_hosts, host_index, _ = detect(
    place, num_hosts, host_index, None, None, timeout_s
  )
  if None in (place, num_hosts, host_index):
    raise ValueError(
      'coordinator, num_hosts and host_index must be given if the cluster does'
      f' not set them. Found {place}, {num_hosts}, {host_index}.'
    )
  if not re.fullmatch(r'.+:\d{1,5}', place):
    raise ValueError(f'coordinator must be HOST:PORT. Found {place!r}.')
  if host_index == 0:
    place = _own_address(place)
  # It would take SIGTERM for itself.
  jax.config.update('jax_enable_preemption_service', False)
  jax.distributed.initialize(
    place,
    num_hosts,
    host_index,
    coordinator_bind_address=place,
    initialization_timeout=timeout_s,
    heartbeat_timeout_seconds=HEARTBEAT_S,
    shutdown_timeout_seconds=_SHUTDOWN_S,
  )
  client = distributed.global_state.client
  return Hosts(client, host_index, num_hosts, secret, timeout_s=timeout_s)


class Hosts:
  """One host's connection to all hosts of a run.

  Example:

  ```
  secret = read_secret('cluster_secret')
  hosts = connect(secret, '10.0.0.1:8476', 2, host_index=0)
  hosts.agree({'jax': jax.__version__})
  ```

  Attributes:
    index: The index of this host.
    count: The number of hosts.
  """

  def __init__(
    self,
    client: Any,
    index: int,
    count: int,
    secret: bytes,
    *,
    timeout_s: float = 45.0,
  ):
    """Waits until all hosts have proven that they know the secret.

    Args:
      client: The client of JAX's coordination service.
      index: The index of this host.
      count: The number of hosts.
      secret: The secret of all hosts.
      timeout_s: Seconds within which they must prove it.

    Raises:
      ValueError: If a host does not prove it.
    """
    self.index = index
    self.count = count
    self._client = client
    self._secret = self._key = secret
    self._agreed = self._steps = 0
    end = time.monotonic() + timeout_s
    challenge = secrets.token_hex(32)
    said = self._exchange('challenge', challenge, end)
    # Not what the store says: with an old one, old proofs would be right.
    said[index] = challenge
    # The key of this session: tags of another one are wrong here.
    self._key = hmac.digest(secret, json.dumps(said).encode(), 'sha256')
    self._exchange('proof', None, end)

  def _exchange(
    self, name: str, value: Any, end: float = math.inf
  ) -> list[Any]:
    """Tells all hosts a value, and returns theirs."""
    self._say(name, value)
    return [self._hear(host, name, end) for host in range(self.count)]

  def _no_proof(self, host: int) -> ValueError:
    return ValueError(
      f'Host {host} did not prove that it knows the cluster secret'
      f' (--cluster_secret_file) of host {self.index}. Give all hosts the same'
      ' file.'
    )

  def _tag(self, host: int, name: str, text: str) -> str:
    words = json.dumps([host, name, text]).encode()
    return hmac.digest(self._key, words, 'sha256').hex()

  def _say(self, name: str, value: Any) -> None:
    """Tells all hosts a value, and anyone who reads the network."""
    text = json.dumps(value)
    self._client.key_value_set(
      f'pda_fed/{name}/{self.index}',
      f'{self._tag(self.index, name, text)} {text}',
      allow_overwrite=True,
    )

  def _hear(
    self,
    host: int,
    name: str,
    end: float = math.inf,
    check: Callable[[], None] = lambda: None,
  ) -> Any:
    """Returns what a host says until a time; calls `check` while it waits."""
    found = None
    while found is None:
      check()
      if time.monotonic() > end:
        raise self._no_proof(host)
      try:
        found = self._client.blocking_key_value_get(
          f'pda_fed/{name}/{host}', 1000
        )
      except RuntimeError as e:
        if 'DEADLINE_EXCEEDED' not in str(e):
          raise HostError(f'Host 0 is lost: {str(e).splitlines()[0]}.') from e
    tag, _, text = found.partition(' ')
    right = self._tag(host, name, text)
    if not hmac.compare_digest(tag.encode(), right.encode()):
      raise self._no_proof(host)
    return json.loads(text)

  def agree(self, facts: dict[str, Any]) -> None:
    """Checks that facts are the same on all hosts.

    Args:
      facts: JSON values by name.

    Raises:
      ValueError: On every host, if a host differs from host 0.
    """
    self._agreed += 1
    first, *others = self._exchange(f'facts/{self._agreed}', facts)
    for host, other in enumerate(others, 1):
      lines = typed.differences(first, other)
      if lines:
        raise ValueError(
          'All hosts must have the same flags, data, code and kind of device.'
          f' Host 0 -> host {host}: {lines[0]}.'
        )

  def seeds(self, nonce: Optional[str] = None) -> privacy.SeedStreams:
    """Returns secret seeds that follow from the cluster secret.

    Args:
      nonce: That of a run; None draws one, for a new run.
    """
    return privacy.SeedStreams.derived(self._secret, nonce)

  def lead(self, **step: Any) -> None:
    """Tells the other hosts their next step; for host 0.

    Args:
      **step: JSON values.
    """
    if self._client.key_value_dir_get('pda_fed/stop/'):
      # The loop saves the run, as if this host had got the signal.
      signals.StopSignals.request(signal.SIGTERM)
    self._say(f'step/{self._steps}', step)
    self._steps += 1

  def follow(self, stop: signals.StopSignals) -> dict[str, Any]:
    """Returns the next step; for the other hosts.

    Args:
      stop: Catches this host's signals, of which host 0 is told.

    Raises:
      HostError: If host 0 is lost.
    """

    def check() -> None:
      if stop.signum is not None:
        self._say('stop', None)

    self._steps += 1
    return self._hear(0, f'step/{self._steps - 1}', check=check)
