"""A folder that appears when it is complete, or not at all."""

from collections.abc import Iterator
import contextlib
import fcntl
import glob
import os
import pathlib
import shutil
import tempfile

from data_prep import errors

_LOCK = '.lock'


def _lock(path: pathlib.Path, mode: str):
  """Returns a locked file, or None if another process holds the lock."""
  f = open(path, mode)
  try:
    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    f.close()
    return None
  return f


def _remove_leftovers(target: pathlib.Path) -> None:
  """Removes what killed runs have left; a living run holds its lock."""
  name = glob.escape(target.name)  # 'run[1]' is no pattern.
  for folder in target.parent.glob(f'.{name}.partial-*'):
    try:
      lock = _lock(folder / _LOCK, 'r')
    except FileNotFoundError:
      continue  # Its owner has just made or just removed it.
    if lock is not None:
      with lock:
        shutil.rmtree(folder, ignore_errors=True)


def check_target(
  target: os.PathLike | str, *, overwrite: bool, marker: str
) -> None:
  """Raises unless a folder may be written.

  Args:
    target: The folder.
    overwrite: Whether one that is there may be replaced.
    marker: A file that every folder of the kind has. A folder with anything
      else is somebody's, and never replaced.

  Raises:
    FileExistsError: If it is there.
  """
  target = pathlib.Path(target)
  if not target.exists():
    return
  if not target.is_dir() or (
    any(target.iterdir()) and not (target / marker).is_file()
  ):
    raise FileExistsError(
      f'{target} exists and is not a folder that this program wrote: choose'
      ' another.'
    )
  if any(target.iterdir()) and not overwrite:
    raise FileExistsError(f'{target} exists. Replace it with --overwrite.')


def _replace(target: pathlib.Path, new: pathlib.Path, old: pathlib.Path):
  if target.exists():
    os.rename(target, old)
  try:
    os.rename(new, target)
  except OSError:
    if old.exists():
      os.rename(old, target)  # Or the clearing up would take it.
    raise


@contextlib.contextmanager
def staged_folder(
  target: os.PathLike | str, *, overwrite: bool, marker: str
) -> Iterator[pathlib.Path]:
  """Makes a folder under another name, and renames it in the end.

  A run that fails removes it. A run that is killed leaves a hidden folder,
  which the next run for the same target removes. Runs side by side do not meet:
  the first to finish wins, the others fail.

  Args:
    target: The folder to be; what a link points to, if it is one.
    overwrite: Whether to replace one that is there.
    marker: As in `check_target`.

  Yields:
    The folder to write into.

  Raises:
    FileExistsError: If the target is there and not to be replaced.
  """
  target = pathlib.Path(target).resolve()
  check_target(target, overwrite=overwrite, marker=marker)
  target.parent.mkdir(parents=True, exist_ok=True)
  _remove_leftovers(target)
  lock = None
  while lock is None:  # Unless another run has just taken it for a leftover.
    staging = pathlib.Path(
      tempfile.mkdtemp(prefix=f'.{target.name}.partial-', dir=target.parent)
    )
    lock = _lock(staging / _LOCK, 'w')
  folder = staging / 'new'
  try:
    folder.mkdir()
    yield folder
    check_target(target, overwrite=overwrite, marker=marker)
    try:
      _replace(target, folder, staging / 'old')
    except OSError as e:
      raise errors.StoreError(f'{target} could not be replaced: {e}.') from e
  finally:
    shutil.rmtree(staging, ignore_errors=True)
    lock.close()
