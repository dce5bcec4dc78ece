"""Tries the flags of runs before the first of them starts."""

from collections.abc import Sequence
import dataclasses
import pathlib
import tempfile

from pda_fed.analysis import jobs
from scripts.lib import job_flags
from scripts.lib import sharing

_ERROR = 'error: '
_WARNING = 'warning: '


def check(some_jobs: Sequence[jobs.Job]) -> None:
  """Makes a dry run of jobs, side by side, and shows the first one's plan.

  Nothing is written to the folders of jobs. Training binaries of others may not
  know --dry_run: of theirs nothing is tried.

  Args:
    some_jobs: One of each kind: of each method, for example.

  Raises:
    ValueError: If one is refused, with what it says: a flag that is not known,
      data that are not there, or a folder of other settings; or if one is to
      be spread over hosts.
  """
  for job in some_jobs:
    sharing.refuse_distributed(job.arguments)
  if job_flags.is_printing() or not job_flags.module().startswith('scripts.'):
    return
  try_all(some_jobs)


def try_all(some_jobs: Sequence[jobs.Job]) -> None:
  """See `check`; for any binary that knows --dry_run."""
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
  """What a program said before it ended."""
  lines = log.splitlines()
  said = [line for line in lines if line.startswith(_ERROR)]
  if said:
    return f'{name}: {said[-1].removeprefix(_ERROR)}'
  return f'{name}: ' + '\n'.join([f'exit code {exit_code}.', *lines[-1:]])


def _show(logs: dict[str, str]) -> None:
  """Shows the first plan, and what only others warn of."""
  (name, first), *others = logs.items()
  job_flags.say(f'{name}:\n{first.rstrip()}')
  told = set(first.splitlines())
  for other, log in others:
    for line in log.splitlines():
      if line.startswith(_WARNING) and line not in told:
        told.add(line)
        job_flags.say(f'{other}: {line}')
