"""Makes runs in parallel, and shows how they get on."""

from collections.abc import Callable, Sequence
import dataclasses
import os
import pathlib
import shlex
import sys
import time
from typing import Optional

from pda_fed.compare import jobs
from pda_fed.compare import slots
from pda_fed.runs import outputs

try:
  import tqdm
except ImportError:  # Optional: print lines instead of a bar.
  tqdm = None

_SECONDS_OF_SILENCE = 60
# Width of the terminal if it is unknown.
_COLUMNS = 80
# Without a height, tqdm shows no bar on a terminal that reports 0.
_ROWS = 20


def say(text: str) -> None:
  """Prints to stderr, above a progress bar if there is one."""
  if tqdm is None:
    print(text, file=sys.stderr, flush=True)
  else:
    tqdm.tqdm.write(text, file=sys.stderr)


def _columns() -> int:
  """Returns the width of the terminal, with a default if unknown."""
  try:
    found = os.get_terminal_size(sys.stderr.fileno()).columns
  except (OSError, ValueError):
    found = 0
  return found if found > 0 else _COLUMNS


def _newest(folder: pathlib.Path) -> str:
  """Returns a run's newest round and metric."""
  rows = outputs.RunFolder(folder).read_metrics()
  if not rows:
    return 'starts'
  last = rows[-1]
  text = f'round {last["round"]}'
  if last.get('loss') is not None:
    text += f', loss {last["loss"]:.3f}'
  elif last.get('accuracy') is not None:
    text += f', accuracy {last["accuracy"]:.1%}'
  return text


class _Progress:
  """A bar on a terminal; otherwise a line for each run that has ended.

  Without a bar, it also prints a line every minute.
  """

  def __init__(self, total: int):
    self._bar = None
    if tqdm is not None and sys.stderr.isatty():
      self._bar = tqdm.tqdm(
        total=total,
        unit=' runs',
        leave=False,
        ncols=_columns(),
        nrows=_ROWS,
      )
    self._total = total
    self._told = 0
    self._spoke = time.monotonic()

  def __call__(self, running, ended) -> None:
    for job in ended[self._told :]:
      self._told += 1
      say(f'[{self._told}/{self._total}] {job.name}: {_newest(job.folder)}')
      self._spoke = time.monotonic()
    is_due = time.monotonic() - self._spoke > _SECONDS_OF_SILENCE
    if self._bar is None and not (is_due and running):
      return
    parts = [f'{job.name}: {_newest(job.folder)}' for job in running]
    if self._bar is None:
      self._spoke = time.monotonic()
      say('  '.join(parts))
    else:
      self._bar.ncols = _columns()
      self._bar.set_postfix_str('  '.join(parts), refresh=False)
      self._bar.update(len(ended) - self._bar.n)
      self._bar.refresh()

  def close(self) -> None:
    if self._bar is not None:
      self._bar.close()


def gpus_for(some_jobs: Sequence[jobs.Job]) -> tuple[str, ...]:
  """Returns the GPUs for jobs: none if no job uses JAX on a GPU."""
  found = [job.spec.execution for job in some_jobs]
  may_use = any(e.engine == 'jax' and e.platform != 'cpu' for e in found)
  return slots.gpus() if may_use else ()


@dataclasses.dataclass(frozen=True)
class Runner:
  """How runs are made.

  Attributes:
    num_processes: Number of runs at a time; 0 for one per GPU or core.
    only_prints: Whether to print the flags of unfinished runs, for a cluster,
      instead of making them.
    options: More flags of scripts.train for all runs.
  """

  num_processes: int = 0
  only_prints: bool = False
  options: tuple[str, ...] = ()

  def job(self, name: str, spec, folder: pathlib.Path, *options: str):
    """Returns the job of a spec."""
    return jobs.Job(name, spec, folder, (*options, *self.options))

  def run(
    self,
    all_jobs: Sequence[jobs.Job],
    log_dir: pathlib.Path,
    on_change: Optional[Callable] = None,
  ) -> list[jobs.Failure]:
    """Makes runs, shows progress, and prints those that failed.

    Args:
      all_jobs: The runs.
      log_dir: Folder of the runs' logs.
      on_change: Called in addition to the progress; see `jobs.run_jobs`.

    Returns:
      The runs that failed.

    Raises:
      SystemExit: After `only_prints`.
    """
    if self.only_prints:
      for job in all_jobs:
        if not job.is_finished():
          job.prepare()
          print(shlex.join(job.arguments))
      sys.exit(0)
    progress = _Progress(len(all_jobs))

    def changed(running, ended) -> None:
      progress(running, ended)
      if on_change is not None:
        on_change(running, ended)

    try:
      failures = jobs.run_jobs(
        all_jobs,
        log_dir,
        num_processes=self.num_processes,
        gpus=gpus_for(all_jobs),
        on_change=changed,
      )
    finally:
      progress.close()
    for failure in failures:
      print(
        f'{failure.job.name} failed with exit code {failure.exit_code}'
        f' ({failure.log}):\n{failure.last_lines}',
        file=sys.stderr,
      )
    return failures
