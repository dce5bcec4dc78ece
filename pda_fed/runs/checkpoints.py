"""Checkpoints of a run: atomic, with checksums.

A checkpoint is one file: a header line with the length and the sha256 of the
content, then the content, an .npz file of arrays and a JSON record. It is
written atomically. A damaged checkpoint is detected and skipped in favor of the
one before it. Only the file's owner may read it, because the state may depend
on a secret seed.
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
from pda_fed import errors
from pda_fed.common import files
from pda_fed.common import validate

_MAGIC = b'pda_fed arrays 1'
_RECORD = 'record.json'
_ROUND = 'round'
_NAME = re.compile(r'round_(\d{8})\.ckpt')


def write_arrays(
  path: os.PathLike | str,
  arrays: Mapping[str, np.ndarray],
  record: Mapping[str, Any],
) -> None:
  """Writes arrays and a record, JSON values, into one file, atomically.

  Args:
    path: The file; replaced if it exists.
    arrays: The arrays by name.
    record: The record.

  Raises:
    CheckpointError: If the write fails. `path` is then unchanged.
  """
  text: Any = np.frombuffer(json.dumps(record).encode(), np.uint8)
  buffer = io.BytesIO()
  np.savez(buffer, **{_RECORD: text, **arrays})
  content = buffer.getvalue()
  try:
    files.write_atomically(path, _header(content) + content, mode=0o600)
  except OSError as e:
    what = 'The disk is full' if e.errno == errno.ENOSPC else f'{e.strerror}'
    raise errors.CheckpointError(
      f'{what}: {path} ({len(content) / 1e6:.1f} MB) cannot be written. Earlier'
      ' checkpoints are intact: the same command resumes from there.'
    ) from e


def _header(content: bytes) -> bytes:
  digest = hashlib.sha256(content).hexdigest()
  return b'%s %d %s\n' % (_MAGIC, len(content), digest.encode())


def read_arrays(
  path: os.PathLike | str,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Returns the arrays and the record that `write_arrays` wrote.

  Args:
    path: The file.

  Raises:
    CheckpointError: If the file is damaged or cannot be read.
  """
  try:
    whole = pathlib.Path(path).read_bytes()
    content = whole.partition(b'\n')[2]
    if whole != _header(content) + content:
      raise ValueError('its length or sha256 does not match its header')
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
  """The saved state of a run.

  Attributes:
    round_num: The number of rounds done.
    arrays: The engine's state.
    record: The loop's state.
  """

  round_num: int
  arrays: dict[str, np.ndarray]
  record: dict[str, Any]


class Checkpoints:
  """The checkpoints of a run."""

  def __init__(self, folder: os.PathLike | str, kept: int = 3):
    """Opens a folder of checkpoints.

    Args:
      folder: The folder; created when the first checkpoint is saved.
      kept: The number of checkpoints to keep, at least 1. With 2 or more, a
        damaged checkpoint costs only the rounds since the one before it.

    Raises:
      ValueError: If `kept` is less than 1.
    """
    validate.integers(1, checkpoints_kept=kept)
    self._folder = pathlib.Path(folder)
    self._kept = kept

  def _paths(self) -> dict[int, pathlib.Path]:
    """Returns the files by round, oldest first."""
    matches = {p: _NAME.fullmatch(p.name) for p in self._folder.glob('*.ckpt')}
    rounds = {int(m[1]): p for p, m in matches.items() if m}
    return dict(sorted(rounds.items()))

  def newest_until(self, round_num: int) -> Optional[pathlib.Path]:
    """Returns the newest checkpoint not after a round, or None."""
    found = [p for r, p in self._paths().items() if r <= round_num]
    return found[-1] if found else None

  def last_round(self) -> Optional[int]:
    """Returns the newest file's round, or None. The file may be damaged."""
    return max(self._paths(), default=None)

  def save(
    self,
    round_num: int,
    arrays: Mapping[str, np.ndarray],
    record: Mapping[str, Any],
    good_round: Optional[int] = None,
  ) -> None:
    """Saves a checkpoint, then removes old ones.

    Args:
      round_num: The number of rounds done.
      arrays: The engine's state.
      record: The loop's state, as JSON values. No key is 'round'.
      good_round: The newest checkpoint not after this round is also kept.

    Raises:
      CheckpointError: If the write fails. No checkpoint is then removed.
    """
    self._folder.mkdir(parents=True, exist_ok=True)
    files.remove_temporaries(self._folder)
    path = self._folder / f'round_{round_num:08d}.ckpt'
    write_arrays(path, arrays, {**record, _ROUND: round_num})
    # Later checkpoints were damaged when the run resumed before them.
    self.remove_after(round_num)
    good = None if good_round is None else self.newest_until(good_round)
    for old in list(self._paths().values())[: -self._kept]:
      if old != good:
        old.unlink()

  def remove_after(self, round_num: int) -> None:
    """Removes the checkpoints of later rounds."""
    for newer, path in self._paths().items():
      if newer > round_num:
        path.unlink()

  def drop(self, prefix: str) -> None:
    """Removes arrays from all checkpoints permanently.

    Args:
      prefix: Prefix of the arrays' names.

    Raises:
      CheckpointError: If a checkpoint cannot be read or written.
    """
    for path in self._paths().values():
      try:
        arrays, record = read_arrays(path)
      except errors.CheckpointError as e:
        if isinstance(e.__cause__, OSError):
          raise  # The checkpoint may be intact.
        path.unlink()  # Useless for resuming, but may contain the arrays.
        continue
      kept = {n: a for n, a in arrays.items() if not n.startswith(prefix)}
      if len(kept) < len(arrays):
        write_arrays(path, kept, record)

  def latest(self) -> Optional[Checkpoint]:
    """Returns the newest intact checkpoint, and warns of damaged ones.

    Raises:
      CheckpointError: If there are checkpoints, and all are damaged.
    """
    damage = None
    for round_num, path in reversed(self._paths().items()):
      try:
        arrays, record = read_arrays(path)
        # A renamed file would repeat or skip rounds.
        found = record.pop(_ROUND, None)
        if found != round_num:
          raise errors.CheckpointError(f'{path} is of round {found}.')
      except errors.CheckpointError as e:
        damage = e
        warnings.warn(f'{e} Trying the one before it.', stacklevel=2)
        continue
      return Checkpoint(round_num, arrays, record)
    if damage is not None:
      raise errors.CheckpointError(
        f'All checkpoints in {self._folder} are damaged. To start over, remove'
        ' the output folder.'
      ) from damage
    return None
