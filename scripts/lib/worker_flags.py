"""Flags of connections between a coordinator and its workers."""

from typing import Optional

from absl import flags
from pda_fed.common import workers

_TLS_CERT = flags.DEFINE_string(
  'tls_cert', None, "PEM file with this side's certificate."
)
_TLS_KEY = flags.DEFINE_string(
  'tls_key', None, 'PEM file with the private key of --tls_cert.'
)
_TLS_CA = flags.DEFINE_string(
  'tls_ca', None, "PEM file with the certificates that sign the other side's."
)
INSECURE = flags.DEFINE_bool(
  'insecure',
  False,
  'Allow a port without encryption or authentication. Anyone who can reach it'
  " can run programs on the worker's machine.",
)


def tls_files() -> Optional[workers.TlsFiles]:
  """Returns the TLS files of the flags; None without them."""
  return workers.TlsFiles.from_flags(
    _TLS_CERT.value, _TLS_KEY.value, _TLS_CA.value
  )
