"""Flags of a run on several hosts, and the exit of its processes."""

from collections.abc import Callable
import contextlib
import os
import sys
import traceback
from typing import NoReturn, Optional

from absl import flags
from pda_fed import runs as runs_lib
from pda_fed.runs import connecting
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
  ' FILE).',
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

_LOST = (
  'error: Host 0 has ended or does not answer, so the run ends here. Give the'
  ' same command on all hosts to resume it.'
)


def settings() -> Optional[connecting.HostSettings]:
  """Returns this host's settings; None without --distributed.

  Raises:
    ValueError: If a flag is out of range, or is given without --distributed.
  """
  if DISTRIBUTED.value:
    if _CLUSTER_SECRET_FILE.value is None:
      raise ValueError(
        '--cluster_secret_file must be given with --distributed: a file that'
        ' all hosts have. To create it: (umask 077; openssl rand -hex 32 >'
        ' FILE).'
      )
    return connecting.HostSettings(
      _CLUSTER_SECRET_FILE.value,
      _COORDINATOR.value,
      _NUM_HOSTS.value,
      _HOST_INDEX.value,
      _CONNECT_TIMEOUT_S.value,
    )
  places = (_CLUSTER_SECRET_FILE, _COORDINATOR, _NUM_HOSTS, _HOST_INDEX)
  names = [f'--{flag.name}' for flag in places if flag.value is not None]
  if names:
    raise ValueError(f'{", ".join(names)} must be given with --distributed.')
  return None


def compute(
  place: connecting.HostSettings,
  run: runs_lib.Run,
  open_engine: distributed.OpenEngine,
  lead: Callable[[distributed.OpenEngine], None],
) -> None:
  """Computes a run on several hosts.

  Args:
    place: This host's settings.
    run: The run.
    open_engine: Opens the engine of one host.
    lead: Trains, given a function that opens the engine of all hosts. Called on
      host 0.

  Raises:
    ValueError: If the run cannot be distributed over hosts. Other errors end
      the process.
  """
  distributed.check(run, place.num_hosts or 1)
  with contextlib.ExitStack() as stack:
    last_words = connecting.LastWords()
    if not cli.DEBUG.value:
      stack.enter_context(last_words)
    last_words.set(f'error: {connecting.no_answer(place)}', 2)
    try:
      hosts = connecting.connect(place)
    except BaseException as e:
      _say(e)
      _end(e)
    last_words.set(_LOST, 3)
    try:
      distributed.check(run, hosts.count)
      distributed.agree(hosts, run)
      if hosts.is_leader:
        lead(distributed.leading(hosts, open_engine))
        hosts.send({'do': 'end'})
      else:
        distributed.follow(hosts, run, open_engine)
        print('Host 0 has the results.', file=sys.stderr)
    except BaseException as e:
      _tell(hosts, e)
      _say(e)
      # Host 0 may end first.
      last_words.set('', _exit_code(e))
      hosts.leave()
      _end(e)
    last_words.set('', 0)
    hosts.leave()


def _tell(hosts: hosts_lib.Hosts, error: BaseException) -> None:
  """Tells the other hosts to end."""
  if isinstance(error, (hosts_lib.DisagreementError, hosts_lib.LeaderError)):
    return  # They know already.
  if hosts.is_leader:
    hosts.end(_words(error), _exit_code(error))
  else:
    hosts.fail(_words(error))


def _is_explained(error: BaseException) -> bool:
  return isinstance(error, cli.USER_ERRORS)


def _words(error: BaseException) -> str:
  if isinstance(error, KeyboardInterrupt):
    return 'interrupted'
  text = str(error) if _is_explained(error) else repr(error)
  return ' '.join(text.split())


def _exit_code(error: BaseException) -> int:
  if isinstance(error, KeyboardInterrupt):
    return 130
  if isinstance(error, SystemExit):
    return error.code if isinstance(error.code, int) else 1
  return cli.exit_code_of(error) if _is_explained(error) else 1


def _say(error: BaseException) -> None:
  """Prints an error: one line if the user can fix it, else a traceback."""
  if _exit_code(error) > 128:  # A signal.
    print(_words(error), file=sys.stderr)
  elif _is_explained(error) and not cli.DEBUG.value:
    cli.say_error(str(error))
  elif not isinstance(error, SystemExit):
    traceback.print_exception(error)
  sys.stdout.flush()
  sys.stderr.flush()


def _end(error: BaseException) -> NoReturn:
  """Exits without waiting for threads that wait for lost hosts."""
  os._exit(_exit_code(error))
