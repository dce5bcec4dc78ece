"""Shares runs between hosts that run the same command in one folder."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import pathlib
import shlex
import sys
import time
from typing import Optional

import pda_fed
from pda_fed import errors
from pda_fed.analysis import claims as claims_lib
from pda_fed.analysis import jobs
from pda_fed.analysis import slots
from scripts.lib import cli

_FOLDER = '.claims'
_WRITING = 'writing'
_SEARCH = 'private_search'
# Flags that may differ between hosts.
_OWN = ('debug', 'nodebug', 'num_processes', 'output_dir')
# Seconds of waiting after which the user is told.
_LONG = 10
# Seconds after which two processes that start at once see each other.
_SETTLING_S = 0.5
# Default engines by binary. All other binaries use JAX.
_ENGINES = {'scripts.train_stackoverflow': 'tff'}


class _Membership:
  """The claims that a program has joined within `shared`."""

  stack: Optional[contextlib.ExitStack] = None
  claims: Optional[claims_lib.Claims] = None


@contextlib.contextmanager
def shared() -> Iterator[None]:
  """Lets `join` share the runs of the block; leaves at its end."""
  with contextlib.ExitStack() as stack:
    _Membership.stack = stack
    try:
      yield
    finally:
      _Membership.stack = _Membership.claims = None


def _purpose() -> str:
  """Returns the command, without flags that may differ between hosts."""
  kept, words = [], list(sys.argv[1:])
  while words:
    word = words.pop(0)
    if word == '--':
      kept += [word, *words]
      break
    name, equals, _ = word.lstrip('-').partition('=')
    if not word.startswith('-') or name not in _OWN:
      kept.append(word)
    elif not equals and 'debug' not in name:
      words = words[1:]
  name = pathlib.Path(sys.argv[0]).stem
  return f'{shlex.join([name, *kept])} (pda_fed {pda_fed.__version__})'


def _joined(
  folder: pathlib.Path, say: Callable[[str], None]
) -> contextlib.AbstractContextManager[claims_lib.Claims]:
  calls = 0

  def tell(hosts: list[str]) -> None:
    nonlocal calls
    calls += 1
    if calls == _LONG and hosts:
      say(
        f'Waiting to see whether {", ".join(hosts)} is still working in'
        f' {folder}.'
      )

  return claims_lib.joined(folder / _FOLDER, _purpose(), tell)


def join(
  folder: pathlib.Path, say: Callable[[str], None]
) -> Optional[claims_lib.Claims]:
  """Joins the hosts with this command; returns None outside `shared`.

  Args:
    folder: Folder of the runs.
    say: Prints a line.

  Raises:
    OutputError: If a host works in the folder with another command.
  """
  if _Membership.stack is not None and _Membership.claims is None:
    _Membership.claims = _Membership.stack.enter_context(_joined(folder, say))
  return _Membership.claims


def writing() -> contextlib.AbstractContextManager[None]:
  """Keeps other hosts from writing results at the same time."""
  if _Membership.claims is None:
    return contextlib.nullcontext()
  return _Membership.claims.alone(_WRITING)


@contextlib.contextmanager
def alone(folder: pathlib.Path, say: Callable[[str], None]) -> Iterator[None]:
  """Keeps other hosts out of a folder.

  Args:
    folder: Folder of the runs.
    say: Prints a line.

  Yields:
    Nothing.

  Raises:
    BusyError: If another process works in the folder.
    OutputError: If that process has another command.
  """
  with _joined(folder, say) as claims:
    is_ours = claims.take(_SEARCH)
    time.sleep(_SETTLING_S)
    if not (is_ours and claims.has(_SEARCH)):
      host = claims.host_of(_SEARCH) or 'another process'
      raise errors.BusyError(
        f'{folder} is in use by {host}. Only one process at a time can make a'
        ' private search: its number of runs is secret.'
      )
    yield


def _last(arguments: Sequence[str], name: str) -> Optional[str]:
  """Returns the last value of a flag in arguments; None without it."""
  found = None
  for i, word in enumerate(arguments):
    flag, equals, value = word.partition('=')
    if flag in (f'--{name}', f'-{name}'):
      found = value if equals else ''.join(arguments[i + 1 : i + 2])
  return found


def gpus_for(some_jobs: Sequence[jobs.Job]) -> tuple[str, ...]:
  """Returns the GPUs for jobs: none if no job uses JAX on a GPU."""

  def may_use(job: jobs.Job) -> bool:
    given = cli.expanded(job.arguments)
    engine = _last(given, 'engine') or _ENGINES.get(job.module, 'jax')
    return engine == 'jax' and _last(given, 'platform') != 'cpu'

  return slots.gpus() if any(map(may_use, some_jobs)) else ()


def refuse_distributed(arguments: Sequence[str]) -> None:
  """Raises ValueError if arguments have --distributed."""
  for word in cli.expanded(arguments):
    if word.lstrip('-').partition('=')[0] == 'distributed':
      raise ValueError(
        f'{word} must not be given here: each run is computed on one host. To'
        ' share runs between hosts, start this command on several hosts. To'
        ' distribute one run over hosts, start the training binary itself.'
      )
