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

from absl.testing import flagsaver

# Their flags stay defined; those of a program are removed after each run.
from scripts.lib import cli  # noqa: F401
from scripts.lib import host_flags  # noqa: F401
from scripts.lib import spec_flags  # noqa: F401

ROOT = pathlib.Path(__file__).parents[2]


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
    return lines[0].removeprefix('error: ')


def run(program: str, *words) -> Done:
  """Runs a program of scripts/ in this process.

  Args:
    program: Its name, without scripts.
    *words: Its command line.
  """
  out, err, code = io.StringIO(), io.StringIO(), 0
  with contextlib.ExitStack() as stack:
    stack.enter_context(flagsaver.flagsaver())
    stack.enter_context(warnings.catch_warnings())
    stack.enter_context(contextlib.redirect_stdout(out))
    stack.enter_context(contextlib.redirect_stderr(err))
    argv = [program, *map(str, words)]
    stack.enter_context(mock.patch.object(sys, 'argv', argv))
    try:
      runpy.run_module(f'scripts.{program}', run_name='__main__')
    except SystemExit as e:
      code = e.code or 0
  return Done(code, out.getvalue(), err.getvalue())


def start(program: str, *words, **environment) -> Done:
  """Runs a program as a process of its own, for its signals and its start.

  Args:
    program: Its name, without scripts.
    *words: Its command line.
    **environment: More variables of its environment.
  """
  done = subprocess.run(
    [sys.executable, '-m', f'scripts.{program}', *map(str, words)],
    cwd=ROOT,
    env={**os.environ, **environment},
    capture_output=True,
    text=True,
    timeout=600,  # Of a machine that is busy.
    check=False,
  )
  return Done(done.returncode, done.stdout, done.stderr)
