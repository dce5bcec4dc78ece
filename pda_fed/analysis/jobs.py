"""Runs as processes side by side: those of a comparison or a sweep.

A job is a command and the folder that it writes. Which program it is does not
matter here, as long as it goes on with a folder that it has left, skips one
that is finished, and saves and ends on SIGTERM.
"""

from collections.abc import Callable, Sequence
import contextlib
import ctypes
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Optional

from pda_fed.common import signals
from pda_fed.common import validate

_POLL_SECONDS = 0.2
_LOG_LINES = 5
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Job:
  """A run to be done.

  Attributes:
    name: Of the log.
    module: A program, as `python -m` takes it.
    arguments: Of the program.
    folder: What it writes.
  """

  name: str
  module: str
  arguments: tuple[str, ...]
  folder: pathlib.Path


@dataclasses.dataclass(frozen=True)
class Failure:
  """A job that did not succeed.

  Attributes:
    job: The job.
    exit_code: Of its process.
    log: Where its output is.
    last_lines: The end of it.
  """

  job: Job
  exit_code: int
  log: pathlib.Path
  last_lines: str


class _Process:
  """A job's process, on cores of its own."""

  def __init__(self, job: Job, log: pathlib.Path, cores: frozenset[int]):
    self.job = job
    self.log = log
    self.cores = cores
    environment = dict(os.environ)
    # Bazel's paths are in sys.path alone.
    paths = [os.path.abspath(path) for path in sys.path]
    environment['PYTHONPATH'] = os.pathsep.join(paths)
    with open(log, 'w') as output, _affinity(cores):
      self._process = subprocess.Popen(
        [sys.executable, '-m', job.module, *job.arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        # Ctrl-C comes to us, and we tell them.
        start_new_session=True,
        preexec_fn=_end_with_parent,
      )

  def poll(self) -> Optional[int]:
    return self._process.poll()

  def stop(self) -> None:
    self._process.terminate()

  def kill(self) -> None:
    if self._process.poll() is None:
      self._process.kill()
    self._process.wait()

  def failure(self) -> Failure:
    lines = self.log.read_text(errors='replace').splitlines()
    return Failure(
      self.job,
      self._process.returncode,
      self.log,
      '\n'.join(lines[-_LOG_LINES:]),
    )


def _end_with_parent() -> None:
  """Asks Linux to stop this process, which saves, when its parent dies."""
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def _affinity(cores: frozenset[int]):
  """What is started in the block sees these cores alone."""
  before = os.sched_getaffinity(0)
  os.sched_setaffinity(0, cores)
  try:
    yield
  finally:
    os.sched_setaffinity(0, before)


def _shares(num_processes: int) -> list[frozenset[int]]:
  """The cores of each process: shared out, or all for all if too few."""
  cores = sorted(os.sched_getaffinity(0))
  if num_processes > len(cores):
    return [frozenset(cores)] * num_processes
  return [frozenset(cores[i::num_processes]) for i in range(num_processes)]


# Called with the jobs that run, and with those that have ended.
ChangeFn = Callable[[Sequence[Job], Sequence[Job]], None]


def run_jobs(
  jobs: Sequence[Job],
  log_dir: os.PathLike,
  *,
  num_processes: int = 0,
  on_change: Optional[ChangeFn] = None,
) -> list[Failure]:
  """Runs all jobs, some at a time; one that fails stops no other.

  Args:
    jobs: In the order in which they are started.
    log_dir: Where the jobs' output goes.
    num_processes: How many at a time; 0 takes one for each core.
    on_change: Called now and then, for progress.

  Returns:
    The jobs that failed.

  Raises:
    StoppedError: If SIGINT or SIGTERM came; all processes have saved and ended.
    ValueError: If `num_processes` is negative.
  """
  validate.integers(0, num_processes=num_processes)
  num_processes = num_processes or len(os.sched_getaffinity(0))
  log_dir = pathlib.Path(log_dir)
  log_dir.mkdir(parents=True, exist_ok=True)
  waiting = list(jobs)
  free = _shares(min(num_processes, max(len(waiting), 1)))
  running: list[_Process] = []
  ended: list[Job] = []
  failures = []
  with signals.StopSignals() as stop:
    try:
      while waiting or running:
        while waiting and free:
          job = waiting.pop(0)
          log = log_dir / f'{job.name}.log'
          running.append(_Process(job, log, free.pop(0)))
        if on_change is not None:
          on_change([p.job for p in running], ended)
        time.sleep(_POLL_SECONDS)
        for process in [p for p in running if p.poll() is not None]:
          running.remove(process)
          free.append(process.cores)
          ended.append(process.job)
          if process.poll() != 0:
            failures.append(process.failure())
        if stop.signum is not None:
          _stop_all(running)
          stop.raise_if_stopped(
            'all runs are saved. The same command goes on with them.'
          )
    finally:
      for process in running:
        process.kill()
  if on_change is not None:
    on_change([], ended)
  return failures


def _stop_all(running: Sequence[_Process]) -> None:
  for process in running:
    process.stop()
  while any(process.poll() is None for process in running):
    time.sleep(_POLL_SECONDS)
