"""Runs jobs of a comparison or a sweep as parallel processes.

A job is a command and its output folder. The program can be any that resumes an
unfinished folder, skips a finished one, and saves and ends on SIGTERM.

Each process has its own cores and a GPU, if there is one (`slots`). Several
hosts with the same jobs can share them (`claims`).
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

from pda_fed.analysis import claims as claims_lib
from pda_fed.analysis import slots as slots_lib
from pda_fed.common import files
from pda_fed.common import signals
from pda_fed.common import validate

_POLL_SECONDS = 0.2
_LOG_LINES = 5
_PR_SET_PDEATHSIG = 1
# Locked by the process that writes a run's folder; see `outputs.RunFolder`.
_LOCK = '.lock'
# Seconds within which a process saves its run after its parent was killed.
_SECONDS_TO_SAVE = 60
# Seconds after which a shared file system must show a file on all hosts.
_SECONDS_TO_APPEAR = 120
_SECONDS_BETWEEN_CHECKS = 5


@dataclasses.dataclass(frozen=True)
class Job:
  """A command to run.

  Attributes:
    name: The name of the job and of its log.
    module: The program's module, for `python -m`.
    arguments: The program's arguments.
    folder: The output folder.
  """

  name: str
  module: str
  arguments: tuple[str, ...]
  folder: pathlib.Path


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
    self.job = job
    self.log = log
    self.slot = slot
    self.is_stopped = False
    environment = slot.environment(os.environ)
    # The paths of Bazel and of pda-fed are only in sys.path. With -P, a folder
    # `scripts` in the working directory is not taken for ours.
    paths = [os.path.abspath(path) for path in sys.path]
    environment['PYTHONPATH'] = os.pathsep.join(paths)
    with open(log, 'w') as output, _affinity(slot.cores):
      self._process = subprocess.Popen(
        [sys.executable, '-P', '-m', job.module, *job.arguments],
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
    self.is_stopped = True
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


class _Sharing:
  """Coordinates jobs with other hosts; does nothing without claims."""

  def __init__(self, claims: Optional[claims_lib.Claims]):
    self._claims = claims
    # When waiting started, by job and timeout.
    self._since: dict[tuple[Job, float], float] = {}

  def _key(self, job: Job) -> str:
    return self._claims.key(job.folder)

  def _waited(self, job: Job, seconds: float) -> bool:
    now = time.monotonic()
    return now - self._since.setdefault((job, seconds), now) > seconds

  def take(self, job: Job) -> bool:
    """Returns whether this process may start a job now."""
    if self._claims is None:
      return True
    if not self._claims.take(self._key(job)):
      return False
    # Check the folder's lock only after claiming the job: locking it briefly
    # must not disturb the process of another holder.
    return _is_left(job) or self._waited(job, _SECONDS_TO_SAVE)

  def has(self, job: Job) -> bool:
    return self._claims is None or self._claims.has(self._key(job))

  def release(self, job: Job) -> None:
    if self._claims is not None:
      self._claims.release(self._key(job))

  def tell(self, job: Job, exit_code: int, last_lines: str) -> None:
    if self._claims is not None:
      names = os.listdir(job.folder) if job.folder.is_dir() else []
      outcome = claims_lib.Outcome(exit_code, last_lines, tuple(sorted(names)))
      self._claims.finish(self._key(job), outcome)

  def outcome(self, job: Job) -> Optional[claims_lib.Outcome]:
    """Returns how a job ended elsewhere, once its files are visible here."""
    if self._claims is None:
      return None
    found = self._claims.outcome(self._key(job))
    if found is None or all((job.folder / n).exists() for n in found.names):
      return found
    return found if self._waited(job, _SECONDS_TO_APPEAR) else None

  def elsewhere(self, jobs: Sequence[Job]) -> list[Job]:
    """Returns the jobs that run on other hosts, with the host in the name."""
    if self._claims is None:
      return []
    hosts = [(job, self._claims.host_of(self._key(job))) for job in jobs]
    return [
      dataclasses.replace(job, name=f'{job.name} on {host}')
      for job, host in hosts
      if host is not None
    ]


def _is_left(job: Job) -> bool:
  """Returns whether no process is using a job's folder."""
  lock = job.folder / _LOCK
  try:
    if lock.exists():
      with files.locked(lock):
        pass
  except BlockingIOError:
    return False
  except OSError:
    pass  # The job itself will report what is wrong.
  return True


