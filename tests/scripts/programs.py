"""Runs our programs inside the test's process, or as processes."""

import contextlib
import dataclasses
import io
import os
import pathlib
import runpy
import subprocess
import sys
from unittest import mock
import warnings

from absl import app
from absl import flags
from absl.testing import flagsaver
from pda_fed.compare import jobs as jobs_lib

# Their flags stay defined; those of a program are removed after each run.
from scripts.lib import cli  # noqa: F401
from scripts.lib import host_flags  # noqa: F401
from scripts.lib import spec_flags  # noqa: F401

ROOT = pathlib.Path(__file__).parents[2]
app.define_help_flags()
_SHARED = set(flags.FLAGS)


@dataclasses.dataclass
class Done:
  """A program that has ended.

  Attributes:
    code: Its exit code.
    out: What it printed.
    err: What it printed to stderr.
  """

  code: int
  out: str
  err: str

  @property
  def error(self) -> str:
    """The one line of an error."""
    lines = [n for n in self.err.splitlines() if n.startswith('error: ')]
    assert len(lines) == 1, self.err
    assert 'Traceback' not in self.err
    return lines[0].removeprefix('error: ')


@contextlib.contextmanager
def _own_flags():
  """Hides the flags of another program that runs this one, and their values."""
  hidden = {n: flags.FLAGS[n] for n in set(flags.FLAGS) - _SHARED}
  for name in hidden:
    delattr(flags.FLAGS, name)
  with flagsaver.flagsaver():
    for name in flags.FLAGS:
      flags.FLAGS[name].unparse()
    yield
  for name, flag in hidden.items():
    flags.FLAGS[name] = flag


def run(program: str | pathlib.Path, *words) -> Done:
  """Runs a program of scripts/ in this process, and the runs that it makes.

  Args:
    program: Its name, without scripts; or the path of another program.
    *words: Its command line.
  """
  out, err, code = io.StringIO(), io.StringIO(), 0
  with contextlib.ExitStack() as stack:
    stack.enter_context(_own_flags())
    stack.enter_context(warnings.catch_warnings())
    stack.enter_context(contextlib.redirect_stdout(out))
    stack.enter_context(contextlib.redirect_stderr(err))
    argv = [str(program), *map(str, words)]
    stack.enter_context(mock.patch.object(sys, 'argv', argv))
    stack.enter_context(mock.patch.object(jobs_lib, 'run_jobs', _run_jobs))
    try:
      if isinstance(program, pathlib.Path):
        runpy.run_path(str(program), run_name='__main__')
      else:
        runpy.run_module(f'scripts.{program}', run_name='__main__')
    except SystemExit as e:
      code = e.code or 0
  return Done(code, out.getvalue(), err.getvalue())


def _run_jobs(jobs, log_dir, *, on_change=None, **_):
  """Stands for `jobs.run_jobs`: one run after another, in this process."""
  log_dir.mkdir(parents=True, exist_ok=True)
  ended, failures = [], []
  for job in jobs:
    job.prepare()
    done = run('train', *job.arguments)
    log = log_dir / f'{job.name}.log'
    log.write_text(done.out + done.err)
    ended.append(job)
    if done.code:
      last = '\n'.join(done.err.splitlines()[-5:])
      failures.append(jobs_lib.Failure(job, done.code, log, last))
    if on_change is not None:
      on_change([], ended)
  return failures


def command(program: str, *words) -> list[str]:
  """Returns the words of a shell that start a program."""
  return [sys.executable, '-m', f'scripts.{program}', *map(str, words)]


def start(program: str, *words, **environment) -> Done:
  """Runs a program as a process of its own, for its signals and its start.

  Args:
    program: Its name, without scripts.
    *words: Its command line.
    **environment: More variables of its environment.
  """
  done = subprocess.run(
    command(program, *words),
    cwd=ROOT,
    env={**os.environ, **environment},
    capture_output=True,
    text=True,
    timeout=600,  # Of a machine that is busy.
    check=False,
  )
  return Done(done.returncode, done.stdout, done.stderr)
