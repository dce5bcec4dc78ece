"""Hosts that have the same command and the same folder share its runs."""

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
# Flags in which hosts may differ.
_OWN = ('debug', 'nodebug', 'num_processes', 'output_dir')
# Seconds in which a host that is at work has shown it.
_LONG = 10
# Seconds after which two that came at once have seen each other.
_SETTLING_S = 0.5
# The engine of binaries that have another one than JAX by default.
_ENGINES = {'scripts.train_stackoverflow': 'tff'}


class _Membership:
  """What a program has joined, if it is in `shared`."""

  stack: Optional[contextlib.ExitStack] = None
  claims: Optional[claims_lib.Claims] = None


@contextlib.contextmanager
def shared() -> Iterator[None]:
  """Lets runs of the block be shared; it leaves what `join` has joined."""
  with contextlib.ExitStack() as stack:
    _Membership.stack = stack
    try:
      yield
    finally:
      _Membership.stack = _Membership.claims = None


def _purpose() -> str:
  """The command, without what may differ between hosts."""
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
      say(f'Waits to see whether {", ".join(hosts)} works in {folder}.')

  return claims_lib.joined(folder / _FOLDER, _purpose(), tell)


def join(
  folder: pathlib.Path, say: Callable[[str], None]
) -> Optional[claims_lib.Claims]:
  """Joins the hosts that have this command; returns None outside of `shared`.

  Args:
    folder: Where the runs go.
    say: Prints a line.

  Raises:
    OutputError: If a host there has another command.
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
    folder: Where the runs go.
    say: Prints a line.

  Yields:
    Nothing.

  Raises:
    BusyError: If another process is at work there.
    OutputError: If it has another command.
  """
  with _joined(folder, say) as claims:
    is_ours = claims.take(_SEARCH)
    time.sleep(_SETTLING_S)
    if not (is_ours and claims.has(_SEARCH)):
      host = claims.host_of(_SEARCH) or 'another process'
      raise errors.BusyError(
        f'{folder} is in use by {host}. Only one process at a time can make a'
        ' private search: how many runs it makes is secret.'
      )
    yield


def _last(arguments: Sequence[str], name: str) -> Optional[str]:
  """The value that arguments give a flag, None if they do not."""
  found = None
  for i, word in enumerate(arguments):
    flag, equals, value = word.partition('=')
    if flag in (f'--{name}', f'-{name}'):
      found = value if equals else ''.join(arguments[i + 1 : i + 2])
  return found


def gpus_for(some_jobs: Sequence[jobs.Job]) -> tuple[str, ...]:
  """Returns the GPUs for jobs: none if no job computes with JAX on one."""

  def may_use(job: jobs.Job) -> bool:
    given = cli.expanded(job.arguments)
    engine = _last(given, 'engine') or _ENGINES.get(job.module, 'jax')
    return engine == 'jax' and _last(given, 'platform') != 'cpu'

  return slots.gpus() if any(map(may_use, some_jobs)) else ()


def refuse_distributed(arguments: Sequence[str]) -> None:
  """Raises if runs were to be spread over hosts themselves."""
  for word in cli.expanded(arguments):
    if word.lstrip('-').partition('=')[0] == 'distributed':
      raise ValueError(
        f'{word} must not be given to runs side by side, each of which is on'
        ' one host. To share them, start this command on several hosts; to'
        ' spread one run over hosts, start the training binary itself.'
      )