# Called with the running jobs and the jobs that have ended.
ChangeFn = Callable[[Sequence[Job], Sequence[Job]], None]


class _Runner:
  """The jobs of one `run_jobs` call, and their states."""

  def __init__(
    self,
    jobs: Sequence[Job],
    log_dir: pathlib.Path,
    slots: Sequence[slots_lib.Slot],
    sharing: _Sharing,
  ):
    self.running: list[_Process] = []
    self.ended: list[Job] = []
    self.failures: list[Failure] = []
    self._waiting = list(jobs)
    self._log_dir = log_dir
    self._free = list(slots)
    self._sharing = sharing
    self._checked = time.monotonic()

  def is_done(self) -> bool:
    return not self._waiting and not self.running

  def start(self) -> None:
    """Starts jobs in free slots."""
    for job in list(self._waiting):
      if not self._free:
        return
      if self._sharing.take(job):
        self._waiting.remove(job)
        process = _Process(job, self._log(job), self._free.pop(0))
        self.running.append(process)

  def under_way(self) -> list[Job]:
    here = [process.job for process in self.running]
    return here + self._sharing.elsewhere(self._waiting)

  def collect(self) -> None:
    """Records jobs that have ended, here or elsewhere."""
    for process in [p for p in self.running if p.poll() is not None]:
      self.running.remove(process)
      self._free.append(process.slot)
      if process.is_stopped or not self._sharing.has(process.job):
        self._waiting.append(process.job)  # Another host has taken the job.
        continue
      failure = process.failure() if process.poll() != 0 else None
      last_lines = failure.last_lines if failure is not None else ''
      self._sharing.tell(process.job, process.poll(), last_lines)
      self._end(process.job, failure)
    for job in list(self._waiting):
      found = self._sharing.outcome(job)
      if found is not None:
        self._waiting.remove(job)
        failure = Failure(
          job, found.exit_code, self._log(job), found.last_lines
        )
        self._end(job, failure if found.exit_code != 0 else None)
    self._stop_lost()

  def stop_all(self) -> None:
    for process in self.running:
      process.stop()
    while any(process.poll() is None for process in self.running):
      time.sleep(_POLL_SECONDS)

  def close(self) -> None:
    """Kills all processes and releases the claims of unfinished jobs."""
    for process in self.running:
      process.kill()
      self._sharing.release(process.job)
    for job in self._waiting:
      self._sharing.release(job)

  def _log(self, job: Job) -> pathlib.Path:
    return self._log_dir / f'{job.name}.log'

  def _end(self, job: Job, failure: Optional[Failure]) -> None:
    self.ended.append(job)
    if failure is not None:
      self.failures.append(failure)

  def _stop_lost(self) -> None:
    """Stops jobs that other hosts took over because we were silent."""
    if time.monotonic() - self._checked < _SECONDS_BETWEEN_CHECKS:
      return
    self._checked = time.monotonic()
    for process in self.running:
      if not process.is_stopped and not self._sharing.has(process.job):
        process.stop()


def run_jobs(
  jobs: Sequence[Job],
  log_dir: os.PathLike | str,
  *,
  num_processes: int = 0,
  gpus: Sequence[str] = (),
  claims: Optional[claims_lib.Claims] = None,
  on_change: Optional[ChangeFn] = None,
) -> list[Failure]:
  """Runs all jobs in parallel processes; a failure does not stop other jobs.

  Args:
    jobs: The jobs, in the order in which to start them.
    log_dir: The folder of the jobs' logs.
    num_processes: The number of parallel processes; 0 for one per GPU or,
      without GPUs, one per core.
    gpus: GPUs for the jobs, as returned by `slots.gpus`. Each process sees one.
    claims: Shares the jobs with other processes that have the same jobs. This
      function waits for their jobs, too, and returns their failures. The
      folders of the jobs must differ.
    on_change: Called regularly, for progress. While a job runs on another host,
      its name includes the host.

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
  runner = _Runner(jobs, log_dir, slots, _Sharing(claims))
  with signals.StopSignals() as stop:
    try:
      while not runner.is_done():
        runner.start()
        if on_change is not None:
          on_change(runner.under_way(), runner.ended)
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
