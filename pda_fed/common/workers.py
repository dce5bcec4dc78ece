"""Where remote workers are and how they are reached, as data.

Apart from `pda_fed.runtime`, so that settings can be read and checked where
tensorflow_federated is not installed.
"""

from collections.abc import Iterable
import dataclasses
import os
import re
from typing import Optional
import urllib.parse

from pda_fed.common import validate

# Seconds without a sign of life after which a worker counts as lost.
DEFAULT_TIMEOUT_S = 60.0
UNIX = 'unix:'
# The length that Linux allows a Unix socket's path, less its final zero.
_MAX_SOCKET_PATH = 107
_MAX_PORT = 65535
_PEM = b'-----BEGIN '
_HOST_AND_PORT = re.compile(r'(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(\d{1,5})')


def is_socket_path(path: str) -> bool:
  """Whether a path is legal for a Unix socket, for Linux and for gRPC."""
  # gRPC reads addresses as URIs: # and ? would end the path.
  return (
    len(os.fsencode(path)) <= _MAX_SOCKET_PATH
    and urllib.parse.quote(path) == path
  )


def check_address(address: str, *, lowest_port: int = 1) -> None:
  """Checks that an address is one of a worker.

  Args:
    address: `HOST:PORT`, `[IPV6]:PORT` or `unix:/PATH`.
    lowest_port: 0 where a free port may be asked for.

  Raises:
    ValueError: If it is not.
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
    allowed = match and lowest_port <= int(match[2]) <= _MAX_PORT
  if not allowed:
    raise ValueError(
      "A worker's address must be HOST:PORT, [IPV6]:PORT or unix:/PATH. Found"
      f' {address!r}.'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TlsFiles:
  """What one side of mutually authenticated TLS shows, and whom it believes.

  Attributes:
    cert: Its certificate, PEM, with any intermediate ones after it.
    key: The certificate's private key, PEM.
    ca: Certificates, PEM, by one of which the other side's must be signed.
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
    """Returns the files, None if none is given.

    Args:
      cert: See the class.
      key: See the class.
      ca: See the class.

    Raises:
      ValueError: If some are given and some not.
    """
    if not (cert or key or ca):
      return None
    return cls(cert=cert or '', key=key or '', ca=ca or '')

  def read(self) -> tuple[bytes, bytes, bytes]:
    """Returns the contents of the certificate, the key and the CA.

    Raises:
      ValueError: If one cannot be read, or holds no PEM.
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
      # gRPC ends the whole program over an empty certificate.
      if _PEM not in contents[-1]:
        raise ValueError(
          f'tls_{field.name} must hold PEM. Found none in {path!r}.'
        )
    return tuple(contents)


def check_protected(
  addresses: Iterable[str], tls: Optional[TlsFiles], insecure: bool
) -> None:
  """Checks that nobody listens on, or talks to, an open port unawares.

  A Unix socket is guarded by the file system, TLS by its certificates. Who can
  reach a plain port can run any program on the worker, and who can listen in
  sees users' data and the noise's seed.

  Args:
    addresses: Of workers.
    tls: The files, or None.
    insecure: Whether plain ports are wanted.

  Raises:
    ValueError: If a plain port was not asked for, or TLS and it both were.
  """
  if tls is not None and insecure:
    raise ValueError('insecure must not be given with TLS files. Found both.')
  plain = [a for a in addresses if not a.startswith(UNIX)]
  if plain and tls is None and not insecure:
    raise ValueError(
      f'{plain[0]} must be protected: give tls_cert, tls_key and tls_ca, use a'
      ' unix: address (by an SSH tunnel from machine to machine), or say that'
      ' it is meant to be insecure.'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteWorkers:
  """Workers on other machines, and how to reach them.

  Attributes:
    addresses: `HOST:PORT`, `[IPV6]:PORT` or `unix:/PATH` of each.
    tls: Our side of TLS, for addresses with a port.
    insecure: Whether ports are used without TLS.
    timeout_s: Seconds without a sign of life after which a worker is lost.
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
