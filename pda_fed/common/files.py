"""Atomic writes, JSON files and file locks."""

from collections.abc import Callable, Iterator
import contextlib
import fcntl
import json
import os
import pathlib
import socket
import time
from typing import Any, NoReturn, Optional
import zlib

from pda_fed import errors

_TEMPORARY = '.tmp-'
_POLL_SECONDS = 0.2


def write_atomically(
  path: os.PathLike | str, content: bytes, *, mode: int = 0o666
) -> None:
  """Writes a file atomically: neither readers nor crashes see half of it.

  Args:
    path: The file; replaced if it exists.
    content: The file's whole content.
    mode: Permissions of a new file, before the umask.

  Raises:
    OSError: If the write fails, for example because the disk is full. `path`
      is then unchanged.
  """
  path = pathlib.Path(path)
  # Containers on several hosts have the same process ids.
  host = zlib.crc32(socket.gethostname().encode())
  temporary = path.with_name(f'.{path.name}{_TEMPORARY}{os.getpid()}{host:010}')
  try:
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, 'wb') as f:
      f.write(content)
      f.flush()
      # Otherwise a machine crash could leave an empty file of the new name.
      os.fsync(f.fileno())
    os.replace(temporary, path)
  except OSError as e:
    with contextlib.suppress(OSError):
      temporary.unlink(missing_ok=True)
    # Errors of `write` do not name the file.
    raise type(e)(e.errno, e.strerror, str(path)) from e
  _sync_folder(path.parent)


def write_json(
  path: os.PathLike | str, value: Any, *, mode: int = 0o666
) -> None:
  """Writes indented JSON, with infinity and NaN as null."""
  text = json.dumps(finite(value), indent=2, ensure_ascii=False)
  write_atomically(path, f'{text}\n'.encode(), mode=mode)


def finite(value: Any) -> Any:
  """Returns JSON values with null for infinity and NaN."""
  if isinstance(value, dict):
    return {k: finite(v) for k, v in value.items()}
  if isinstance(value, (list, tuple)):
    return [finite(v) for v in value]
  if isinstance(value, float) and value - value != 0:  # NaN or infinite.
    return None
  return value


def read_json(path: os.PathLike | str) -> Any:
  """Reads a file that `write_json` wrote.

  Args:
    path: The file.

  Raises:
    OutputError: If the file does not exist or is not valid JSON.
  """
  try:
    text = pathlib.Path(path).read_text(encoding='utf-8')
    return json.loads(text, parse_constant=_refuse_constant)
  except (OSError, RecursionError, ValueError) as e:
    raise errors.OutputError(f'{path} cannot be read: {e}.') from e


def _refuse_constant(name: str) -> NoReturn:
  raise ValueError(f'{name} is not valid JSON')


def remove(path: os.PathLike | str) -> None:
  """Removes a file if it exists, durably: no crash brings it back."""
  path = pathlib.Path(path)
  if path.exists():
    path.unlink()
    _sync_folder(path.parent)


def _sync_folder(folder: pathlib.Path) -> None:
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def remove_temporaries(folder: pathlib.Path) -> None:
  """Removes temporary files that killed writers left in a folder."""
  for path in folder.glob(f'.*{_TEMPORARY}*'):
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(
  path: os.PathLike | str, *, while_waiting: Optional[Callable[[], None]] = None
) -> Iterator[None]:
  """Holds a file lock within the block; it also ends with the process.

  Args:
    path: The lock file; created if missing.
    while_waiting: Called repeatedly while another process holds the lock. It
      may raise to stop waiting. None does not wait.

  Yields:
    Nothing.

  Raises:
    BlockingIOError: If another process holds the lock and `while_waiting` is
      None.
  """
  with open(path, 'a') as f:
    while True:
      try:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
      except BlockingIOError:
        if while_waiting is None:
          raise
        while_waiting()
        time.sleep(_POLL_SECONDS)
    yield
