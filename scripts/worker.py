r"""Serves one TFF worker to a coordinator on another machine.

    python -m scripts.worker --listen=0.0.0.0:8443 \
        --tls_cert=b.lan.crt --tls_key=b.lan.key --tls_ca=ca.crt
    python -m scripts.worker --listen=unix:$HOME/worker.sock

The first is for `train_stackoverflow --workers=b.lan:8443`, the second for an
SSH tunnel; see docs/distributed.md. When the worker is ready, one line says
where and of which version. It runs until Ctrl-C or SIGTERM, and ends with an
error if TFF's worker dies, so that whoever has started it can start it again.
"""

from scripts import cli  # First: it silences TensorFlow.

# isort: split
from absl import flags
from pda_fed import _signals
from pda_fed import runtime
from pda_fed import workers
from scripts import worker_flags

_LISTEN = flags.DEFINE_string(
  'listen',
  None,
  'HOST:PORT (0.0.0.0 or [::] for every interface, port 0 for any), or'
  ' unix:/PATH.',
)
_THREADS = flags.DEFINE_integer(
  'threads',
  None,
  'Threads of a TensorFlow operation; default: the cores.',
  lower_bound=1,
)
_CONCURRENT_CLIENTS = flags.DEFINE_integer(
  'concurrent_clients',
  None,
  'Clients that are simulated at a time; default: the cores.',
  lower_bound=1,
)
_LOG_DIR = flags.DEFINE_string(
  'worker_log_dir', None, "Where the worker's log is kept; default: nowhere."
)
_ISOLATION = flags.DEFINE_enum(
  'worker_isolation',
  'required',
  ['auto', 'required', 'off'],
  "Whether TFF's worker must be out of the network's reach, other than through"
  ' --listen.',
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

  with _signals.StopSignals() as stop:
    worker = runtime.LocalWorker(
      log_dir=_LOG_DIR.value,
      max_concurrent_computation_calls=_CONCURRENT_CLIENTS.value,
      threads=_THREADS.value,
      isolation=runtime.Isolation(_ISOLATION.value),
    )
    server = None
    try:
      server = runtime.WorkerServer(
        worker, _LISTEN.value, tls=tls, insecure=insecure
      )
      shown = ', '.join(f'{n} {v}' for n, v in runtime.versions().items())
      print(
        f'ready on {server.address} (worker {worker.pid}; {shown})', flush=True
      )
      while not stop.wait(_POLL_SECONDS):
        worker.check_alive()
    finally:
      if server is not None:
        server.stop()
      worker.stop()
  print('stopped')


if __name__ == '__main__':
  cli.run(main)
