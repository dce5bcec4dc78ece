"""Encrypted connections between processes that know the same secret.

TLS runs without certificates. Both ends prove that they know the secret by an
HMAC over the channel binding of the connection (RFC 5929, tls-unique). Anyone
in between has two connections, whose bindings differ, so that proofs of one are
wrong for the other.
"""

import asyncio
import dataclasses
import errno
import hashlib
import hmac
import ipaddress
import socket
import ssl
import struct

# Kinds of connections: of a host that joins, and of JAX's data.
JOIN = b'J'
DATA = b'D'
# Seconds within which both ends must have proven the secret.
HANDSHAKE_S = 10.0
_VERSION = b'pda_fed gate 1'
_CIPHER = 'AECDH-AES256-SHA'
# Kind, index, number of hosts, HMAC.
_HELLO = struct.Struct('>cII32s')
_REFUSED = bytes(32)
_CHUNK = 2**16


class GateError(ValueError):
  """The hosts cannot be connected.

  Example:

    >>> str(GateError('Host 1 did not connect.'))
    'Host 1 did not connect.'
  """


@dataclasses.dataclass(frozen=True)
class Hello:
  """What a host says of itself when it connects to host 0.

  Example:

    >>> Hello(JOIN, 1, 4, is_right=False).index
    1

  Attributes:
    kind: `JOIN` or `DATA`.
    index: The index of the host.
    count: The number of hosts, as that host knows it.
    is_right: Whether its proof is right. If not, all of this may be a lie.
  """

  kind: bytes
  index: int
  count: int
  is_right: bool


def context(is_server: bool) -> ssl.SSLContext:
  """Returns settings of TLS with anonymous keys."""
  kind = ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT
  context = ssl.SSLContext(kind)
  context.check_hostname = False
  context.verify_mode = ssl.CERT_NONE
  # TLS 1.3 has no anonymous keys, and no tls-unique. This cipher needs no file
  # of parameters: ephemeral ECDH, AES, and an HMAC of the encrypted data.
  context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
  try:
    context.set_ciphers(f'{_CIPHER}:@SECLEVEL=0')
  except ssl.SSLError as e:
    raise GateError(
      f'Python must have an OpenSSL with the cipher {_CIPHER}. Found'
      f' {ssl.OPENSSL_VERSION}, without it.'
    ) from e
  # tls-unique identifies a connection only in its first, full handshake.
  context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
  return context


def _proof(
  secret: bytes, kind: bytes, index: int, count: int, tls: ssl.SSLObject
) -> bytes:
  """Returns the proof of one end of a connection.

  Args:
    secret: The secret of all hosts.
    kind: b'J' or b'D' at the other hosts' end, b'S' at host 0's.
    index: The index of the host that connects to host 0.
    count: The number of hosts, as that host knows it.
    tls: The connection.
  """
  binding = tls.get_channel_binding('tls-unique')
  if not binding or tls.session_reused:
    raise GateError('The connection has no channel binding.')
  words = b'|'.join([_VERSION, kind, b'%d' % index, b'%d' % count, binding])
  return hmac.digest(secret, words, hashlib.sha256)


async def accept(reader, writer, secret: bytes) -> Hello:
  """Returns what the other end says; proves the secret to it if it is right.

  Args:
    reader: Reads from a connection that another process has opened.
    writer: Writes to it.
    secret: The secret of all hosts.
  """
  hello = await reader.readexactly(_HELLO.size)
  kind, index, count, proof = _HELLO.unpack(hello)
  tls = writer.get_extra_info('ssl_object')
  expected = _proof(secret, kind, index, count, tls)
  # Not b'S', which is this end's kind.
  is_right = hmac.compare_digest(expected, proof) and kind in (JOIN, DATA)
  own = _proof(secret, b'S', index, count, tls) if is_right else _REFUSED
  writer.write(own)
  await writer.drain()
  return Hello(kind, index, count, is_right)


async def connect(
  host: str, port: int, secret: bytes, kind: bytes, index: int, count: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
  """Connects to host 0; both ends prove that they know the secret.

  Args:
    host: Name or address of host 0.
    port: Its port.
    secret: The secret of all hosts.
    kind: `JOIN` or `DATA`.
    index: The index of this host.
    count: The number of hosts.

  Raises:
    GateError: If a proof is wrong.
    OSError: If host 0 does not answer.
    EOFError: If it closes the connection.
  """
  async with asyncio.timeout(HANDSHAKE_S):
    reader, writer = await asyncio.open_connection(
      host, port, ssl=context(is_server=False)
    )
    try:
      tls = writer.get_extra_info('ssl_object')
      own = _proof(secret, kind, index, count, tls)
      writer.write(_HELLO.pack(kind, index, count, own))
      found = await reader.readexactly(len(_REFUSED))
      expected = _proof(secret, b'S', index, count, tls)
      if not hmac.compare_digest(found, expected):
        one, other = (index, 0) if found == _REFUSED else (0, index)
        raise GateError(
          f'Host {one} did not prove that it knows the cluster secret'
          f' (--cluster_secret_file) of host {other}. Give all hosts the same'
          ' file.'
        )
    except BaseException:
      writer.close()
      raise
  return reader, writer


async def relay(first: tuple, second: tuple) -> None:
  """Carries bytes between two connections until one of them ends.

  Args:
    first: A reader and a writer.
    second: Another reader and writer; closed at the end.
  """

  async def carry(reader, writer):
    while data := await reader.read(_CHUNK):
      writer.write(data)
      await writer.drain()

  ways = [
    asyncio.ensure_future(carry(first[0], second[1])),
    asyncio.ensure_future(carry(second[0], first[1])),
  ]
  try:
    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
  finally:
    for way in ways:
      way.cancel()
    await asyncio.gather(*ways, return_exceptions=True)
    second[1].close()


def is_address(host: str) -> bool:
  """Returns whether this is an IP address, and not a name."""
  try:
    ipaddress.ip_address(host)
  except ValueError:
    return False
  return True


def bind(host: str, port: int) -> list[socket.socket]:
  """Returns sockets that listen on each address of a name that is this host's.

  Args:
    host: A name or an address.
    port: The port.

  Raises:
    OSError: If there is none.
  """
  found, error = [], OSError(errno.EADDRNOTAVAIL, 'it has no address')
  infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
  for family, kind, _, _, address in infos:
    s = socket.socket(family, kind)
    try:
      s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      if family == socket.AF_INET6:  # Not also every address of version 4.
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
      s.bind(address)
      found.append(s)
    except OSError as e:
      s.close()
      error = e
  if not found:
    raise error
  return found


def reason(error: BaseException) -> str:
  """Returns the words of an error, without a full stop."""
  words = getattr(error, 'strerror', None) or str(error) or repr(error)
  return words.rstrip('.')
