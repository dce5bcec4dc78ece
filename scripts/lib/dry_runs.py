"""Checks the flags of runs before the first run starts."""

from collections.abc import Sequence
import dataclasses
import pathlib
import tempfile

from pda_fed.compare import jobs
from scripts.lib import job_flags

_ERROR = 'error: '
_WARNING = 'warning: '


def check(some_jobs: Sequence[jobs.Job]) -> None:
  """Makes dry runs of jobs in parallel, and shows the plan of the first.

  Nothing is written to the jobs' folders. Only binaries in scripts/ are
  checked: others may not have --dry_run.

  Args:
    some_jobs: One job of each kind, such as one per method.

  Raises:
    ValueError: If a job fails, with its error message: for example an unknown
      flag, missing data or a folder with other settings. Also if a job has
      --distributed.
  """
  for job in some_jobs:
    job_flags.refuse_distributed(job.arguments)
  if job_flags.is_printing() or not job_flags.module().startswith('scripts.'):
    return
  try_all(some_jobs)


def try_all(some_jobs: Sequence[jobs.Job]) -> None:
  """Does the same as `check`, for any binary that has --dry_run."""
  tried = [
    dataclasses.replace(job, arguments=(*job.arguments, '--dry_run'))
    for job in some_jobs
  ]
  with tempfile.TemporaryDirectory() as folder:
    failures = {f.job.name: f for f in jobs.run_jobs(tried, folder)}
    logs = {
      job.name: (pathlib.Path(folder) / f'{job.name}.log').read_text()
      for job in tried
    }
  for name, failure in failures.items():
    raise ValueError(_refusal(name, logs[name], failure.exit_code))
  if logs:
    _show(logs)


def _refusal(name: str, log: str, exit_code: int) -> str:
  """Returns the error message of a program that failed."""
  lines = log.splitlines()
  said = [line for line in lines if line.startswith(_ERROR)]
  if said:
    return f'{name}: {said[-1].removeprefix(_ERROR)}'
  return f'{name}: ' + '\n'.join([f'exit code {exit_code}.', *lines[-1:]])


def _show(logs: dict[str, str]) -> None:
  """Prints the first plan, and new warnings of the other jobs."""
  (name, first), *others = logs.items()
  job_flags.say(f'{name}:\n{first.rstrip()}')
  told = set(first.splitlines())
  for other, log in others:
    for line in log.splitlines():
      if line.startswith(_WARNING) and line not in told:
        told.add(line)
        job_flags.say(f'{other}: {line}')
