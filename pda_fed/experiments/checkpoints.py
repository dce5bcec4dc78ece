"""Checkpoints: whole, checked, few.

A checkpoint is one file: a line with the length and the sha256 of the rest, and
the rest, an .npz of arrays and a record in JSON. It appears under its name when
it is complete and on the disk, and one that is damaged is found out and passed
over for the one before it. A state may hold what a secret seed gave, so nobody
but the owner of the file may read it.
"""

from collections.abc import Mapping
import dataclasses
import errno
import hashlib
import io
import json
import os
import pathlib
import re
from typing import Any, Optional
import warnings
import zipfile

import numpy as np
from pda_fed.common import files
from pda_fed.common import validate
from pda_fed.experiments import errors

_MAGIC = b'pda_fed arrays 1'
_RECORD = 'record.json'
_ROUND = 'round'
_NAME = re.compile(r'round_(\d{8})\.ckpt')


def write_arrays(
  path: os.PathLike,
  arrays: Mapping[str, np.ndarray],
  record: Mapping[str, Any],
) -> None:
  """Writes arrays and a record into one file, atomically.

  Args:
    path: Replaced if it exists.
    arrays: By name.
    record: JSON values.

  Raises:
    CheckpointError: If it cannot be written; `path` is then as it was.
  """
  text = np.frombuffer(json.dumps(record).encode(), np.uint8)
  buffer = io.BytesIO()
  np.savez(buffer, **{_RECORD: text}, **arrays)
  content = buffer.getvalue()
  digest = hashlib.sha256(content).hexdigest()
  header = b'%s %d %s\n' % (_MAGIC, len(content), digest.encode())
  try:
    files.write_atomically(path, header + content, mode=0o600)
  except OSError as e:
    what = 'The disk is full' if e.errno == errno.ENOSPC else f'{e.strerror}'
    raise errors.CheckpointError(
      f'{what}: {path} ({len(content) / 1e6:.1f} MB) cannot be written. What'
      ' was saved before is whole: the same command goes on from there.'
    ) from e


def read_arrays(
  path: os.PathLike,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Reads what `write_arrays` wrote.

  Args:
    path: The file.

  Returns:
    The arrays and the record.

  Raises:
    CheckpointError: If it is damaged or cannot be read.
  """
  try:
    header, _, content = pathlib.Path(path).read_bytes().partition(b'\n')
    digest = hashlib.sha256(content).hexdigest()
    expected = b'%s %d %s' % (_MAGIC, len(content), digest.encode())
    if header != expected:
      raise ValueError('its content is not of the length and sha256 it names')
    with np.load(io.BytesIO(content), allow_pickle=False) as loaded:
      arrays = dict(loaded)
    record = json.loads(arrays.pop(_RECORD).tobytes())
    if not isinstance(record, dict):
      raise ValueError(f'its record is {record!r}')
  except (OSError, ValueError, KeyError, zipfile.BadZipFile) as e:
    raise errors.CheckpointError(f'{path} cannot be used: {e}.') from e
  return arrays, record


@dataclasses.dataclass(frozen=True, eq=False)
class Checkpoint:
  """A moment of a run.

  Attributes:
    round_num: Rounds done.
    arrays: The engine's state.
    record: The loop's.
  """

  round_num: int
  arrays: dict[str, np.ndarray]
  record: dict[str, Any]


class Checkpoints:
  """The checkpoints of a run."""

  def __init__(self, folder: os.PathLike, kept: int = 3):
    """Opens a folder.

    Args:
      folder: Made when the first checkpoint is saved.
      kept: How many are kept, at least 1; with 2 a damaged one costs the rounds
        since the one before.

    Raises:
      ValueError: If `kept` is less than 1.
    """
    validate.integers(1, checkpoints_kept=kept)
    self._folder = pathlib.Path(folder)
    self._kept = kept

  def _paths(self) -> dict[int, pathlib.Path]:
    """The files by round, the oldest first."""
    matches = {p: _NAME.fullmatch(p.name) for p in self._folder.glob('*.ckpt')}
    rounds = {int(m[1]): p for p, m in matches.items() if m}
    return dict(sorted(rounds.items()))

  def newest_until(self, round_num: int) -> Optional[pathlib.Path]:
    """Returns the newest checkpoint of a round up to some round, or None."""
    found = [p for r, p in self._paths().items() if r <= round_num]
    return found[-1] if found else None

  def last_round(self) -> Optional[int]:
    """Returns the newest checkpoint's round, by its name; None without any."""
    return max(self._paths(), default=None)

  def save(
    self,
    round_num: int,
    arrays: Mapping[str, np.ndarray],
    record: Mapping[str, Any],
    good_round: Optional[int] = None,
  ) -> None:
    """Saves a checkpoint, then removes those that are too old.

    Args:
      round_num: Rounds done.
      arrays: The engine's state.
      record: JSON values; none is called round.
      good_round: The newest checkpoint up to this round stays, too.

    Raises:
      CheckpointError: If it cannot be written; the others stay.
    """
    self._folder.mkdir(parents=True, exist_ok=True)
    files.remove_temporaries(self._folder)
    path = self._folder / f'round_{round_num:08d}.ckpt'
    write_arrays(path, arrays, {**record, _ROUND: round_num})
    # Those after this one are of a run that went on from a damaged one.
    paths = self._paths()
    older = [r for r in paths if r < round_num]
    good = good_round is not None and self.newest_until(good_round)
    for old in older[: max(0, len(older) - self._kept + 1)]:
      if paths[old] != good:
        paths[old].unlink()
    self.remove_after(round_num)

  def remove_after(self, round_num: int) -> None:
    """Removes the checkpoints of later rounds."""
    for newer, path in self._paths().items():
      if newer > round_num:
        path.unlink()

  def drop(self, prefix: str) -> None:
    """Takes arrays out of all checkpoints, for good.

    Args:
      prefix: Of their names.

    Raises:
      CheckpointError: If one cannot be read or written.
    """
    for path in self._paths().values():
      try:
        arrays, record = read_arrays(path)
      except errors.CheckpointError as e:
        if isinstance(e.__cause__, OSError):
          raise  # It may be whole.
        path.unlink()  # Nobody can go on with it, but what it holds is there.
        continue
      kept = {n: a for n, a in arrays.items() if not n.startswith(prefix)}
      if len(kept) < len(arrays):
        write_arrays(path, kept, record)

  def latest(self) -> Optional[Checkpoint]:
    """Returns the newest checkpoint that is whole; a damaged one is a warning.

    Returns:
      None if there is no checkpoint.

    Raises:
      CheckpointError: If there are checkpoints and none is whole.
    """
    paths = self._paths()
    damage = None
    for round_num, path in reversed(paths.items()):
      try:
        arrays, record = read_arrays(path)
        # A file under another's name: its rounds would come again, or never.
        # Those of earlier versions do not say.
        found = record.pop(_ROUND, round_num)
        if found != round_num:
          raise errors.CheckpointError(f'{path} is of round {found}.')
      except errors.CheckpointError as e:
        damage = e
        warnings.warn(f'{e} The one before it is tried.', stacklevel=2)
        continue
      return Checkpoint(round_num, arrays, record)
    if damage is not None:
      raise errors.CheckpointError(
        f'No checkpoint in {self._folder} is whole. To start over, remove the'
        ' output folder.'
      ) from damage
    return None
