"""The process that connects JAX's coordination service with the network.

It is a process of its own, so that a busy host does not delay others.
"""

import asyncio
import contextlib
import dataclasses
import errno
import json
import logging
import os
import shutil
import signal
import socket
import sys
import time
from typing import Any, Optional

from pda_fed.common.gate import channel

_RETRY_S = 0.2


@dataclasses.dataclass(frozen=True)
class Task:
  """What a gate is told.

  Example:

    >>> Task(b'x' * 32, '10.0.0.1:8476', 1, 4, '/tmp/a', 45.0).index
    1

  Attributes:
    secret: The secret of all hosts.
    coordinator: HOST:PORT on which the gate of host 0 listens.
    index: The index of this host.
    count: The number of hosts.
    folder: The folder of the Unix socket.
    timeout_s: Seconds within which all hosts must connect.
  """

  secret: bytes
  coordinator: str
  index: int
  count: int
  folder: str
  timeout_s: float

  @property
  def socket_path(self) -> str:
    """The path of the Unix socket."""
    return os.path.join(self.folder, 'jax')

  @property
  def host_and_port(self) -> tuple[str, int]:
    """The coordinator's name or address, and its port."""
    host, _, port = self.coordinator.rpartition(':')
    return host.removeprefix('[').removesuffix(']'), int(port)

  def to_json(self) -> str:
    """Returns one line of JSON."""
    fields = {**dataclasses.asdict(self), 'secret': self.secret.hex()}
    return f'{json.dumps(fields)}\n'

  @classmethod
  def from_json(cls, line: str) -> 'Task':
    """Returns the task that `to_json` wrote."""
    fields = json.loads(line)
    return cls(**{**fields, 'secret': bytes.fromhex(fields['secret'])})


def _line(words: str) -> str:
  return f'{json.dumps(words)}\n'


def _tell(words: str) -> None:
  """Tells the process that started this one: '' if the gate is open."""
  sys.stdout.write(_line(words))
  sys.stdout.flush()


class _Leader:
  """The gate of host 0."""

  def __init__(self, task: Task):
    self._task = task
    self._end = time.monotonic() + task.timeout_s
    self._joined: dict[int, asyncio.StreamWriter] = {}
    self._refused: dict[int, str] = {}  # Where wrong proofs came from.
    self._wrong: Optional[str] = None
    self._changed = asyncio.Event()
    self._is_open = False

  async def open(self) -> None:
    """Listens, and waits for all hosts."""
    sockets = await self._bound()
    self._servers = [
      await asyncio.start_server(
        self._serve,
        sock=s,
        ssl=channel.context(is_server=True),
        ssl_handshake_timeout=channel.HANDSHAKE_S,
      )
      for s in sockets
    ]
    addresses = ', '.join(s.getsockname()[0] for s in sockets)
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(self._end - time.monotonic()):
        while len(self._joined) < self._task.count - 1 and not self._wrong:
          await self._changed.wait()
          self._changed.clear()
    words = self._wrong or self._missing(addresses)
    self._is_open = not words
    for writer in list(self._joined.values()):
      with contextlib.suppress(OSError):
        writer.write(_line(words).encode())
        await writer.drain()
    if words:
      raise channel.GateError(words)

  async def _bound(self) -> list[socket.socket]:
    """Returns sockets on the coordinator's addresses, which are this host's."""
    host, port = self._task.host_and_port
    while True:
      try:
        found = channel.bind(host, port)
      except (OSError, UnicodeError) as e:
        # In a cluster, a name may become this host's only after a while.
        code = getattr(e, 'errno', None)
        is_final = channel.is_address(host) and code == errno.EADDRNOTAVAIL
        if is_final or time.monotonic() > self._end:
          raise channel.GateError(
            'coordinator must be an address of host 0, this host, with a free'
            f' port. Found {self._task.coordinator!r}: {channel.reason(e)}.'
          ) from e
        await asyncio.sleep(_RETRY_S)
      else:
        return found

  def _missing(self, addresses: str) -> str:
    """Returns the error message if a host has not joined, else ''."""
    missing = set(range(1, self._task.count)) - self._joined.keys()
    wrong = sorted(missing & self._refused.keys())
    if wrong:
      return (
        f'Host {wrong[0]} did not prove that it knows the cluster secret'
        ' (--cluster_secret_file): a wrong proof came from'
        f' {self._refused[wrong[0]]}. Give all hosts the same file.'
      )
    if missing:
      names = ', '.join(map(str, sorted(missing)))
      return (
        f'All hosts must connect within {self._task.timeout_s:g} s to the'
        f' coordinator, {self._task.coordinator} ({addresses}). Missing: host'
        f' {names} of {self._task.count}, counted from 0.'
      )
    return ''

  async def _serve(self, reader, writer) -> None:
    """Serves one connection: refuses it unless it proves the secret."""
    try:
      async with asyncio.timeout(channel.HANDSHAKE_S):
        hello = await channel.accept(reader, writer, self._task.secret)
      if not hello.is_right:
        if hello.index < self._task.count:  # Strangers must not fill memory.
          self._refused[hello.index] = writer.get_extra_info('peername')[0]
        return
      self._check(hello)
      if hello.kind == channel.JOIN:
        await self._join(hello.index, reader, writer)
      elif self._is_open:
        other = await self._connect_to_jax()
        await channel.relay((reader, writer), other)
    except (OSError, EOFError, TimeoutError, channel.GateError):
      pass
    finally:
      writer.close()

  def _check(self, hello: channel.Hello) -> None:
    count = self._task.count
    if hello.count != count or not 0 < hello.index < count:
      self._fail(
        f'num_hosts must be the same on all hosts. Found {count} on host 0,'
        f' {hello.count} on host {hello.index}.'
      )

  async def _join(self, index: int, reader, writer) -> None:
    """Counts a host until its connection ends."""
    twice = (
      f'host_index must differ between hosts. Found {index} twice, or host'
      f' {index} was started again while the others run.'
    )
    if self._is_open:
      writer.write(_line(twice).encode())
      return
    if index in self._joined:
      self._fail(twice)
    self._joined[index] = writer
    self._changed.set()
    try:
      await reader.read()
    finally:
      if not self._is_open:
        self._joined.pop(index, None)

  def _fail(self, words: str) -> None:
    """Ends the run on all hosts, if it has not begun."""
    self._wrong = self._wrong or words
    self._changed.set()

  async def _connect_to_jax(self):
    # JAX starts after the gate has opened.
    while not os.path.exists(self._task.socket_path):
      await asyncio.sleep(_RETRY_S)
    return await asyncio.open_unix_connection(self._task.socket_path)


