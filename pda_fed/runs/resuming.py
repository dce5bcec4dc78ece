"""What a resume may do: which run a folder takes, and what was run before.

A killed run may have run rounds after its checkpoint, and someone may have seen
them. A mark in the folder tells a run that was stopped, saved, from one that
was killed, so that rounds are only repeated as they were.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import json
import os
import pathlib
import re
from typing import Any, Optional

from pda_fed import errors
from pda_fed import privacy
from pda_fed.common import files
from pda_fed.common import seal
from pda_fed.common import typed
from pda_fed.runs import checkpoints
from pda_fed.runs import outputs
from pda_fed.runs import records
from pda_fed.runs import resolving
from pda_fed.runs.engines import base as engine_lib

_SEEDS = 'secret_seeds.json'
_LOCK = '.lock'
# Files that a folder without a run may contain: our lock, and leftovers of
# killed writers.
_HARMLESS = re.compile(
  rf'{re.escape(_LOCK)}|\.{re.escape(outputs.CONFIG)}\.tmp-\d+'
)


@contextlib.contextmanager
def opened(
  path: os.PathLike | str, run: resolving.Run
) -> Iterator[outputs.RunFolder]:
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
  folder, is_secret = (
    outputs.RunFolder(pathlib.Path(path)),
    run.spec.seed is None,
  )
  check(folder, run)
  # Files of a run without a seed may hold what epsilon does not cover.
  folder.path.mkdir(0o700 if is_secret else 0o777, parents=True, exist_ok=True)
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(files.locked(folder.path / _LOCK))
    except BlockingIOError as e:
      raise errors.BusyError(
        f'Another process is running the experiment in {path}.'
      ) from e
    check(folder, run)  # Again: another process may just have ended.
    # Only after the check: files of an unrelated folder must not be removed.
    files.remove_temporaries(folder.path)
    if folder.is_new():
      if is_secret:
        _make_private(folder.path)
      files.remove(folder.path / _SEEDS)
      folder.write_config(run)
    yield folder


def _make_private(path: pathlib.Path) -> None:
  try:
    path.chmod(0o700)  # It may have existed before.
  except PermissionError as e:
    raise errors.OutputError(
      f'output_dir {path} must belong to you, so that only you can read a run'
      ' without a seed. Give a folder that does not exist yet.'
    ) from e


def check(folder: outputs.RunFolder, run: resolving.Run) -> None:
  """Raises unless a folder is free or holds this run; writes nothing.

  Args:
    folder: The folder.
    run: The run.

  Raises:
    OutputError: If the folder holds something else, or a run with different
      settings.
  """
  path = folder.path
  if not path.exists():
    return
  if not path.is_dir():
    raise errors.OutputError(f'output_dir {path} is not a folder.')
  if not (path / outputs.CONFIG).exists():
    names = [p.name for p in path.iterdir()]
    strangers = [n for n in names if not _HARMLESS.fullmatch(n)]
    if strangers:
      raise errors.OutputError(
        f'output_dir {path} must be empty or hold this experiment. Found'
        f' {", ".join(sorted(strangers)[:5])}.'
      )
    return
  old = folder.read_config().settings
  new = json.loads(json.dumps(run.settings()))
  lines = typed.differences(old, new)
  if lines and not folder.is_new():
    advice = 'Use the same settings again, or another --output_dir'
    if old['noise_version'] != new['noise_version']:
      advice = 'This version draws other noise: use another --output_dir'
    raise errors.OutputError(
      f'{path} holds a run with other settings: {"; ".join(lines)}. {advice}.'
    )


def _saved(folder: outputs.RunFolder) -> checkpoints.Checkpoints:
  return checkpoints.Checkpoints(folder.checkpoints_path)


def _read_mark(folder: outputs.RunFolder) -> Optional[records.Running]:
  return folder.read(outputs.RUNNING, records.Running)


def _write_mark(folder: outputs.RunFolder, until: int, seen: int) -> None:
  mark = records.Running(until, seen)
  files.write_json(folder.path / outputs.RUNNING, dataclasses.asdict(mark))


def check_order(folder: outputs.RunFolder, order: dict[str, Any]) -> None:
  """Raises if rounds may be repeated with sums in a different order.

  Repeated in a different order, rounds would have the same noise but different
  last digits: the difference between the two has no noise.

  Args:
    folder: The folder.
    order: The result of `engine.Engine.order_of_sums`.

  Raises:
    OutputError: If the run was killed and had a different order.
  """
  before = folder.read_config().order_of_sums
  if before == order:
    return
  last, mark = _saved(folder).last_round(), _read_mark(folder)
  was_killed = last is not None and (mark is None or mark.seen > last)
  if before is not None and was_killed:
    lines = typed.differences(before, order)
    raise errors.OutputError(
      f'The run in {folder.path} was killed: rounds after {last} may have been'
      f' run, and must be repeated with sums in the same order. Found'
      f' {"; ".join(lines)}. Resume with the old values, given as flags of'
      ' these names. They may change after a stop by Ctrl-C or SIGTERM.'
    )
  write_order(folder, order)


def write_order(folder: outputs.RunFolder, order: dict[str, Any]) -> None:
  """Records the order of sums of the following rounds."""
  _change_config(folder, order_of_sums=order)


def _change_config(folder: outputs.RunFolder, **changes: Any) -> None:
  config = dataclasses.replace(folder.read_config(), **changes)
  files.write_json(folder.path / outputs.CONFIG, typed.as_json(config))


def mark_stopped(folder: outputs.RunFolder, round_num: int) -> None:
  """Records that this process ran no round after one, which is saved.

  A process before it, which was killed, may have.

  Args:
    folder: The folder.
    round_num: The number of rounds done.
  """
  mark = _read_mark(folder)
  _write_mark(folder, round_num, 0 if mark is None else mark.seen_before)


def mark_running(folder: outputs.RunFolder, done: int, until: int) -> None:
  """Records that rounds are running: before the first, and after each save.

  Args:
    folder: The folder.
    done: The number of rounds that are done and saved.
    until: The round of the next save.
  """
  seen = 0
  if not folder.is_new():
    mark = _read_mark(folder)
    # Without a mark, nobody knows what was run.
    seen = until if mark is None else mark.seen
  seen = seen if seen > done else 0
  _write_mark(folder, max(until, seen), seen)


def mark_diverged(folder: outputs.RunFolder, round_num: int) -> None:
  """Records that the model diverged. The run has then ended.

  Args:
    folder: The folder.
    round_num: The number of rounds done.
  """
  files.write_json(folder.path / outputs.DIVERGED, {'round': round_num})


def seeds(
  folder: outputs.RunFolder,
  seed: Optional[int],
  new_seeds: Callable[[], privacy.SeedStreams] = privacy.SeedStreams,
) -> privacy.SeedStreams:
  """Returns the seeds of a run.

  A run without a seed draws secret seeds and keeps them in a file until it
  ends. It needs them to resume: repeating a round with fresh noise would be a
  second look at the same users.

  Args:
    folder: The run's folder.
    seed: The run's seed, or None.
    new_seeds: Makes secret seeds.

  Raises:
    OutputError: If the secret seeds are damaged or missing, or the run has
      ended.
  """
  if seed is not None:
    return privacy.SeedStreams(seed)
  if folder.is_finished():
    forget_seeds(folder)  # The run may have been killed before it did this.
    raise errors.OutputError(
      f'The run in {folder.path} had no seed and ended without a test. Its'
      ' secret seeds were removed, so it cannot be resumed. Its weights are in'
      f' {folder.checkpoints_path}.'
    )
  path = folder.path / _SEEDS
  if path.exists():
    found = files.read_json(path)
    with folder.naming(_SEEDS):
      if isinstance(found, dict):
        found = seal.unseal(found)
      return privacy.SeedStreams.from_dict(found)
  if not folder.is_new():
    raise errors.OutputError(
      f'{path} is missing. Without it the run cannot resume with the same'
      ' noise. Start a new run in another --output_dir.'
    )
  streams = new_seeds()
  if streams.nonce:
    # Before the seeds: without them, a run that is killed here starts over.
    _change_config(folder, noise=streams.statement())
  # Sealed: a damaged seed would repeat rounds with different noise.
  files.write_json(path, seal.seal(streams.as_dict()), mode=0o600)
  return streams


def forget_seeds(folder: outputs.RunFolder) -> None:
  """Removes the seeds of a finished run, and state derived from them."""
  if folder.read_config().seed is None:
    _saved(folder).drop(f'{engine_lib.SECRET}/')
  files.remove(folder.path / _SEEDS)
