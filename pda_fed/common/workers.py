"""Addresses of remote workers and the settings of connections to them.

This module is separate from `pda_fed.runtime`, so that settings can be checked
without tensorflow_federated.
"""

from collections.abc import Iterable
import dataclasses
import os
import re
from typing import Optional
import urllib.parse

from pda_fed.common import validate

# A worker counts as lost after this many seconds without a response.
DEFAULT_TIMEOUT_S = 60.0
UNIX = 'unix:'
# Linux' limit for a Unix socket's path, without the terminating zero byte.
_MAX_SOCKET_PATH = 107
_MAX_PORT = 65535
_PEM = b'-----BEGIN '
_HOST_AND_PORT = re.compile(r'(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(\d{1,5})')


def is_socket_path(path: str) -> bool:
  """Returns whether Linux and gRPC accept a path for a Unix socket."""
  # gRPC reads addresses as URIs: # and ? would end the path.
  return (
    len(os.fsencode(path)) <= _MAX_SOCKET_PATH
    and urllib.parse.quote(path) == path
  )


def check_address(address: str, *, lowest_port: int = 1) -> None:
  """Checks that a worker's address is valid.

  Args:
    address: `HOST:PORT`, `[IPV6]:PORT` or `unix:/PATH`.
    lowest_port: The lowest allowed port. Port 0 asks for any free port.

  Raises:
    ValueError: If the address is invalid.
  """
  if address.startswith(UNIX):
    path = address.removeprefix(UNIX)
    allowed = os.path.isabs(path)
    if not is_socket_path(path):
      raise ValueError(
        f"A Unix socket's path must have at most {_MAX_SOCKET_PATH} plain"
        f' characters (letters, digits, / . _ - ~). Found {path!r}.'
      )
  else:
    match = _HOST_AND_PORT.fullmatch(address)
    allowed = bool(match) and lowest_port <= int(match[2]) <= _MAX_PORT
  if not allowed:
    raise ValueError(
      "A worker's address must be HOST:PORT, [IPV6]:PORT or unix:/PATH. Found"
      f' {address!r}.'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TlsFiles:
  """The PEM files of one side of a mutual TLS connection.

  Attributes:
    cert: This side's certificate, followed by any intermediate certificates.
    key: The certificate's private key.
    ca: Trusted CA certificates. One must have signed the peer's certificate.
  """

  cert: str
  key: str
  ca: str

  def __post_init__(self):
    for field in dataclasses.fields(self):
      path = getattr(self, field.name)
      if not path or not os.path.isfile(path):
        raise ValueError(f'tls_{field.name} must be a file. Found {path!r}.')
    self.read()

  @classmethod
  def from_flags(
    cls, cert: Optional[str], key: Optional[str], ca: Optional[str]
  ) -> Optional['TlsFiles']:
    """Returns the files, or None if no file is given.

    Args:
      cert: See the class.
      key: See the class.
      ca: See the class.

    Raises:
      ValueError: If only some of the files are given.
    """
    if not (cert or key or ca):
      return None
    return cls(cert=cert or '', key=key or '', ca=ca or '')

  def read(self) -> tuple[bytes, bytes, bytes]:
    """Returns the contents of the certificate, the key and the CA.

    Raises:
      ValueError: If a file cannot be read, or is not PEM.
    """
    contents = []
    for field in dataclasses.fields(self):
      path = getattr(self, field.name)
      try:
        with open(path, 'rb') as f:
          contents.append(f.read())
      except OSError as e:
        raise ValueError(
          f'tls_{field.name} must be readable. Found {e}.'
        ) from e
      # gRPC aborts the whole program if a certificate is empty.
      if _PEM not in contents[-1]:
        raise ValueError(
          f'tls_{field.name} must be a PEM file. Found {path!r}.'
        )
    cert, key, ca = contents
    return cert, key, ca


def check_protected(
  addresses: Iterable[str], tls: Optional[TlsFiles], insecure: bool
) -> None:
  """Checks that plain ports are used only if the user asked for them.

  File permissions protect a Unix socket, and certificates protect TLS. Anyone
  who can reach a plain port can run any program on the worker. Anyone who can
  intercept its traffic sees users' data and the seed of the noise.

  Args:
    addresses: Addresses of workers.
    tls: The TLS files, or None.
    insecure: Whether plain ports are allowed.

  Raises:
    ValueError: If a plain port is not allowed, or `insecure` is given together
      with TLS files.
  """
  if tls is not None and insecure:
    raise ValueError('insecure must not be given with TLS files. Found both.')
  plain = [a for a in addresses if not a.startswith(UNIX)]
  if plain and tls is None and not insecure:
    raise ValueError(
      f'{plain[0]} must be protected: give tls_cert, tls_key and tls_ca, use a'
      ' unix: address (with an SSH tunnel between machines), or allow plain'
      ' ports with insecure.'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteWorkers:
  """Workers on other machines, and how to reach them.

  Attributes:
    addresses: `HOST:PORT`, `[IPV6]:PORT` or `unix:/PATH` of each worker.
    tls: The TLS files of this side, for addresses with a port.
    insecure: Whether to use ports without TLS.
    timeout_s: Seconds without a response after which a worker is lost.
  """

  addresses: tuple[str, ...]
  tls: Optional[TlsFiles] = None
  insecure: bool = False
  timeout_s: float = DEFAULT_TIMEOUT_S

  def __post_init__(self):
    if not self.addresses:
      raise ValueError('workers must have at least one address. Found none.')
    for address in self.addresses:
      check_address(address)
    if len(set(self.addresses)) < len(self.addresses):
      raise ValueError(
        f'workers must be different. Found {", ".join(self.addresses)}.'
      )
    check_protected(self.addresses, self.tls, self.insecure)
    validate.positive(worker_timeout_s=self.timeout_s)
