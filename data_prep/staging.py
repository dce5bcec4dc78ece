"""Writes a folder so that it only appears once it is complete."""

from collections.abc import Iterator
import contextlib
import glob
import os
import pathlib
import shutil
import tempfile

from data_prep import errors
from pda_fed.common import files

_LOCK = '.lock'


def _remove_leftovers(target: pathlib.Path) -> None:
  """Removes folders of killed runs. Live runs hold a lock on theirs."""
  name = glob.escape(target.name)  # A name such as 'run[1]' is not a pattern.
  for lock in target.parent.glob(f'.{name}.partial-*/{_LOCK}'):
    # FileNotFoundError: its owner has just removed it.
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
      with files.locked(lock):
        shutil.rmtree(lock.parent, ignore_errors=True)


def _make_staging(
  target: pathlib.Path, stack: contextlib.ExitStack
) -> pathlib.Path:
  """Returns a new folder beside the target, with a lock that `stack` holds."""
  while True:
    staging = pathlib.Path(
      tempfile.mkdtemp(prefix=f'.{target.name}.partial-', dir=target.parent)
    )
    # Retry if another run has just removed it.
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
      stack.enter_context(files.locked(staging / _LOCK))
      return staging


def check_target(
  target: os.PathLike | str, *, overwrite: bool, marker: str
) -> None:
  """Raises if a folder must not be written.

  Args:
    target: The folder.
    overwrite: Whether an existing folder may be replaced.
    marker: File that all folders of this kind have. A non-empty folder without
      it is never replaced.

  Raises:
    FileExistsError: If the folder exists and must not be replaced.
  """
  target = pathlib.Path(target)
  if not target.exists():
    return
  if not target.is_dir() or (
    any(target.iterdir()) and not (target / marker).is_file()
  ):
    raise FileExistsError(
      f'{target} exists and was not written by this program. Choose another'
      ' folder.'
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
      os.rename(old, target)  # Otherwise the cleanup would remove it.
    raise


@contextlib.contextmanager
def staged_folder(
  target: os.PathLike | str, *, overwrite: bool, marker: str
) -> Iterator[pathlib.Path]:
  """Writes a folder under a temporary name, and renames it at the end.

  A run that fails removes the folder. A run that is killed leaves a hidden
  folder, which the next run for the same target removes. Of several runs at
  once, the first to finish wins and the others fail.

  Args:
    target: The folder to create. A link is followed.
    overwrite: Whether an existing target may be replaced.
    marker: See `check_target`.

  Yields:
    The folder to write into.

  Raises:
    FileExistsError: If the target exists and must not be replaced.
  """
  target = pathlib.Path(target).resolve()
  check_target(target, overwrite=overwrite, marker=marker)
  target.parent.mkdir(parents=True, exist_ok=True)
  _remove_leftovers(target)
  with contextlib.ExitStack() as stack:
    staging = _make_staging(target, stack)
    folder = staging / 'new'
    try:
      folder.mkdir(0o700)  # A store holds private data.
      yield folder
      check_target(target, overwrite=overwrite, marker=marker)
      try:
        _replace(target, folder, staging / 'old')
      except OSError as e:
        raise errors.StoreError(f'{target} could not be replaced: {e}.') from e
    finally:
      shutil.rmtree(staging, ignore_errors=True)
