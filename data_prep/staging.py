"""Writes a folder so that it only appears once it is complete."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import shutil

from data_prep import errors
from pda_fed.common import files

_LOCK = '.lock'


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
  is_empty = target.is_dir() and not any(target.iterdir())
  if not is_empty and not (target / marker).is_file():
    raise FileExistsError(
      f'{target} exists and was not written by this program. Choose another'
      ' folder.'
    )
  if not is_empty and not overwrite:
    raise FileExistsError(f'{target} exists. Replace it with --overwrite.')


def _replace(target: pathlib.Path, new: pathlib.Path, old: pathlib.Path):
  if target.exists():
    os.rename(target, old)
  try:
    os.rename(new, target)
  except OSError as e:
    if old.exists():
      os.rename(old, target)  # Otherwise the cleanup would remove it.
    raise errors.StoreError(f'{target} could not be replaced: {e}.') from e


@contextlib.contextmanager
def staged_folder(
  target: os.PathLike | str, *, overwrite: bool, marker: str
) -> Iterator[pathlib.Path]:
  """Writes a folder under a temporary name, and renames it at the end.

  A run that fails removes the folder. A run that is killed leaves a hidden
  folder, which the next run for the same target removes.

  Args:
    target: The folder to create. A link is followed.
    overwrite: Whether an existing target may be replaced.
    marker: See `check_target`.

  Yields:
    The folder to write into. Others beside it are removed at the end.

  Raises:
    FileExistsError: If the target exists and must not be replaced, or another
      process is writing it.
  """
  target = pathlib.Path(target).resolve()
  check_target(target, overwrite=overwrite, marker=marker)
  staging = target.with_name(f'.{target.name}.partial')
  staging.mkdir(0o700, parents=True, exist_ok=True)
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(files.locked(staging / _LOCK))
    except (BlockingIOError, FileNotFoundError) as e:
      raise FileExistsError(
        f'{target} is being written by another process. Wait, or choose another'
        ' folder.'
      ) from e
    try:
      for leftover in staging.iterdir():  # Of a killed run.
        if leftover.name != _LOCK:
          shutil.rmtree(leftover)
      folder = staging / 'new'
      folder.mkdir(0o700)  # A store holds private data.
      yield folder
      check_target(target, overwrite=overwrite, marker=marker)
      _replace(target, folder, staging / 'old')
    finally:
      shutil.rmtree(staging, ignore_errors=True)
