"""A way to JAX's coordination service, open only to hosts that know a secret.

The service serves anyone who reaches it, and hosts find each other through it.
So on host 0 it listens on a Unix socket of this user, and a process, the gate,
connects that socket with the network. Each other host has a gate, too:

    JAX -- Unix socket -- gate ======= TLS ======= gate -- Unix socket -- JAX
    host 1                                                           host 0

The gates open when all hosts have proven the secret. JAX starts after that.
"""

import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile

from pda_fed.common.gate import channel
from pda_fed.common.gate import process

GateError = channel.GateError

# The folder of pda_fed.
_ROOT = pathlib.Path(__file__).parents[3]
_PROGRAM = f'from {__name__} import process; process.main()'
_LEAST_SECRET = 32
# Written to the gate's pipe before the gate reads: a pipe may hold one page.
_MOST_SECRET = 1024
# Bytes of a Unix socket's path. JAX aborts the process if there are more.
_MOST_PATH = 107
_MAKE_SECRET = '(umask 077; openssl rand -hex 32 > FILE)'


def read_secret(path: str) -> bytes:
  """Returns the secret of a run's hosts.

  Args:
    path: The file. Nobody but its owner may have access to it.

  Raises:
    GateError: If the file is missing, too short, too long, or open to other
      users.
  """
  try:
    with open(path, 'rb') as f:
      # Of the open file: a name may be a link, and may change.
      mode = os.fstat(f.fileno()).st_mode
      content = f.read(_MOST_SECRET + 1) if stat.S_ISREG(mode) else b''
  except OSError as e:
    raise GateError(
      f'cluster_secret_file {path} cannot be read: {e.strerror}. To create it:'
      f' {_MAKE_SECRET}.'
    ) from e
  if mode & 0o077:
    raise GateError(
      f'cluster_secret_file {path} must be accessible to its owner alone (mode'
      f' 0600 or 0400). Found {stat.S_IMODE(mode):04o}.'
    )
  if len(content) > _MOST_SECRET:
    raise GateError(
      f'cluster_secret_file {path} must have at most {_MOST_SECRET} bytes.'
      f' Found more. To create it: {_MAKE_SECRET}.'
    )
  secret = content.strip()
  if len(secret) < _LEAST_SECRET:
    raise GateError(
      f'cluster_secret_file {path} must have at least {_LEAST_SECRET} bytes.'
      f' Found {len(secret)}. To create it: {_MAKE_SECRET}.'
    )
  return secret


class Gate:
  """The gate of this host, which stays open until this process ends.

  Example:

  ```
  gate = Gate(read_secret('secret'), '10.0.0.1:8476', 0, 4, timeout_s=45)
  jax.distributed.initialize(
    gate.address, 4, 0, coordinator_bind_address=gate.address
  )
  ```

  Attributes:
    address: Where JAX finds its coordination service.
  """

  def __init__(
    self,
    secret: bytes,
    coordinator: str,
    index: int,
    count: int,
    *,
    timeout_s: float,
  ):
    """Waits until all hosts have proven that they know the secret.

    Args:
      secret: The secret of all hosts.
      coordinator: HOST:PORT on which the gate of host 0 listens.
      index: The index of this host.
      count: The number of hosts.
      timeout_s: Seconds within which all hosts must connect.

    Raises:
      GateError: If a host does not connect, or does not prove the secret, or
        the path of temporary files is too long.
    """
    # Only this user has access to the folder. The gate removes it.
    folder = tempfile.mkdtemp(prefix='pda_fed-')
    task = process.Task(secret, coordinator, index, count, folder, timeout_s)
    extra = len(os.fsencode(task.socket_path)) - _MOST_PATH
    if extra > 0:
      os.rmdir(folder)
      raise GateError(
        f'TMPDIR must be {extra} bytes shorter, so that a Unix socket can be in'
        f' it. Found {tempfile.gettempdir()}.'
      )
    self.address = f'unix:{task.socket_path}'
    # The gate ends when this pipe is closed. No object owns its end here, so
    # that it stays open until the process, and JAX's threads, have ended.
    theirs, self._pipe = os.pipe()
    os.write(self._pipe, task.to_json().encode())
    self._process = subprocess.Popen(
      [sys.executable, '-P', '-c', _PROGRAM],
      env=os.environ | {'PYTHONPATH': str(_ROOT)},
      stdin=theirs,
      stdout=subprocess.PIPE,
      start_new_session=True,  # Ctrl-C is for this process alone.
    )
    os.close(theirs)
    line = self._process.stdout.readline()
    words = json.loads(line) if line else 'The gate has ended.'
    if words:
      self.close()
      raise GateError(words)

  def close(self) -> None:
    """Closes all connections."""
    os.close(self._pipe)
    self._process.wait()
    self._process.stdout.close()
