"""Runs an experiment: the folder, the training loop, the audit."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import os
import pathlib
import shutil
from typing import Any, Optional

from pda_fed import audit
from pda_fed import errors
from pda_fed import privacy
from pda_fed.common import signals
from pda_fed.runs import checkpoints
from pda_fed.runs import loop
from pda_fed.runs import outputs
from pda_fed.runs import resolving
from pda_fed.runs import resuming
from pda_fed.runs.callbacks import audit as audit_callback
from pda_fed.runs.callbacks import checkpoint
from pda_fed.runs.callbacks import evaluation
from pda_fed.runs.callbacks import guard
from pda_fed.runs.callbacks import tensorboard
from pda_fed.runs.callbacks import warm_start
from pda_fed.runs.engines import base as engine_lib
from pda_fed.runs.engines import registry

# Subfolder of the run for the copy that is audited.
_COPY = 'audit'

OpenEngine = Callable[
  [Any, privacy.SeedStreams],
  contextlib.AbstractContextManager[engine_lib.Engine],
]
NewSeeds = Callable[[], privacy.SeedStreams]


def check_audit(result: Mapping[str, Any]) -> None:
  """Raises if an audit contradicts the proven epsilon.

  Args:
    result: The content of result.json.

  Raises:
    AuditError: If a lower bound is above the proven epsilon.
  """
  report = result.get('audit')
  if report and audit.is_violated(report):
    raise errors.AuditError(audit.violation(report))


def train(
  run: resolving.Run,
  output_dir: os.PathLike | str,
  *,
  warm_start_dir: Optional[os.PathLike | str] = None,
  callbacks: Sequence[loop.Callback] = (),
  open_engine: OpenEngine = registry.open_engine,
  new_seeds: NewSeeds = privacy.SeedStreams,
) -> outputs.RunFolder:
  """Runs an experiment to its end; starts it or resumes it.

  Example:

  ```
  run = runs_lib.resolve(runs_lib.RunSpec.for_data(data_dir='data/laptop'))
  folder = runs_lib.train(run, 'out/pda', callbacks=[runs_lib.Progress()])
  folder.read_result()['test']['accuracy']
  ```

  Args:
    run: The run.
    output_dir: The run's folder: new, empty, or the folder of this run.
    warm_start_dir: The folder of warm starts, which runs share. By default
      `warm_start` next to `output_dir`.
    callbacks: What the loop calls beside its own callbacks, such as `Progress`.
    open_engine: Opens an engine, given the run and the seeds; by default the
      one that the run names.
    new_seeds: Makes secret seeds for a new run without a seed; by default from
      system entropy.

  Returns:
    The run's folder, with the result.

  Raises:
    AuditError: If the audit measured more than the proven epsilon. The result
      is written.
    CheckpointError: If a checkpoint cannot be written, or no checkpoint can be
      read.
    DivergenceError: If the model diverges, or did so before.
    EngineError: If the engine fails. Completed rounds are saved.
    OutputError: If the folder holds something else, or the run had no seed,
      ended without a test, and should now be tested.
    StoppedError: If SIGINT or SIGTERM stopped the run. Everything is saved.
  """
  output_dir = pathlib.Path(output_dir)
  finish = functools.partial(
    _finish,
    open_engine=open_engine,
    warm_start_dir=warm_start_dir or output_dir.parent / 'warm_start',
    others=callbacks,
    new_seeds=new_seeds,
  )
  with resuming.opened(output_dir, run) as folder:
    result = finish(folder, run)
    if run.spec.audit.audit == 'copy':
      if not result['audit']:
        report = _audit_of_copy(folder, run, finish)
        result = {**result, 'audit': {**report, 'copy': True}}
        folder.write_result(result)
      # Also if the run was killed before it did this.
      _remove_copy(folder)
    check_audit(result)
    return folder


def _audit_of_copy(
  folder: outputs.RunFolder,
  run: resolving.Run,
  finish: Callable[[outputs.RunFolder, resolving.Run], dict[str, Any]],
) -> dict[str, Any]:
  """Runs a second time, with canaries and with its own noise.

  If both runs had the same noise, their difference would have none. The second
  run is removed after its report is saved: it is another look at the same
  users, and must not be released.
  """
  seed = run.spec.pretraining_seed
  values = {'seed': None, 'pretraining.seed': seed, 'audit': 'run'}
  copy = dataclasses.replace(run, spec=run.spec.with_values(values))
  try:
    with resuming.opened(folder.path / _COPY, copy) as second:
      return finish(second, copy)['audit']
  except errors.DivergenceError as e:
    _remove_copy(folder)
    raise errors.DivergenceError(
      f'The run in {folder.path} has ended, but its copy for the audit diverged'
      f' and was removed with its checkpoints: {e} The same command audits'
      ' another copy.'
    ) from e


def _remove_copy(folder: outputs.RunFolder) -> None:
  shutil.rmtree(folder.path / _COPY, ignore_errors=True)


def _finish(
  folder: outputs.RunFolder,
  run: resolving.Run,
  *,
  open_engine: OpenEngine,
  warm_start_dir: os.PathLike | str,
  others: Sequence[loop.Callback],
  new_seeds: NewSeeds,
) -> dict[str, Any]:
  """Runs to the end, if not finished yet, and returns the result."""
  result = folder.read_result()
  if result is not None:
    if result['test'] is not None or not run.spec.evaluation.final_test:
      # The run may have been killed before it did this.
      resuming.forget_seeds(folder)
      return result
  if folder.has_diverged():
    resuming.forget_seeds(folder)  # Likewise.
    raise errors.DivergenceError(
      f'The run in {folder.path} diverged and cannot be resumed. Start another'
      ' one with other settings and another --output_dir.'
    )
  saved = checkpoints.Checkpoints(
    folder.checkpoints_path, run.spec.execution.checkpoints_kept
  )
  with (
    signals.StopSignals() as stop,
    open_engine(
      run, resuming.seeds(folder, run.spec.seed, new_seeds)
    ) as engine,
    contextlib.ExitStack() as stack,
  ):
    audited = [] if engine.canaries is None else [engine.canaries]
    callbacks: list[loop.Callback] = [
      warm_start.WarmStart(warm_start_dir),
      *map(audit_callback.Audit, audited),
      evaluation.Evaluation(),
      guard.Guard(run),
      checkpoint.Checkpoint(saved),
      tensorboard.TensorBoardLog(folder.tensorboard_path),
      *others,
    ]
    for callback in callbacks:
      stack.callback(callback.close)
    try:
      result = loop.Loop(run, folder, engine, stop, callbacks).execute()
    except errors.DivergenceError:
      resuming.forget_seeds(folder)
      raise
  folder.write_result(result)
  resuming.forget_seeds(folder)
  return result
