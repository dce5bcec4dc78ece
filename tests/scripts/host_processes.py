"""Processes that are the hosts of one run."""

import os
import socket
import subprocess
import sys

from tests.scripts import programs

_RUN = (
  *('--engine=jax', '--expected_cohort=6', '--rounds=6', '--delta=1e-3'),
  *('--noise_multiplier=0.5', '--clip_norm=0.3', '--method.alpha_K=3'),
  *('--public.users_per_round=2', '--pretraining.max_epochs=1'),
  *('--rounds_per_evaluation=2', '--rounds_per_dispatch=1'),
  '--rounds_per_checkpoint=2',
)


def secret_file(store, text):
  """The path of a file beside the data, made as users make it."""
  path = store.with_name(f'secret_{text}')
  if not path.exists():
    path.touch(mode=0o600)
    path.write_text(f'{text * 32}\n')
  return path


def address():
  """An address that nobody uses."""
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    return f'127.0.0.1:{s.getsockname()[1]}'


def start(store, folder, num_devices, *arguments, seed=0, **environment):
  """Starts a process; `environment` has its fate, see `mortal_train`."""
  flags = f'--xla_force_host_platform_device_count={num_devices}'
  return subprocess.Popen(
    [
      *(sys.executable, '-m', 'tests.scripts.mortal_train', *_RUN),
      *(f'--data_dir={store}', f'--output_dir={folder}'),
      *(() if seed is None else (f'--seed={seed}',)),
      *arguments,
    ],
    cwd=programs.ROOT,
    env=os.environ
    | environment
    | {
      'XLA_FLAGS': f'{os.environ.get("XLA_FLAGS", "")} {flags}',
      'JAX_PLATFORMS': 'cpu',
      # Most of such a run is compilation.
      'JAX_COMPILATION_CACHE_DIR': str(store.with_name('cache')),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    },
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def start_host(store, folder, host, devices, place, *arguments, **options):
  """Starts one host of a run whose hosts have these numbers of devices."""
  return start(
    store,
    folder if host == 0 else folder.with_name('followers_write_nothing'),
    devices[host],
    *('--distributed', f'--coordinator={place}', f'--host_index={host}'),
    *(f'--num_hosts={len(devices)}', '--connect_timeout_s=120'),
    f'--cluster_secret_file={secret_file(store, "s")}',
    *arguments,
    **options,
  )


def start_hosts(store, folder, devices, *arguments, own=None, **options):
  """Starts all hosts; `own` has more flags or variables of single ones."""
  place, processes = address(), []
  for host in range(len(devices)):
    more = (own or {}).get(host, ())
    fate = more if isinstance(more, dict) else {}
    flags = (*arguments, *(() if fate else more))
    processes.append(
      start_host(store, folder, host, devices, place, *flags, **options, **fate)
    )
  return processes


def ended(*processes, seconds=240):
  """The exit codes and outputs of processes."""
  found = []
  for process in processes:
    out, err = process.communicate(timeout=seconds)
    found.append((process.returncode, out, err))
  return found
