"""Flags of a run on several hosts, and the exit of its processes."""

from collections.abc import Callable
import contextlib
import ctypes
import os
import signal
import sys
from typing import Any

from absl import flags
from pda_fed import runs as runs_lib
from pda_fed.runs import hosts as hosts_lib
from pda_fed.runs.engines import distributed
from scripts.lib import cli

DISTRIBUTED = flags.DEFINE_bool(
  'distributed',
  False,
  'Compute one run on several hosts. Start the same command on each, with'
  ' --cluster_secret_file, --coordinator, --num_hosts and --host_index. On'
  ' SLURM and other clusters that JAX supports, the last three are set'
  ' automatically.',
)
_CLUSTER_SECRET_FILE = flags.DEFINE_string(
  'cluster_secret_file',
  None,
  'File of a secret that all hosts have, of at least 32 bytes. Only its owner'
  ' may have access to it. To create it: (umask 077; openssl rand -hex 32 >'
  ' FILE). Whoever has it can remove the noise of a run without --seed.',
)
_COORDINATOR = flags.DEFINE_string(
  'coordinator',
  None,
  'HOST:PORT on which host 0 listens. HOST is the name or the address of host 0'
  ' in the network of the hosts.',
)
_NUM_HOSTS = flags.DEFINE_integer(
  'num_hosts', None, 'Number of hosts.', lower_bound=1
)
_HOST_INDEX = flags.DEFINE_integer(
  'host_index', None, 'Index of this host, starting at 0.', lower_bound=0
)
_CONNECT_TIMEOUT_S = flags.DEFINE_integer(
  'connect_timeout_s',
  45,
  'Seconds to wait for all hosts to connect.',
  lower_bound=1,
)

_NO_ANSWER = (
  'error: All hosts must connect to --coordinator, an address of host 0, within'
  ' --connect_timeout_s. At least one did not, or cannot be reached.'
)
_LOST = (
  'error: A host has ended or does not answer, so the run ends here. Give the'
  ' same command on all hosts to resume it.'
)


def check() -> None:
  """Raises ValueError if a flag is missing, or given without --distributed."""
  if DISTRIBUTED.value:
    if _CLUSTER_SECRET_FILE.value is None:
      raise ValueError(
        '--cluster_secret_file must be given with --distributed: a file that'
        ' all hosts have. To create it: (umask 077; openssl rand -hex 32 >'
        ' FILE).'
      )
    return
  places = (_CLUSTER_SECRET_FILE, _COORDINATOR, _NUM_HOSTS, _HOST_INDEX)
  names = [f'--{flag.name}' for flag in places if flag.value is not None]
  if names:
    raise ValueError(f'{", ".join(names)} must be given with --distributed.')


def _last_words() -> Callable[[str, int], None]:
  """Returns a function that sets the words and exit code of an abort.

  JAX aborts a process, with a stack trace, if it cannot connect, or when it
  knows that another host is lost. What native code prints is hidden, unless
  with --debug.
  """
  words, kept = [b'', 1], [os.dup(1), os.dup(2)]

  def end(signum) -> None:
    del signum
    os.write(kept[1], words[0])
    os._exit(words[1])

  # Python's handlers run later, in the main thread: too late for an abort.
  handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(end)

  def say(line: str, exit_code: int) -> None:
    words[:] = f'{line}\n'.encode() if line else b'', exit_code
    ctypes.CDLL(None).signal(signal.SIGABRT, handler)

  if not cli.DEBUG.value:
    sys.stdout, sys.stderr = (open(fd, 'w', buffering=1) for fd in kept)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
  return say


def compute(
  run: runs_lib.Run,
  open_engine: distributed.OpenEngine,
  lead: Callable[..., Any],
) -> None:
  """Computes a run on several hosts; ends the process on all but host 0.

  Args:
    run: The run.
    open_engine: Opens the engine of one host.
    lead: Trains on host 0, given a function that opens the engine of all hosts
      and one that makes the seeds of a new run.
  """
  import jax

  distributed.check(run, _NUM_HOSTS.value or 1)
  secret = hosts_lib.read_secret(_CLUSTER_SECRET_FILE.value)
  hosts = None
  last_words = _last_words()
  last_words(_NO_ANSWER, 2)
  try:
    hosts = hosts_lib.connect(
      secret,
      _COORDINATOR.value,
      _NUM_HOSTS.value,
      _HOST_INDEX.value,
      _CONNECT_TIMEOUT_S.value,
    )
    last_words(_LOST, 3)
    distributed.check(run, hosts.count)
    distributed.agree(hosts, run)
    if hosts.index:
      line, code = distributed.follow(hosts, run, open_engine)
      print(line, file=sys.stderr)
    else:
      lead(distributed.leading(hosts, open_engine), hosts.seeds)
      line, code = 'Host 0 has the results.', 0
  except BaseException as e:
    code = cli.explain(e)
    line = ' '.join(str(e).split()) or 'interrupted'
    line = line if code > 128 else f'error: {line}'
    if not isinstance(e, ValueError) and (hosts is None or hosts.index):
      # The others do not know yet, and `shutdown` would wait for them.
      os._exit(code)
  last_words('', code)
  with contextlib.suppress(RuntimeError):  # If a host is lost.
    if hosts is not None and not hosts.index:
      hosts.lead(line=line, exit_code=code)
    jax.distributed.shutdown()
  if code or hosts.index:
    sys.exit(code)
