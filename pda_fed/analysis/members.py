"""Processes, on one host or several, that cooperate through a folder.

Each member has a file ID.alive with its host, its process and a count that it
increases regularly. A member counts as dead if its count has not changed for
some time. Each observer measures that time with its own clock, so clocks of
different hosts are never compared. The last member removes the folder.
"""

from collections.abc import Callable
import contextlib
import json
import os
import pathlib
import secrets
import shutil
import socket
import time
from typing import Any, Optional

from pda_fed import errors

# NFS may show a file's content with a delay of a minute.
_SILENT_SECONDS = 90
_LOOK_SECONDS = 2
_ALIVE = '.alive'
_TRIES = 5


def _machine() -> str:
  """Returns an id shared by processes that see each other's process ids."""
  parts = [socket.gethostname()]
  with contextlib.suppress(OSError):  # These files exist only on Linux.
    boot = pathlib.Path('/proc/sys/kernel/random/boot_id')
    parts += [boot.read_text().strip(), os.readlink('/proc/self/ns/pid')]
  return ' '.join(parts)


def _has_process(pid: int) -> bool:
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  except PermissionError:
    pass
  return True


class Members:
  """One member's view of the folder.

  Attributes:
    id: This member's id.
    names: The names of the folder's files when it was last listed.
  """

  def __init__(
    self,
    folder: os.PathLike | str,
    purpose: str = '',
    *,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Initializes the view; writes nothing.

    Args:
      folder: The folder; created when this member joins.
      purpose: A description of the work; the same for all members.
      clock: Returns the time in seconds; replaced in tests.
    """
    self._folder = pathlib.Path(folder)
    self._about = {
      'host': socket.gethostname(),
      'machine': _machine(),
      'pid': os.getpid(),
      'purpose': purpose,
    }
    self._clock = clock
    self._count = 0
    # By member: the first content seen, the last one, and since when.
    self._seen: dict[str, tuple[Any, Any, float]] = {}
    self._looked = float('-inf')
    self.id = secrets.token_hex(8)
    self.names: frozenset[str] = frozenset()

  def try_join(self) -> bool:
    """Joins, once it is known whether existing members are alive.

    Returns:
      Whether this member joined; if not, try again.

    Raises:
      OutputError: If living members have a different purpose.
    """
    self.look(now=True)
    others = self.others()
    moving = [who for who in others if self._has_moved(who)]
    if others and not moving and not all(map(self.is_dead, others)):
      return False
    for who in moving:
      about = self.about(who)
      if about is not None and about['purpose'] != self._about['purpose']:
        raise errors.OutputError(
          f'{about["host"]} runs another command in {self._folder.parent}:'
          f' {about["purpose"]}. Use the same flags on all hosts, or another'
          ' --output_dir.'
        )
    if others and not moving:  # They were killed.
      self._remove_all()
    self.beat()
    return True

  def beat(self) -> None:
    """Shows that this member is alive. Call this every few seconds."""
    self._count += 1
    text = json.dumps({**self._about, 'count': self._count})
    temporary = self._folder / f'.{self.id}'
    for _ in range(_TRIES):
      # Another member may remove the folder if it believes it is the last.
      with contextlib.suppress(FileNotFoundError):
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text)
        # Renaming also makes NFS refresh the folder.
        os.replace(temporary, self._folder / f'{self.id}{_ALIVE}')
        return
    raise errors.OutputError(
      f'{self._folder} cannot be written: something keeps removing it.'
    )

  def leave(self) -> None:
    """Ends the membership; the last member removes the folder."""
    (self._folder / f'{self.id}{_ALIVE}').unlink(missing_ok=True)
    self.look(now=True)
    if all(map(self.is_dead, self.others())):
      self._remove_all()

  def look(self, now: bool = False) -> bool:
    """Lists the folder and observes the other members.

    Args:
      now: Whether to list the folder even if it was listed recently.

    Returns:
      Whether the folder was listed.
    """
    if not now and self._clock() - self._looked < _LOOK_SECONDS:
      return False
    try:
      self.names = frozenset(os.listdir(self._folder))
    except FileNotFoundError:
      self.names = frozenset()
    self._looked = self._clock()
    for who in self.others():
      self._observe(who)
    return True

  def others(self) -> list[str]:
    """Returns the ids of the other members."""
    names = sorted(name for name in self.names if name.endswith(_ALIVE))
    found = [name.removesuffix(_ALIVE) for name in names]
    return [who for who in found if who != self.id]

  def about(self, who: str) -> Optional[dict[str, Any]]:
    """Returns the content of a member's file, or None if there is none."""
    text = self.read(f'{who}{_ALIVE}')
    return json.loads(text) if text else None

  def is_dead(self, who: str) -> bool:
    """Returns whether a member was silent too long, or its process ended."""
    _, last, since = self._observe(who)
    if last:
      about = json.loads(last)
      is_here = about['machine'] == self._about['machine']
      if is_here and not _has_process(about['pid']):
        return True
    return self._clock() - since > _SILENT_SECONDS

  def _observe(self, who: str) -> tuple[Any, Any, float]:
    now = self.read(f'{who}{_ALIVE}')
    first, last, since = self._seen.get(who, (now, now, self._clock()))
    if now != last:
      last, since = now, self._clock()
    self._seen[who] = first, last, since
    return first, last, since

  def _has_moved(self, who: str) -> bool:
    first, last, _ = self._observe(who)
    return first != last and not self.is_dead(who)

  def read(self, name: str) -> Optional[str]:
    """Returns the content of a file in the folder, or None if missing."""
    try:
      return (self._folder / name).read_text()
    except FileNotFoundError:
      return None

  def create(self, name: str) -> bool:
    """Creates a file with this member's id; returns False if it exists."""
    for _ in range(_TRIES):
      try:
        with open(self._folder / name, 'x') as f:
          f.write(self.id)
      except FileExistsError:
        return False
      except FileNotFoundError:
        self.beat()  # Creates the folder again.
      else:
        self.names |= {name}
        return True
    return False

  def path(self, name: str) -> pathlib.Path:
    """Returns the path of a file in the folder."""
    return self._folder / name

  def _remove_all(self) -> None:
    away = self._folder.with_name(f'{self._folder.name}-{self.id}')
    with contextlib.suppress(FileNotFoundError):
      os.rename(self._folder, away)
      shutil.rmtree(away, ignore_errors=True)
