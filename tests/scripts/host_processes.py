"""Processes that are the hosts of one run."""

import os
import socket
import subprocess
import sys

from tests.scripts import programs


def secret_file(store, text='s' * 32):
  """The path of a file beside the data, made as users make it."""
  path = store.with_name(f'secret_{text[0]}')
  if not path.exists():
    path.touch(mode=0o600)
    path.write_text(f'{text}\n')
  return path


def port():
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    return s.getsockname()[1]


_RUN = (
  *('--engine=jax', '--expected_cohort=6', '--rounds=6', '--delta=1e-3'),
  *('--noise_multiplier=0.5', '--clip_norm=0.3', '--method.alpha_K=3'),
  *('--public.users_per_round=2', '--pretraining.max_epochs=1'),
  *('--rounds_per_evaluation=2', '--rounds_per_dispatch=1'),
  '--rounds_per_checkpoint=2',
)


def start(
  store, folder, num_devices, *arguments, within=(), seed=0, **environment
):
  """Starts a process; `within` is a command that starts it somewhere else."""
  own = () if seed is None else (f'--seed={seed}',)
  flags = os.environ.get('XLA_FLAGS', '')
  flags += f' --xla_force_host_platform_device_count={num_devices}'
  return subprocess.Popen(
    [
      *(*within, sys.executable, '-m', 'tests.scripts.mortal_train'),
      *(f'--data_dir={store}', f'--output_dir={folder}', *_RUN, *own),
      *arguments,
    ],
    cwd=programs.ROOT,
    env=os.environ
    | environment
    | {
      'XLA_FLAGS': flags,
      'JAX_PLATFORMS': 'cpu',
      # Most of such a run is compilation.
      'JAX_COMPILATION_CACHE_DIR': str(store.with_name('cache')),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    },
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def place(store, coordinator, num_hosts, host, secret='s' * 32):
  """The flags of one host."""
  return [
    *('--distributed', f'--coordinator={coordinator}'),
    f'--cluster_secret_file={secret_file(store, secret)}',
    *('--connect_timeout_s=120', f'--num_hosts={num_hosts}'),
    f'--host_index={host}',
  ]


def start_hosts(
  store, folder, devices, *arguments, own=None, fates=None, seed=0
):
  """Starts a process for each number of devices.

  Args:
    store: The data.
    folder: The folder of the run.
    devices: Number of devices of each host.
    *arguments: Flags of all hosts.
    own: Flags of single hosts.
    fates: Variables of the environment of single hosts; see `mortal_train`.
    seed: The seed of the run; None for a secret one.
  """
  coordinator = f'127.0.0.1:{port()}'
  return [
    start(
      store,
      folder if host == 0 else folder.with_name('followers_write_nothing'),
      number,
      *place(store, coordinator, len(devices), host),
      *(*arguments, *(own or {}).get(host, ())),
      seed=seed,
      **(fates or {}).get(host, {}),
    )
    for host, number in enumerate(devices)
  ]


def ended(processes, seconds=240):
  found = []
  for process in processes:
    out, err = process.communicate(timeout=seconds)
    found.append((process.returncode, out, err))
  return found
