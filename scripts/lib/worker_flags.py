"""Flags that a coordinator and its workers share."""

from typing import Optional

from absl import flags
from pda_fed.common import workers

_TLS_CERT = flags.DEFINE_string(
  'tls_cert', None, "This side's certificate, PEM."
)
_TLS_KEY = flags.DEFINE_string('tls_key', None, 'Its private key, PEM.')
_TLS_CA = flags.DEFINE_string(
  'tls_ca', None, "Certificates that must have signed the other side's, PEM."
)
INSECURE = flags.DEFINE_bool(
  'insecure',
  False,
  'Use a port without encryption and authentication: whoever reaches it can run'
  " programs on the worker's machine.",
)


def tls_files() -> Optional[workers.TlsFiles]:
  """Returns the TLS files that the flags name, None if they name none."""
  return workers.TlsFiles.from_flags(
    _TLS_CERT.value, _TLS_KEY.value, _TLS_CA.value
  )
