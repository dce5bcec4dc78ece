"""Makes runs as parallel processes of `scripts.train`, and shows progress.

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
import shlex
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
# After so long, a sign of life is due.
SECONDS_OF_SILENCE = 60
_LOG_LINES = 5
_PR_SET_PDEATHSIG = 1


def say(text: str) -> None:
  """Prints to stderr."""
  print(text, file=sys.stderr, flush=True)


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

  @property
  def run(self) -> outputs.RunFolder:
    return outputs.RunFolder(self.folder)

  def prepare(self) -> None:
    """Writes the file of the spec."""
    # Names and contents hold what epsilon does not cover.
    self.folder.parent.mkdir(0o700, parents=True, exist_ok=True)
    files.write_json(self.config, self.spec.as_json())

  def is_finished(self) -> bool:
    """Returns whether the run has ended and was tested, if it should be."""
    result = self.run.read_result()
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


def _start(
  job: Job, log: pathlib.Path, slot: slots_lib.Slot
) -> subprocess.Popen:
  """Starts a job's process in its own slot."""
  job.prepare()
  environment = slot.environment(os.environ)
  # The paths of Bazel and of pda-fed are only in sys.path. With -P, a folder
  # `scripts` in the working directory is not taken for ours.
  paths = [os.path.abspath(path) for path in sys.path]
  environment['PYTHONPATH'] = os.pathsep.join(paths)
  with open(log, 'w') as output, _affinity(slot.cores):
    return subprocess.Popen(
      [sys.executable, '-P', '-m', _PROGRAM, *job.arguments],
      stdin=subprocess.DEVNULL,
      stdout=output,
      stderr=subprocess.STDOUT,
      env=environment,
      # Only this process gets Ctrl-C; it then stops the jobs.
      start_new_session=True,
      preexec_fn=_end_with_parent,
    )


# Called with the running jobs and the jobs that have ended.
ChangeFn = Callable[[Sequence[Job], Sequence[Job]], None]


def _gpus_for(jobs: Sequence[Job]) -> tuple[str, ...]:
  """Returns the GPUs for jobs: none if no job uses JAX on a GPU."""
  found = [job.spec.execution for job in jobs]
  may_use = any(e.engine == 'jax' and e.platform != 'cpu' for e in found)
  return slots_lib.gpus() if may_use else ()


def run_jobs(
  jobs: Sequence[Job],
  log_dir: os.PathLike | str,
  *,
  num_processes: int = 0,
  gpus: Optional[Sequence[str]] = None,
  on_change: ChangeFn = lambda running, ended: None,
) -> list[Failure]:
  """Runs all jobs in parallel processes; a failure does not stop other jobs.

  Args:
    jobs: The jobs, in the order in which to start them.
    log_dir: The folder of the jobs' logs.
    num_processes: See `slots.make`.
    gpus: GPUs for the jobs; by default those that they can use.
    on_change: Called regularly, for progress.

  Returns:
    The jobs that failed.

  Raises:
    StoppedError: If SIGINT or SIGTERM arrived. All processes have saved and
      ended.
    ValueError: If `num_processes` is negative.
  """
  validate.integers(0, num_processes=num_processes)
  log_dir = pathlib.Path(log_dir)
  # Logs show what epsilon does not cover.
  log_dir.mkdir(0o700, parents=True, exist_ok=True)
  cores = sorted(os.sched_getaffinity(0))
  gpus = _gpus_for(jobs) if gpus is None else gpus
  free = slots_lib.make(num_processes, len(jobs), cores, gpus)
  waiting, ended, failures = list(jobs), list[Job](), list[Failure]()
  running: dict[subprocess.Popen, tuple[Job, pathlib.Path, slots_lib.Slot]] = {}
  with signals.StopSignals() as stop:
    try:
      while waiting or running:
        while waiting and free:
          job, slot = waiting.pop(0), free.pop(0)
          log = log_dir / f'{job.name}.log'
          running[_start(job, log, slot)] = job, log, slot
        on_change([job for job, *_ in running.values()], ended)
        time.sleep(_POLL_SECONDS)
        for process in [p for p in running if p.poll() is not None]:
          job, log, slot = running.pop(process)
          free.append(slot)
          ended.append(job)
          if process.returncode:
            lines = log.read_text(errors='replace').splitlines()
            last = '\n'.join(lines[-_LOG_LINES:])
            failures.append(Failure(job, process.returncode, log, last))
        if stop.signum is not None:
          for process in running:
            process.terminate()
          for process in running:
            process.wait()
          stop.raise_if_stopped(
            'all runs are saved. The same command resumes them.'
          )
    finally:
      for process in running:
        process.kill()  # Does nothing to a process that has ended.
        process.wait()
  on_change([], ended)
  return failures


def _newest(job: Job) -> str:
  """Returns a run's newest round and metric."""
  rows = job.run.read_metrics()
  last = rows[-1] if rows else {}
  text = f'round {last["round"]}' if last else 'starts'
  if last.get('loss') is not None:
    text += f', loss {last["loss"]:.3f}'
  elif last.get('accuracy') is not None:
    text += f', accuracy {last["accuracy"]:.1%}'
  return f'{job.name}: {text}'


class _Progress:
  """Tells of each run that has ended, and every minute of those that run."""

  def __init__(self, total: int, on_end: Callable[[Job], None]):
    self._total = total
    self._on_end = on_end
    self._told = 0
    self._spoke = time.monotonic()

  def __call__(self, running: Sequence[Job], ended: Sequence[Job]) -> None:
    lines = []
    for job in ended[self._told :]:
      self._told += 1
      lines.append(f'[{self._told}/{self._total}] {_newest(job)}')
      self._on_end(job)
    if running and time.monotonic() - self._spoke > SECONDS_OF_SILENCE:
      lines.append('  '.join(map(_newest, running)))
    if lines:
      self._spoke = time.monotonic()
      say('\n'.join(lines))


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

  def run(
    self,
    jobs: Sequence[Job],
    log_dir: pathlib.Path,
    on_end: Callable[[Job], None] = lambda job: None,
  ) -> list[Failure]:
    """Makes runs, shows progress, and prints those that failed.

    Args:
      jobs: The runs; finished ones are left out.
      log_dir: Folder of the runs' logs.
      on_end: Called with each run that has ended.

    Returns:
      The runs that failed.

    Raises:
      SystemExit: After `only_prints`.
    """
    unfinished = [
      dataclasses.replace(job, options=(*job.options, *self.options))
      for job in jobs
      if not job.is_finished()
    ]
    if self.only_prints:
      for job in unfinished:
        job.prepare()
        print(shlex.join(job.arguments))
      sys.exit(0)
    failures = run_jobs(
      unfinished,
      log_dir,
      num_processes=self.num_processes,
      on_change=_Progress(len(unfinished), on_end),
    )
    for failure in failures:
      say(
        f'{failure.job.name} failed with exit code {failure.exit_code}'
        f' ({failure.log}):\n{failure.last_lines}'
      )
    return failures
