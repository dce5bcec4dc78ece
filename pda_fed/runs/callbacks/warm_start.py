"""Warm starts: pre-trained once on public data, used by many runs."""

from collections.abc import Callable, Mapping
import hashlib
import json
import os
import pathlib
from typing import Any
import warnings

from pda_fed import errors
from pda_fed.common import files
from pda_fed.runs import checkpoints
from pda_fed.runs import loop as loop_lib
from pda_fed.runs.callbacks import evaluation
from pda_fed.runs.engines import base as engine_lib

_WarmStart = tuple[engine_lib.Weights, dict[str, Any]]


def cache_path(
  folder: os.PathLike | str, settings: Mapping[str, Any]
) -> pathlib.Path:
  """Returns the file of a warm start.

  Args:
    folder: The folder of warm starts.
    settings: All settings that determine the weights.
  """
  text = json.dumps(settings, sort_keys=True)
  key = hashlib.sha256(text.encode()).hexdigest()[:16]
  return pathlib.Path(folder) / f'{key}.ckpt'


def _load(path: pathlib.Path, settings: Mapping[str, Any]) -> _WarmStart:
  """Returns a cached warm start, after checking its settings."""
  arrays, record = checkpoints.read_arrays(path)
  if record.get('settings') != json.loads(json.dumps(settings)):
    raise errors.CheckpointError(f'{path} belongs to other settings.')
  weights = engine_lib.from_prefixed(engine_lib.WEIGHTS, arrays)
  return weights, record['figures']


def load_or_pretrain(
  engine: engine_lib.Engine,
  settings: Mapping[str, Any],
  folder: os.PathLike | str,
  *,
  on_epoch: engine_lib.EpochFn,
  while_waiting: Callable[[], None],
) -> _WarmStart:
  """Returns the weights of a warm start, from the cache or by training.

  Processes that need the same warm start wait for the first one to train it.

  Args:
    engine: The engine that trains.
    settings: All settings that determine the weights.
    folder: The folder of warm starts.
    on_epoch: Called after each epoch; may raise to stop.
    while_waiting: Called while another process trains; may raise to stop.

  Returns:
    The weights, and the figures of the pre-training.

  Raises:
    CheckpointError: If the warm start cannot be written.
  """
  path = cache_path(folder, settings)
  # Names and contents hold a hash of the data.
  path.parent.mkdir(0o700, parents=True, exist_ok=True)
  with files.locked(path.with_suffix('.lock'), while_waiting=while_waiting):
    if path.exists():
      try:
        return _load(path, settings)
      except errors.CheckpointError as e:
        warnings.warn(f'{e} Training it again.', stacklevel=2)
    weights, figures = engine.pretrain(on_epoch)
    checkpoints.write_arrays(
      path,
      engine_lib.prefixed(engine_lib.WEIGHTS, weights),
      {'settings': settings, 'figures': figures},
    )
  return weights, figures


class WarmStart(loop_lib.Callback):
  """Gives a new run the weights of a warm start, if its method has one."""

  def __init__(self, folder: os.PathLike | str):
    self._folder = folder

  def start(self, loop) -> None:
    if loop.is_resumed or not loop.run.method.warm_start:
      return

    def on_epoch(epoch: int, loss: float) -> None:
      loop.tell('pretraining', epoch, loss)
      loop.raise_if_stopped(
        'stopped in pre-training. The same command starts it over.'
      )

    def while_waiting() -> None:
      loop.tell('waiting')
      loop.raise_if_stopped(f'stopped before the first round. {loop_lib.AGAIN}')

    weights, loop.record.warm_start = load_or_pretrain(
      loop.engine,
      loop.run.pretraining_settings(),
      self._folder,
      on_epoch=on_epoch,
      while_waiting=while_waiting,
    )
    loop.state = loop.engine.set_weights(loop.state, weights)

  def result(self, loop) -> dict[str, Any]:
    """Returns the warm start's figures and its own test metrics.

    Private rounds can make a model worse. On a GPU, training a warm start again
    gives slightly different weights, and with them different figures.
    """
    figures = loop.record.warm_start
    if not figures or not loop.run.spec.evaluation.final_test:
      return {'warm_start': figures}
    settings = loop.run.pretraining_settings()
    path = cache_path(self._folder, settings)
    try:
      weights, of_file = _load(path, settings)
      if of_file != figures:
        raise errors.CheckpointError(f'{path} was trained again since')
      figures = {**figures, 'test': evaluation.tested(loop, weights)}
    except errors.CheckpointError as e:
      warnings.warn(
        'no test of the model that this run started with:'
        f' {str(e).rstrip(".")}.',
        stacklevel=2,
      )
    return {'warm_start': figures}
