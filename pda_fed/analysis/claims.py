"""Shares jobs between processes, on one host or several, through a folder.

The folder may be on a shared file system such as NFS. Besides the files of
`members`, it holds

    KEY.0          the member that runs a job; KEY.1 took it over, and so on
    KEY.0.free     this member has released the job
    KEY.done       how the job ended

A claim is a file that only one process can create. Claims are not removed while
members are active: if two members take over the same job, both try to create
the same file, and one of them fails.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import hashlib
import json
import os
import threading
import time
from typing import Optional

from pda_fed import errors
from pda_fed.analysis import members as members_lib
from pda_fed.common import files

_BEAT_SECONDS = 5
_WAIT_SECONDS = 1


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a job ended.

  Attributes:
    exit_code: The exit code of its process.
    last_lines: The end of its log, if it failed.
    names: The files in its folder. Other hosts may see them with a delay.
  """

  exit_code: int
  last_lines: str = ''
  names: tuple[str, ...] = ()


class Claims:
  """The claims of one member. Programs get them from `joined`."""

  def __init__(self, members: members_lib.Members):
    """Initializes a member without claims."""
    self._members = members
    self._held: dict[str, str] = {}
    # Jobs that other members had when the folder was last listed.
    self._closed: set[str] = set()
    self._hosts: dict[str, Optional[str]] = {}

  def _look(self) -> None:
    if self._members.look():
      self._closed.clear()
      self._hosts.clear()

  def key(self, folder: os.PathLike | str) -> str:
    """Returns a short key for the job that writes a folder."""
    # A relative path, because other hosts may mount the folder elsewhere.
    text = os.path.relpath(folder, self._members.path('..'))
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  def take(self, key: str) -> bool:
    """Claims a job if it is free or its member is dead.

    Args:
      key: The job's key, as returned by `key`, or another short name.

    Returns:
      Whether this member has the job.
    """
    self._look()
    if key in self._closed:
      return False
    if self.has(key) or self._create(key):
      return True
    self._closed.add(key)
    return False

  def _create(self, key: str) -> bool:
    newest = self._newest(key)
    before, holder = f'{key}.{newest}', None
    if newest >= 0:
      holder = self._members.read(before)
      if not self._is_open(before):
        return False
    name = f'{key}.{newest + 1}'
    if self.outcome(key) is not None or not self._members.create(name):
      return False
    is_done = self._members.read(f'{key}.done') is not None
    # The folder may have been removed and created again since it was listed.
    if is_done or (newest >= 0 and self._members.read(before) != holder):
      self._members.path(name).unlink(missing_ok=True)
      return False
    self._held[key] = name
    return True

  def has(self, key: str) -> bool:
    """Returns whether this member has a job that nobody has taken over."""
    name = self._held.get(key)
    if name is None:
      return False
    if self._members.read(name) is None:
      # The folder was removed, and other members may have joined since.
      self._members.look(now=True)
      if self._newest(key) < 0 and self._members.create(name):
        return True
    own = int(name.rpartition('.')[2])
    after = f'{key}.{own + 1}'
    if (
      self._members.read(name) == self._members.id
      and self._members.read(after) is None
      and self._newest(key) <= own
    ):
      return True
    del self._held[key]
    return False

  def release(self, key: str) -> None:
    """Releases an unfinished job; another member can take it at once."""
    name = self._held.pop(key, None)
    if name is not None:
      self._members.create(f'{name}.free')

  def finish(self, key: str, outcome: Outcome) -> None:
    """Tells all members how a job of this member ended."""
    self._held.pop(key, None)
    with contextlib.suppress(FileNotFoundError):
      files.write_json(
        self._members.path(f'{key}.done'), dataclasses.asdict(outcome)
      )

  def outcome(self, key: str) -> Optional[Outcome]:
    """Returns how a job ended, or None if it has not ended."""
    self._look()
    name = f'{key}.done'
    text = self._members.read(name) if name in self._members.names else None
    if text is None:
      return None
    found = json.loads(text)
    return Outcome(**{**found, 'names': tuple(found['names'])})

  def host_of(self, key: str) -> Optional[str]:
    """Returns the host that runs a job; None if no living member does."""
    self._look()
    if key not in self._hosts:
      self._hosts[key] = self._find_host(f'{key}.{self._newest(key)}')
    return self._hosts[key]

  def _find_host(self, name: str) -> Optional[str]:
    if name not in self._members.names or self._is_open(name):
      return None
    about = self._members.about(self._members.read(name) or name)
    return None if about is None else about['host']

  @contextlib.contextmanager
  def alone(self, key: str) -> Iterator[None]:
    """Lets only one member at a time enter a block; others wait."""
    while not self.take(key):
      time.sleep(_WAIT_SECONDS)
    try:
      yield
    finally:
      self.release(key)

  def release_all(self) -> None:
    """Releases all jobs."""
    for key in list(self._held):
      self.release(key)

  def _newest(self, key: str) -> int:
    """Returns the generation of the newest claim on a job, or -1."""
    parts = [name.split('.') for name in self._members.names]
    of_key = [p[1] for p in parts if p[0] == key and len(p) == 2]
    return max((int(g) for g in of_key if g.isdigit()), default=-1)

  def _is_open(self, name: str) -> bool:
    """Returns whether a claim may be taken over."""
    if f'{name}.free' in self._members.names:
      return True
    # A member killed before it wrote its id leaves an empty file. The file's
    # name then stands for a member that is silent.
    return self._members.is_dead(self._members.read(name) or name)


def _beat_until(members: members_lib.Members, stop: threading.Event) -> None:
  while not stop.wait(_BEAT_SECONDS):
    # If the disk is full, other members see this one as silent.
    with contextlib.suppress(OSError, errors.OutputError):
      members.beat()


@contextlib.contextmanager
def joined(
  folder: os.PathLike | str,
  purpose: str,
  while_waiting: Callable[[list[str]], None] = lambda hosts: None,
) -> Iterator[Claims]:
  """Makes this process a member within a block.

  Args:
    folder: The folder; created if missing, and removed by the last member.
    purpose: A description of the work; the same for all members.
    while_waiting: Called with the hosts of members that may be alive or dead,
      while this process waits to find out.

  Yields:
    The claims.

  Raises:
    OutputError: If living members have a different purpose.
  """
  members = members_lib.Members(folder, purpose)
  while not members.try_join():
    found = [members.about(who) for who in members.others()]
    while_waiting(sorted({about['host'] for about in found if about}))
    time.sleep(_WAIT_SECONDS)
  claims, stop = Claims(members), threading.Event()
  thread = threading.Thread(
    target=_beat_until, args=(members, stop), daemon=True
  )
  thread.start()
  try:
    yield claims
  finally:
    stop.set()
    thread.join()
    claims.release_all()
    members.leave()
