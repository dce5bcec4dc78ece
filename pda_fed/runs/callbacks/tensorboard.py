"""Writes the rows of a run for TensorBoard."""

from collections.abc import Sequence
import pathlib
import shutil
from typing import Any
import warnings

from pda_fed.runs import loop as loop_lib

_FILE = 'events.out.tfevents.0.pda_fed'
_VERSION = 'brain.Event:2'


class TensorBoardLog(loop_lib.Callback):
  """Writes each row as scalars; a resumed run rewrites its log.

  TensorBoard cannot remove rows: appending to the log of a killed run would
  show some rounds twice.
  """

  def __init__(self, folder: pathlib.Path):
    """Creates an empty log, or none if `tensorboard` is not installed.

    Args:
      folder: The folder of the log; its contents are removed.
    """
    self._file = None
    shutil.rmtree(folder, ignore_errors=True)
    try:
      from tensorboard.compat.proto import event_pb2
      from tensorboard.compat.proto import summary_pb2

      # TensorBoard's event writer would import TensorFlow.
      from tensorboard.summary.writer import record_writer
    except ImportError as e:
      warnings.warn(f'No TensorBoard log: {e}.', stacklevel=2)
      return
    self._event, self._summary = event_pb2.Event, summary_pb2.Summary
    folder.mkdir(parents=True)
    self._file = open(folder / _FILE, 'wb')
    self._writer = record_writer.RecordWriter(self._file)
    self._writer.write(self._event(file_version=_VERSION).SerializeToString())

  def rows(self, loop, rows: Sequence[dict[str, Any]]) -> None:
    if self._file is None:
      return
    for row in rows:
      values = [
        self._summary.Value(tag=name, simple_value=value)
        for name, value in row.items()
        if value is not None and name != 'round'
      ]
      event = self._event(
        # The round, not the time, so that a seed reproduces the file.
        wall_time=row['round'],
        step=row['round'],
        summary=self._summary(value=values),
      )
      self._writer.write(event.SerializeToString())
    self._writer.flush()

  def close(self) -> None:
    if self._file is not None:
      self._file.close()
