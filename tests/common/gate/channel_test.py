"""Connections that only those who know the secret can make or read."""

import asyncio
import contextlib
import socket

from pda_fed.common.gate import channel
import pytest

_SECRET = b's' * 32
_WORDS = b'these are the secret seeds'


class _Server:
  """Accepts connections as host 0 does; echoes what proven hosts send."""

  def __init__(self):
    self.hellos = []
    self.received = b''

  async def _serve(self, reader, writer):
    with contextlib.suppress(OSError, EOFError):
      self.hellos.append(await channel.accept(reader, writer, _SECRET))
      while self.hellos[-1].is_right and (data := await reader.read(100)):
        self.received += data
        writer.write(data)
    writer.close()

  @contextlib.asynccontextmanager
  async def listening(self):
    context = channel.context(is_server=True)
    server = await asyncio.start_server(
      self._serve, '127.0.0.1', 0, ssl=context
    )
    async with server:
      yield server.sockets[0].getsockname()[1]


def _run(coroutine):
  asyncio.run(asyncio.wait_for(coroutine, timeout=30))


async def _connect(port, secret=_SECRET, kind=channel.JOIN, index=1):
  return await channel.connect('127.0.0.1', port, secret, kind, index, 3)


def test_hosts_that_know_the_secret_are_connected():
  async def run():
    server = _Server()
    async with server.listening() as port:
      reader, writer = await _connect(port, index=2)
      writer.write(_WORDS)
      assert await reader.readexactly(len(_WORDS)) == _WORDS
      writer.close()
    assert server.hellos == [channel.Hello(channel.JOIN, 2, 3, is_right=True)]

  _run(run())


def test_a_wrong_secret_is_refused():
  async def run():
    server = _Server()
    async with server.listening() as port:
      with pytest.raises(channel.GateError, match='^Host 1 did not prove'):
        await _connect(port, secret=b'o' * 32)
    assert [hello.is_right for hello in server.hellos] == [False]
    assert server.received == b''

  _run(run())


def test_another_host_0_is_refused():
  async def serve(reader, writer):
    await reader.readexactly(channel._HELLO.size)
    writer.write(b'x' * 32)  # It cannot know the proof.
    await writer.drain()

  async def run():
    context = channel.context(is_server=True)
    server = await asyncio.start_server(serve, '127.0.0.1', 0, ssl=context)
    async with server:
      port = server.sockets[0].getsockname()[1]
      with pytest.raises(channel.GateError, match='^Host 0 did not prove'):
        await _connect(port)

  _run(run())


async def _opened(port):
  context = channel.context(is_server=False)
  reader, writer = await asyncio.open_connection('127.0.0.1', port, ssl=context)
  return reader, writer, writer.get_extra_info('ssl_object')


@pytest.mark.parametrize(
  'said, proven',
  [
    ((b'J', 2, 3), (b'J', 1, 3)),  # Another index.
    ((b'J', 1, 4), (b'J', 1, 3)),  # Another number of hosts.
    ((b'D', 1, 3), (b'J', 1, 3)),  # Another kind.
    ((b'S', 1, 3), (b'S', 1, 3)),  # What host 0 would say.
  ],
)
def test_a_proof_is_for_what_was_said(said, proven):
  async def run():
    server = _Server()
    async with server.listening() as port:
      reader, writer, tls = await _opened(port)
      proof = channel._proof(_SECRET, *proven, tls)
      writer.write(channel._HELLO.pack(*said, proof))
      assert await reader.readexactly(32) == channel._REFUSED
      writer.close()
    assert not server.hellos[0].is_right

  _run(run())


def test_a_proof_is_for_one_connection():
  async def run():
    server = _Server()
    async with server.listening() as port:
      _, first, tls = await _opened(port)
      proof = channel._proof(_SECRET, b'J', 1, 3, tls)
      hello = channel._HELLO.pack(b'J', 1, 3, proof)
      reader, second, _ = await _opened(port)
      second.write(hello)
      assert await reader.readexactly(32) == channel._REFUSED
      first.close()
      second.close()

  _run(run())


def test_nobody_in_between_ends_the_encryption():
  """One who speaks TLS with both ends, and passes on what they say."""

  async def run():
    server = _Server()
    async with server.listening() as port:

      async def between(reader, writer):
        other_reader, other, _ = await _opened(port)
        await channel.relay((reader, writer), (other_reader, other))
        writer.close()

      context = channel.context(is_server=True)
      middle = await asyncio.start_server(between, '127.0.0.1', 0, ssl=context)
      async with middle:
        with pytest.raises(channel.GateError):
          await _connect(middle.sockets[0].getsockname()[1])
    assert [hello.is_right for hello in server.hellos] == [False]

  _run(run())


@pytest.mark.parametrize('changes', [False, True])
def test_nobody_in_between_reads_or_changes_words(changes):
  async def run():
    server = _Server()
    seen = []

    async with server.listening() as port:

      async def carry(reader, writer, is_changed):
        while data := await reader.read(10_000):
          seen.append(data)
          if is_changed and is_ready.is_set():
            data = data[:-1] + bytes([data[-1] ^ 1])
          writer.write(data)
        writer.close()

      async def between(reader, writer):
        other_reader, other = await asyncio.open_connection('127.0.0.1', port)
        with contextlib.suppress(OSError):
          await asyncio.gather(
            carry(reader, other, changes), carry(other_reader, writer, False)
          )

      is_ready = asyncio.Event()
      middle = await asyncio.start_server(between, '127.0.0.1', 0)
      async with middle:
        reader, writer = await _connect(middle.sockets[0].getsockname()[1])
        is_ready.set()
        writer.write(_WORDS)
        with contextlib.suppress(OSError):
          found = await reader.read(len(_WORDS))
          assert found == (b'' if changes else _WORDS)
        writer.close()
    assert server.received == (b'' if changes else _WORDS)
    assert len(b''.join(seen)) > 300
    assert _WORDS not in b''.join(seen) and _SECRET not in b''.join(seen)

  _run(run())


def test_python_without_the_cipher(monkeypatch):
  monkeypatch.setattr(channel, '_CIPHER', 'NONE-SUCH')
  with pytest.raises(channel.GateError, match='must have an OpenSSL with'):
    channel.context(is_server=True)


def test_a_socket_listens_on_one_address():
  (s,) = channel.bind('127.0.0.1', 0)
  with s:
    s.listen()
    port = s.getsockname()[1]
    socket.create_connection(('127.0.0.1', port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
      socket.create_connection(('127.0.0.2', port), timeout=5)


@pytest.mark.parametrize(
  'host, expected',
  [('10.0.0.1', True), ('fe80::1', True), ('a.lan', False), ('', False)],
)
def test_addresses_are_not_names(host, expected):
  assert channel.is_address(host) == expected