class _Follower:
  """The gate of another host."""

  def __init__(self, task: Task):
    self._task = task
    self._end = time.monotonic() + task.timeout_s

  async def open(self) -> None:
    """Proves the secret to host 0, and waits for the other hosts."""
    while True:
      try:
        joined = await self._connect(channel.JOIN)
        break
      except (OSError, UnicodeError, EOFError, TimeoutError) as e:
        if time.monotonic() > self._end:
          raise channel.GateError(
            f'All hosts must connect within {self._task.timeout_s:g} s to the'
            f' coordinator, {self._task.coordinator}. It does not answer host'
            f' {self._task.index}: {channel.reason(e)}.'
          ) from e
        await asyncio.sleep(_RETRY_S)
    reader, self._writer = joined
    try:
      async with asyncio.timeout(self._task.timeout_s + channel.HANDSHAKE_S):
        line = await reader.readline()
    except (OSError, TimeoutError):
      line = b''
    words = json.loads(line) if line else 'Host 0 has ended.'
    if words:
      raise channel.GateError(words)
    self._server = await asyncio.start_unix_server(
      self._serve, self._task.socket_path
    )

  async def _connect(self, kind: bytes) -> tuple:
    task = self._task
    host, port = task.host_and_port
    return await channel.connect(
      host, port, task.secret, kind, task.index, task.count
    )

  async def _serve(self, reader, writer) -> None:
    """Connects JAX, on this host, with host 0."""
    try:
      other = await self._connect(channel.DATA)
      await channel.relay((reader, writer), other)
    except (OSError, EOFError, TimeoutError, channel.GateError):
      pass
    finally:
      writer.close()


async def _run(task: Task) -> None:
  """Opens a gate, and keeps it open until the parent process ends."""
  gate: Any = _Leader(task) if task.index == 0 else _Follower(task)
  ended = asyncio.Event()
  asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
  opening = asyncio.ensure_future(gate.open())
  waiting = asyncio.ensure_future(ended.wait())
  await asyncio.wait([opening, waiting], return_when=asyncio.FIRST_COMPLETED)
  if opening.done():
    opening.result()
    _tell('')
    await waiting


def main() -> None:
  """Runs the gate that a line of standard input describes."""
  logging.getLogger('asyncio').setLevel(logging.CRITICAL)
  # A cluster sends its signals to all processes. This one ends with its parent.
  for name in ('SIGHUP', 'SIGINT', 'SIGTERM', 'SIGUSR1', 'SIGUSR2'):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
  task = Task.from_json(sys.stdin.readline())
  try:
    asyncio.run(_run(task))
  except (channel.GateError, OSError) as e:
    _tell(str(e))
  finally:
    shutil.rmtree(task.folder, ignore_errors=True)


if __name__ == '__main__':
  main()
