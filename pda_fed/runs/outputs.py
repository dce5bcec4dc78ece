"""The output folder of a run.

    config.json      all settings, the seed, library versions, the data's hash
    metrics.csv      a row for each evaluated round
    result.json      the final test metrics and epsilon
    checkpoints/     see `checkpoints`
    tensorboard/     the same rows for TensorBoard

TFF's release managers are not used for these files. They need TFF, which the
JAX engine does not, and their TensorBoard log would keep rows that a resumed
run writes again. Here the checkpoints hold the rows, and both metrics.csv and
the log are written from them.
"""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shlex
import sys
from typing import Any, Optional

import pda_fed
from pda_fed import errors as base_errors
from pda_fed import privacy
from pda_fed.common import files
from pda_fed.common import seal
from pda_fed.common import typed
from pda_fed.runs import checkpoints
from pda_fed.runs import disclosure
from pda_fed.runs import errors
from pda_fed.runs import records
from pda_fed.runs import resolving
from pda_fed.runs.engines import base as engine_lib

CONFIG = 'config.json'
_METRICS = 'metrics.csv'
_RESULT = 'result.json'
_SEEDS = 'secret_seeds.json'
_STOPPED = 'stopped.json'
_RUNNING = 'running.json'
_DIVERGED = 'diverged.json'
_LOCK = '.lock'
# Files that a folder without a run may contain: our lock, and leftovers of
# killed writers.
_HARMLESS = re.compile(rf'{re.escape(_LOCK)}|\.{re.escape(CONFIG)}\.tmp-\d+')

_LIBRARIES = (
  'dp-accounting',
  'jax',
  'numpy',
  'scipy',
  'tensorflow',
  'tensorflow-federated',
  'tensorflow-privacy',
)


def library_versions() -> dict[str, str]:
  """Returns the versions of pda_fed, Python and the main libraries."""
  versions = {
    'pda_fed': pda_fed.__version__,
    'python': platform.python_version(),
  }
  for name in _LIBRARIES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[name] = importlib.metadata.version(name)
  return versions


def _refuse_file(path: pathlib.Path) -> None:
  if path.exists() and not path.is_dir():
    raise errors.OutputError(f'output_dir {path} is not a folder.')


