"""From settings to a finished run: the folder, the loop, the audit."""

from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import os
import pathlib
import shutil
from typing import Any, Optional

from pda_fed import audit
from pda_fed import privacy
from pda_fed.common import signals
from pda_fed.experiments import config as config_lib
from pda_fed.experiments import errors
from pda_fed.experiments import loop
from pda_fed.experiments import outputs
from pda_fed.experiments import progress as progress_lib
from pda_fed.experiments.engines import base as engine_lib

# The folder of an audit's copy, in that of the run.
_COPY = 'audit'

OpenEngine = Callable[
  [Any, privacy.SeedStreams],
  contextlib.AbstractContextManager[engine_lib.Engine],
]


def _is_finished(
  result: Optional[Mapping[str, Any]], config: config_lib.RunConfig
) -> bool:
  if result is None:
    return False
  return result['test'] is not None or not config.final_test


def check_audit(result: Mapping[str, Any]) -> None:
  """Raises if an audit contradicts what was proven.

  Args:
    result: What result.json holds.

  Raises:
    AuditError: If a lower bound is above the proven epsilon.
  """
  report = result.get('audit')
  if report and audit.is_violated(report):
    raise errors.AuditError(audit.violation(report))


def train(
  config: config_lib.RunConfig,
  open_engine: OpenEngine,
  output_dir: os.PathLike,
  *,
  warm_start_dir: Optional[os.PathLike] = None,
  about: Optional[dict[str, Any]] = None,
  change_engine: bool = False,
  progress: Optional[progress_lib.Progress] = None,
) -> outputs.RunFolder:
  """Runs an experiment to its end, from its start or from where it was left.

  Example:

  ```
  folder = train(config, experiments.open_engine, 'out/pda')
  folder.read_result()['test']['accuracy']
  ```

  Args:
    config: The settings.
    open_engine: Opens the engine of (config, seeds).
    output_dir: The run's folder: new, empty, or of this very run.
    warm_start_dir: Where warm starts are kept, to be shared; by default
      `warm_start` beside `output_dir`.
    about: What else config.json should say; JSON values.
    change_engine: Whether to resume a run of another engine. The run must have
      been stopped by a signal; otherwise a round could be repeated with
      different noise.
    progress: What is shown; by default nothing.

  Returns:
    The folder, with its result.

  Raises:
    AuditError: If the audit shows more than the proven epsilon; the result is
      written.
    CheckpointError: If a checkpoint cannot be written, or none be used.
    EngineError: If the engine fails; the rounds that are done are saved.
    OutputError: If the folder holds something else, or a run without a seed
      that has ended and is now to be tested.
    StoppedError: If SIGINT or SIGTERM ended it; everything is saved.
  """
  output_dir = pathlib.Path(output_dir)
  if warm_start_dir is None:
    warm_start_dir = output_dir.parent / 'warm_start'
  places = pathlib.Path(warm_start_dir), progress or progress_lib.Progress()
  with outputs.RunFolder.open(
    output_dir, config, about or {}, change_engine=change_engine
  ) as folder:
    result = _result_of(folder, config, open_engine, *places)
    if config.audit is not None and config.audit.copy and not result['audit']:
      report = _audit_of_copy(folder, config, open_engine, *places)
      result = {**result, 'audit': {**report, 'copy': True}}
      folder.write_result(result)
      shutil.rmtree(folder.path / _COPY, ignore_errors=True)
    check_audit(result)
    return folder


def _audit_of_copy(
  folder: outputs.RunFolder,
  config: config_lib.RunConfig,
  open_engine: OpenEngine,
  warm_start_dir: pathlib.Path,
  progress: progress_lib.Progress,
) -> dict[str, Any]:
  """Runs a second time, with canaries and noise of its own.

  With the noise of the first run, the difference of both would have none. The
  second run is removed once its report is kept: it is another look at the same
  users, and must not be released.
  """
  pretraining = dataclasses.replace(
    config.pretraining, seed=config.pretraining_seed
  )
  copy = dataclasses.replace(
    config,
    seed=None,
    pretraining=pretraining,
    audit=dataclasses.replace(config.audit, copy=False),
  )
  with outputs.RunFolder.open(folder.path / _COPY, copy, {}) as second:
    result = _result_of(second, copy, open_engine, warm_start_dir, progress)
    return result['audit']


def _result_of(
  folder: outputs.RunFolder,
  config: config_lib.RunConfig,
  open_engine: OpenEngine,
  warm_start_dir: pathlib.Path,
  progress: progress_lib.Progress,
) -> dict[str, Any]:
  """Runs to the end, unless that was done, and writes the result."""
  result = folder.read_result()
  if _is_finished(result, config):
    folder.forget_seeds()  # Killed just before it, a run has kept them.
    return result
  with (
    signals.StopSignals() as stop,
    open_engine(config, folder.seeds(config.seed)) as engine,
  ):
    run = loop.Run(config, folder, engine, stop, progress)
    try:
      result = run.run(warm_start_dir)
    finally:
      progress.close()
      run.close()
  folder.write_result(result)
  folder.forget_seeds()
  return result
