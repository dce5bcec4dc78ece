r"""Serves this machine as a TFF worker of a coordinator elsewhere.

    python -m scripts.worker --listen=0.0.0.0:8443 \
        --tls_cert=b.lan.crt --tls_key=b.lan.key --tls_ca=ca.crt
    python -m scripts.worker --listen=unix:$HOME/worker.sock

The first command is for `train_stackoverflow --workers=b.lan:8443`, the second
for an SSH tunnel; see docs/distributed.md. When the worker is ready, it prints
its address and versions. It runs until Ctrl-C or SIGTERM.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
import os

from absl import flags
from pda_fed import errors
from pda_fed.common import signals
from pda_fed.common import workers
from scripts.lib import worker_flags

_LISTEN = flags.DEFINE_string(
  'listen',
  None,
  'Address to listen on: HOST:PORT (0.0.0.0 or [::] for every interface, port'
  ' 0 for any free port), or unix:/PATH.',
)
_THREADS = flags.DEFINE_integer(
  'threads',
  None,
  'Number of threads of a TensorFlow operation. Default: the number of cores.',
  lower_bound=1,
)
_MAX_CONCURRENT_CLIENTS = flags.DEFINE_integer(
  'max_concurrent_clients',
  None,
  'Number of clients to simulate at a time. Default: the number of cores.',
  lower_bound=1,
)
flags.adopt_module_key_flags(worker_flags)
_POLL_SECONDS = 0.5


def main() -> None:
  """Serves with the flags' settings."""
  if not _LISTEN.value:
    raise ValueError('--listen must be given.')
  tls = worker_flags.tls_files()
  insecure = worker_flags.INSECURE.value
  workers.check_address(_LISTEN.value, lowest_port=0)
  workers.check_protected([_LISTEN.value], tls, insecure)

  # After the checks: importing TensorFlow takes seconds.
  try:
    from pda_fed import runtime
    import tensorflow as tf
  except ModuleNotFoundError as e:
    raise errors.PdaFedError(
      f'A worker needs {e.name}, which is not installed.'
    ) from e

  if _THREADS.value is not None:
    tf.config.threading.set_intra_op_parallelism_threads(_THREADS.value)
    tf.config.threading.set_inter_op_parallelism_threads(_THREADS.value)
  with signals.StopSignals() as stop:
    server = runtime.WorkerServer(
      _LISTEN.value,
      tls=tls,
      insecure=insecure,
      max_concurrent_clients=_MAX_CONCURRENT_CLIENTS.value,
    )
    try:
      shown = ', '.join(f'{n} {v}' for n, v in runtime.versions().items())
      print(
        f'ready on {server.address} (process {os.getpid()}; {shown})',
        flush=True,
      )
      while not stop.wait(_POLL_SECONDS):
        pass
    finally:
      server.stop()
  print('stopped')


if __name__ == '__main__':
  cli.run(main)