@dataclasses.dataclass(frozen=True)
class RunFolder:
  """A run's folder.

  Example:

  ```
  folder = train(run, 'out/pda')  # A RunFolder.
  folder.read_result()['test']['accuracy']
  ```

  Attributes:
    path: The folder.
  """

  path: pathlib.Path

  @classmethod
  @contextlib.contextmanager
  def open(
    cls,
    path: os.PathLike | str,
    run: resolving.Run,
  ) -> Iterator['RunFolder']:
    """Opens a folder for a new run, or to resume the run that it holds.

    Args:
      path: The folder; created if missing.
      run: The run.

    Yields:
      The folder, locked against other processes.

    Raises:
      OutputError: If the folder holds something else, or a run with different
        settings.
    """
    path = pathlib.Path(path)
    _refuse_file(path)
    # Files of a run without a seed may hold what epsilon does not cover.
    mode = 0o777 if run.spec.seed is not None else 0o700
    path.mkdir(mode, parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
      try:
        stack.enter_context(files.locked(path / _LOCK))
      except BlockingIOError as e:
        raise base_errors.BusyError(
          f'Another process is running the experiment in {path}.'
        ) from e
      folder = cls(path)
      folder.check(run)
      # Only after the check: files of an unrelated folder must not be removed.
      files.remove_temporaries(path)
      if folder.is_new():
        if run.spec.seed is None:
          folder._make_private()
        files.remove(path / _SEEDS)
        folder._write_config(run)
      yield folder

  def _make_private(self) -> None:
    try:
      self.path.chmod(0o700)  # It may have existed before.
    except PermissionError as e:
      raise errors.OutputError(
        f'output_dir {self.path} must belong to you, so that only you can read'
        ' a run without a seed. Give a folder that does not exist yet.'
      ) from e

  @property
  def checkpoints_path(self) -> pathlib.Path:
    return self.path / 'checkpoints'

  @property
  def tensorboard_path(self) -> pathlib.Path:
    return self.path / 'tensorboard'

  def check(self, run: resolving.Run) -> None:
    """Raises unless the folder is free or holds this run; writes nothing.

    Args:
      run: The run.

    Raises:
      OutputError: If the folder holds something else, or a run with different
        settings.
    """
    _refuse_file(self.path)
    if not self.path.exists():
      return
    if not (self.path / CONFIG).exists():
      names = [p.name for p in self.path.iterdir()]
      strangers = [n for n in names if not _HARMLESS.fullmatch(n)]
      if strangers:
        raise errors.OutputError(
          f'output_dir {self.path} must be empty or hold this experiment. Found'
          f' {", ".join(sorted(strangers)[:5])}.'
        )
      return
    old = self.read_config().settings
    if self.is_new():
      return
    new = json.loads(json.dumps(run.settings()))
    done = checkpoints.Checkpoints(self.checkpoints_path).last_round() or 0
    if run.plan.rounds < done:
      raise errors.OutputError(
        f'rounds must be at least {done}, the number of rounds done in'
        f' {self.path}. Found {run.plan.rounds}.'
      )
    lines = typed.differences(old, new)
    if lines:
      advice = 'Use the same settings again, or another --output_dir'
      if old.get('noise_version') != new['noise_version']:
        advice = 'This version draws other noise: use another --output_dir'
      raise errors.OutputError(
        f'{self.path} holds a run with other settings: {"; ".join(lines)}.'
        f' {advice}.'
      )

  def is_new(self) -> bool:
    """Returns whether no round was run yet, so that settings may still change.

    The model is saved before the first round. Without a checkpoint, no round
    used the folder's settings or their noise.
    """
    names = (_METRICS, _RESULT, _STOPPED)
    return not (
      any(self.checkpoints_path.glob('*'))
      or any((self.path / name).exists() for name in names)
    )

  def _stopped_after(self) -> Optional[int]:
    if not (self.path / _STOPPED).exists():
      return None
    return self._read(_STOPPED, records.Stopped).round

  def check_order(self, order: dict[str, Any]) -> None:
    """Raises if rounds may be repeated with sums in a different order.

    A killed run may have run rounds after its checkpoint, and someone may have
    seen them. Repeated in a different order, they would have the same noise but
    different last digits: the difference between the two has no noise.

    Args:
      order: The result of `engine.Engine.order_of_sums`.

    Raises:
      OutputError: If the run was killed and had a different order.
    """
    before = self.read_config().order_of_sums
    if before == order:
      return
    last = checkpoints.Checkpoints(self.checkpoints_path).last_round()
    was_killed = last is not None and self._stopped_after() != last
    if before is not None and was_killed:
      lines = typed.differences(before, order)
      raise errors.OutputError(
        f'The run in {self.path} was killed: rounds after {last} may have been'
        ' run, and must be repeated with sums in the same order. Found'
        f' {"; ".join(lines)}. Resume with the old values, given as flags of'
        ' these names. They may change after a stop by Ctrl-C or SIGTERM.'
      )
    self.write_order(order)

  def write_order(self, order: dict[str, Any]) -> None:
    """Records the order of sums of the following rounds."""
    config = dataclasses.replace(self.read_config(), order_of_sums=order)
    files.write_json(self.path / CONFIG, typed.as_json(config))

  def mark_stopped(self, round_num: int) -> None:
    """Records that the run stopped, saved, after a round.

    Records nothing if a killed process may have run later rounds.

    Args:
      round_num: The number of rounds done.
    """
    mark = self._running()
    if mark is None or round_num >= mark.seen_before:
      files.write_json(self.path / _STOPPED, {'round': round_num})
      files.remove(self.path / _RUNNING)

  def mark_running(self, done: int, until: int) -> None:
    """Records that rounds are running.

    Call this before the first round, and after each save.

    Args:
      done: The number of rounds that are done and saved.
      until: The round of the next save.
    """
    seen = 0
    if self._stopped_after() != done and not self.is_new():
      # This process saves what it runs. A killed process did not.
      mark = self._running()
      seen = until if mark is None else max(mark.until, mark.seen_before)
    seen = seen if seen > done else 0
    files.write_json(
      self.path / _RUNNING, {'until': max(until, seen), 'seen_before': seen}
    )
    files.remove(self.path / _STOPPED)

  def mark_diverged(self, round_num: int) -> None:
    """Records that the model diverged. The run has then ended.

    Args:
      round_num: The number of rounds done.
    """
    files.write_json(self.path / _DIVERGED, {'round': round_num})

  def has_diverged(self) -> bool:
    """Returns whether the run ended because its model diverged."""
    return (self.path / _DIVERGED).exists()

  def _running(self) -> Optional[records.Running]:
    """Returns which rounds this process and earlier ones may have run."""
    if not (self.path / _RUNNING).exists():
      return None
    return self._read(_RUNNING, records.Running)

  def _write_config(self, run: resolving.Run) -> None:
    caveats = list(run.data.caveats)
    if run.spec.seed is None:  # The model may be meant for publication.
      caveats.append(disclosure.of_run())
    config = records.Recorded(
      format=records.FORMAT,
      version=records.VERSION,
      spec=run.spec,
      settings=run.settings(),
      noise=privacy.SeedStreams(run.spec.seed).statement(),
      libraries=library_versions(),
      command=shlex.join(sys.argv),
      data=run.data.about,
      caveats=caveats,
    )
    files.write_json(self.path / CONFIG, typed.as_json(config))

  def read_config(self) -> records.Recorded:
    """Returns the content of config.json.

    Raises:
      OutputError: If the file cannot be read, or belongs to no run, or to one
        of another version.
    """
    found = files.read_json(self.path / CONFIG)
    if not isinstance(found, dict) or found.get('format') != records.FORMAT:
      raise errors.OutputError(
        f'{self.path / CONFIG} does not belong to a run.'
      )
    if found.get('version') != records.VERSION:
      raise errors.OutputError(
        f'{self.path} holds a run of another version of pda_fed, with format'
        f' {found.get("version")!r:.20}. This one reads {records.VERSION}. Give'
        ' another folder, or use the version that config.json names.'
      )
    with self._naming(CONFIG):
      return typed.from_json(records.Recorded, found)

  def _read(self, name: str, kind: type) -> Any:
    """Returns the content of a JSON file as a dataclass."""
    found = files.read_json(self.path / name)
    with self._naming(name):
      return typed.from_json(kind, found)

  @contextlib.contextmanager
  def _naming(self, name: str) -> Iterator[None]:
    """Turns TypeError and ValueError into an OutputError naming the file."""
    try:
      yield
    except (TypeError, ValueError) as e:
      what = str(e).rstrip('.')
      raise errors.OutputError(f'{self.path / name} is damaged: {what}.') from e

  def seeds(self, seed: Optional[int]) -> privacy.SeedStreams:
    """Returns the run's seeds.

    A run without a seed draws secret seeds and keeps them in a file until it
    ends. It needs them to resume: repeating a round with fresh noise would be a
    second look at the same users.

    Args:
      seed: The run's seed, or None.

    Raises:
      OutputError: If the secret seeds are damaged or missing, or the run has
        ended.
    """
    if seed is not None:
      return privacy.SeedStreams(seed)
    if (self.path / _RESULT).exists():
      self.forget_seeds()  # The run may have been killed before it did this.
      raise errors.OutputError(
        f'The run in {self.path} had no seed and ended without a test. Its'
        ' secret seeds were removed, so it cannot be resumed. Its weights are'
        f' in {self.checkpoints_path}.'
      )
    path = self.path / _SEEDS
    if path.exists():
      found = files.read_json(path)
      with self._naming(_SEEDS):
        if isinstance(found, dict):
          found = seal.unseal(found)
        return privacy.SeedStreams.from_dict(found)
    if not self.is_new():
      raise errors.OutputError(
        f'{path} is missing. Without it the run cannot resume with the same'
        ' noise. Start a new run in another --output_dir.'
      )
    streams = privacy.SeedStreams(None)
    # Sealed: a damaged seed would repeat rounds with different noise.
    files.write_json(path, seal.seal(streams.as_dict()), mode=0o600)
    return streams

  def forget_seeds(self) -> None:
    """Removes the seeds of a finished run, and state derived from them."""
    if self.read_config().seed is None:
      saved = checkpoints.Checkpoints(self.checkpoints_path)
      saved.drop(f'{engine_lib.SECRET}/')
    files.remove(self.path / _SEEDS)

  def write_metrics(self, rows: Sequence[dict[str, Any]]) -> None:
    """Replaces metrics.csv."""
    content = records.format_csv(rows).encode()
    files.write_atomically(self.path / _METRICS, content)

  def read_metrics(self) -> list[dict[str, Optional[float]]]:
    """Returns the rows of metrics.csv; an empty list if it does not exist.

    Raises:
      OutputError: If it is damaged.
    """
    path = self.path / _METRICS
    with self._naming(_METRICS):
      return records.parse_csv(path.read_text('utf-8')) if path.exists() else []

  def write_result(self, result: dict[str, Any]) -> None:
    """Writes result.json, which marks the run as finished."""
    files.write_json(self.path / _RESULT, result)
    files.remove(self.path / _RUNNING)

  def read_result(self) -> Optional[dict[str, Any]]:
    """Returns result.json, or None if the run is not finished.

    Raises:
      OutputError: If it is damaged.
    """
    if not (self.path / _RESULT).exists():
      return None
    found = files.read_json(self.path / _RESULT)
    with self._naming(_RESULT):
      records.check_result(found)
    return found

  def read_finished(self) -> tuple[records.Recorded, list, dict[str, Any]]:
    """Returns config.json, the rows of metrics.csv and result.json of a run.

    Raises:
      OutputError: If the run is not finished, a file is damaged, or files
        contradict each other.
    """
    result = self.read_result()
    if result is None:
      raise errors.OutputError(
        f'{self.path} must hold a finished run. Found no result.json.'
      )
    config = self.read_config()
    with self._naming(_RESULT):
      records.check_fit(config, result)
    rows = self.read_metrics()
    if not rows or rows[-1]['round'] != result['rounds']:
      raise errors.OutputError(
        f'{self.path / _METRICS} must end with round {result["rounds"]}, as'
        f' {_RESULT} says. It does not.'
      )
    return config, rows, result
