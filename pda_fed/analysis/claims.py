"""Shares jobs between processes, of one host or several, through a folder.

The folder may lie on a shared file system such as NFS. Beside the files of
`members` it holds

    KEY.0          the member that does a job; KEY.1 took it over, and so on
    KEY.0.free     says that this member has let go of the job
    KEY.done       how the job ended

A claim is a file that only one process can create. Claims are not removed while
members are at work: two that take over the same one try to create the same
file, and one of them fails.
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
    names: The files in its folder, which another host may see later.
  """

  exit_code: int
  last_lines: str = ''
  names: tuple[str, ...] = ()


class Claims:
  """The claims of one member. `joined` is how programs get them."""

  def __init__(self, members: members_lib.Members):
    """Initializes the claims of a member, none as yet."""
    self._members = members
    self._held: dict[str, str] = {}
    # What was in other hands at the last look.
    self._closed: set[str] = set()
    self._hosts: dict[str, Optional[str]] = {}

  def _look(self) -> None:
    if self._members.look():
      self._closed.clear()
      self._hosts.clear()

  def key(self, folder: os.PathLike) -> str:
    """Returns a short name for the job that writes a folder."""
    # Other hosts may have mounted it elsewhere.
    text = os.path.relpath(folder, self._members.path('..'))
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  def take(self, key: str) -> bool:
    """Claims a job, if it is free or its member is dead.

    Args:
      key: As `key` returns it, or another short name.

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
    # All may have been removed and made anew since the look.
    if is_done or (newest >= 0 and self._members.read(before) != holder):
      self._members.path(name).unlink(missing_ok=True)
      return False
    self._held[key] = name
    return True

  def has(self, key: str) -> bool:
    """Whether this member has a job, and nobody has taken it over."""
    name = self._held.get(key)
    if name is None:
      return False
    if self._members.read(name) is None:
      # The folder was removed, and perhaps others have come since.
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
    """Lets go of a job that is not done; another member can have it at once."""
    name = self._held.pop(key, None)
    if name is not None:
      self._members.create(f'{name}.free')

  def finish(self, key: str, outcome: Outcome) -> None:
    """Tells all members how a job of this one ended."""
    self._held.pop(key, None)
    with contextlib.suppress(FileNotFoundError):
      files.write_json(
        self._members.path(f'{key}.done'), dataclasses.asdict(outcome)
      )

  def outcome(self, key: str) -> Optional[Outcome]:
    """Returns how a job ended; None before."""
    self._look()
    name = f'{key}.done'
    text = self._members.read(name) if name in self._members.names else None
    if text is None:
      return None
    found = json.loads(text)
    return Outcome(**{**found, 'names': tuple(found['names'])})

  def host_of(self, key: str) -> Optional[str]:
    """Returns the host that does a job; None if no living one does."""
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
    """Keeps other members out of a block; waits for one that is in it."""
    while not self.take(key):
      time.sleep(_WAIT_SECONDS)
    try:
      yield
    finally:
      self.release(key)

  def release_all(self) -> None:
    """Lets go of all jobs."""
    for key in list(self._held):
      self.release(key)

  def _newest(self, key: str) -> int:
    """The generation of the newest claim on a job; -1 without any."""
    parts = [name.split('.') for name in self._members.names]
    of_key = [p[1] for p in parts if p[0] == key and len(p) == 2]
    return max((int(g) for g in of_key if g.isdigit()), default=-1)

  def _is_open(self, name: str) -> bool:
    """Whether a claim may be taken over."""
    if f'{name}.free' in self._members.names:
      return True
    # A member that was killed before it wrote its id is a silent name, too.
    return self._members.is_dead(self._members.read(name) or name)


def _beat_until(members: members_lib.Members, stop: threading.Event) -> None:
  while not stop.wait(_BEAT_SECONDS):
    # To others, a disk that is full is the same as silence.
    with contextlib.suppress(OSError, errors.OutputError):
      members.beat()


@contextlib.contextmanager
def joined(
  folder: os.PathLike,
  purpose: str,
  while_waiting: Callable[[list[str]], None] = lambda hosts: None,
) -> Iterator[Claims]:
  """Makes this process a member for a block.

  Args:
    folder: Made if need be, and removed by the last member.
    purpose: All members must have the same.
    while_waiting: Called with the hosts of which it is not known yet whether
      they are at work.

  Yields:
    The claims.

  Raises:
    OutputError: If members have another purpose.
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
