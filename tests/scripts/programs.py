"""Binaries of scripts/ as processes, and a quick training binary for them."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
FAKE = '--binary=tests.scripts.fake_train'


def command(script, *arguments):
  return [sys.executable, '-m', f'scripts.{script}', *arguments]


def run(script, *arguments):
  return subprocess.run(
    command(script, *arguments),
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
