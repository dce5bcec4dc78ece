"""Runs jobs of a comparison as parallel processes of `scripts.train`.

A job is a spec and an output folder. Training resumes an unfinished folder,
skips a finished one, and saves and ends on SIGTERM.

Each process has its own cores and a GPU, if there is one (`slots`).
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

from pda_fed.common import files
from pda_fed.common import signals
from pda_fed.common import validate
from pda_fed.compare import slots as slots_lib
from pda_fed.runs import outputs
from pda_fed.runs import spec as spec_lib

# The program that trains; it is above this package.
_PROGRAM = 'scripts.train'
_POLL_SECONDS = 0.2
_LOG_LINES = 5
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Job:
  """A run to train.

  Attributes:
    name: The name of the job and of its log.
    spec: The settings of the run.
    folder: The output folder.
    options: More flags of scripts.train.
  """

  name: str
  spec: spec_lib.RunSpec
  folder: pathlib.Path
  options: tuple[str, ...] = ()

  @property
  def config(self) -> pathlib.Path:
    """The file of the spec, beside the output folder."""
    return self.folder.parent / f'{self.folder.name}.json'

  @property
  def arguments(self) -> tuple[str, ...]:
    """The flags of scripts.train, once `prepare` has written the spec."""
    places = f'--config={self.config}', f'--output_dir={self.folder}'
    return (*places, *self.options)

  def prepare(self) -> None:
    """Writes the file of the spec."""
    # Names and contents hold what epsilon does not cover.
    self.folder.parent.mkdir(0o700, parents=True, exist_ok=True)
    files.write_json(self.config, self.spec.as_json())

  def is_finished(self) -> bool:
    """Returns whether the run has ended and was tested, if it should be."""
    result = outputs.RunFolder(self.folder).read_result()
    if result is None:
      return False
    return result['test'] is not None or not self.spec.evaluation.final_test


@dataclasses.dataclass(frozen=True)
class Failure:
  """A job that failed.

  Attributes:
    job: The job.
    exit_code: The exit code of its process.
    log: The file with its output.
    last_lines: The last lines of the log.
  """

  job: Job
  exit_code: int
  log: pathlib.Path
  last_lines: str


class _Process:
  """A job's process, in its own slot."""

  def __init__(self, job: Job, log: pathlib.Path, slot: slots_lib.Slot):
    job.prepare()
    self.job = job
    self.log = log
    self.slot = slot
    environment = slot.environment(os.environ)
    # The paths of Bazel and of pda-fed are only in sys.path. With -P, a folder
    # `scripts` in the working directory is not taken for ours.
    paths = [os.path.abspath(path) for path in sys.path]
    environment['PYTHONPATH'] = os.pathsep.join(paths)
    with open(log, 'w') as output, _affinity(slot.cores):
      self._process = subprocess.Popen(
        [sys.executable, '-P', '-m', _PROGRAM, *job.arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        # Only this process gets Ctrl-C; it then stops the jobs.
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
  """Asks Linux to send SIGTERM to this process when its parent dies."""
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def _affinity(cores: frozenset[int]):
  """Restricts processes started in the block to these cores."""
  before = os.sched_getaffinity(0)
  os.sched_setaffinity(0, cores)
  try:
    yield
  finally:
    os.sched_setaffinity(0, before)


# Called with the running jobs and the jobs that have ended.
ChangeFn = Callable[[Sequence[Job], Sequence[Job]], None]


class _Runner:
  """The jobs of one `run_jobs` call, and their states."""

  def __init__(
    self,
    jobs: Sequence[Job],
    log_dir: pathlib.Path,
    slots: Sequence[slots_lib.Slot],
  ):
    self.ended: list[Job] = []
    self.failures: list[Failure] = []
    self._running: list[_Process] = []
    self._waiting = list(jobs)
    self._log_dir = log_dir
    self._free = list(slots)

  @property
  def running(self) -> list[Job]:
    return [process.job for process in self._running]

  def is_done(self) -> bool:
    return not self._waiting and not self._running

  def start(self) -> None:
    """Starts jobs in free slots."""
    while self._waiting and self._free:
      job = self._waiting.pop(0)
      log = self._log_dir / f'{job.name}.log'
      self._running.append(_Process(job, log, self._free.pop(0)))

  def collect(self) -> None:
    """Records jobs that have ended."""
    for process in [p for p in self._running if p.poll() is not None]:
      self._running.remove(process)
      self._free.append(process.slot)
      self.ended.append(process.job)
      if process.poll() != 0:
        self.failures.append(process.failure())

  def stop_all(self) -> None:
    for process in self._running:
      process.stop()
    while any(process.poll() is None for process in self._running):
      time.sleep(_POLL_SECONDS)

  def close(self) -> None:
    """Kills all processes."""
    for process in self._running:
      process.kill()


def run_jobs(
  jobs: Sequence[Job],
  log_dir: os.PathLike | str,
  *,
  num_processes: int = 0,
  gpus: Sequence[str] = (),
  on_change: Optional[ChangeFn] = None,
) -> list[Failure]:
  """Runs all jobs in parallel processes; a failure does not stop other jobs.

  Args:
    jobs: The jobs, in the order in which to start them.
    log_dir: The folder of the jobs' logs.
    num_processes: The number of parallel processes; 0 for one per GPU or,
      without GPUs, one per core.
    gpus: GPUs for the jobs, as returned by `slots.gpus`. Each process sees one.
    on_change: Called regularly, for progress.

  Returns:
    The jobs that failed.

  Raises:
    StoppedError: If SIGINT or SIGTERM arrived. All processes have saved and
      ended.
    ValueError: If `num_processes` is negative.
  """
  validate.integers(0, num_processes=num_processes)
  cores = sorted(os.sched_getaffinity(0))
  log_dir = pathlib.Path(log_dir)
  # Logs show what epsilon does not cover.
  log_dir.mkdir(0o700, parents=True, exist_ok=True)
  slots = slots_lib.make(num_processes, len(jobs), cores, gpus)
  runner = _Runner(jobs, log_dir, slots)
  with signals.StopSignals() as stop:
    try:
      while not runner.is_done():
        runner.start()
        if on_change is not None:
          on_change(runner.running, runner.ended)
        time.sleep(_POLL_SECONDS)
        runner.collect()
        if stop.signum is not None:
          runner.stop_all()
          stop.raise_if_stopped(
            'all runs are saved. The same command resumes them.'
          )
    finally:
      runner.close()
  if on_change is not None:
    on_change([], runner.ended)
  return runner.failures
