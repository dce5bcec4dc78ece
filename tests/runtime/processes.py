"""Programs and processes that the tests of the runtime look at."""

import pathlib
import subprocess
import sys
import textwrap
import time

ROOT = pathlib.Path(__file__).parents[2]


def alive(pid: int) -> bool:
  try:
    with open(f'/proc/{pid}/stat', encoding='ascii') as f:
      return f.read().rpartition(')')[2].split()[0] != 'Z'
  except (FileNotFoundError, ProcessLookupError):
    return False


def wait_until(condition, seconds: float) -> bool:
  deadline = time.monotonic() + seconds
  while time.monotonic() < deadline:
    if condition():
      return True
    time.sleep(0.05)
  return condition()


_PRELUDE = """
import os, sys, time
os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
import numpy as np
from pda_fed import runtime
import tensorflow as tf
import tensorflow_federated as tff

@tff.tensorflow.computation(np.float32)
def add_one(x):
  return x + 1

@tff.tensorflow.computation(np.float32)
def slow(x):
  return tf.while_loop(lambda v: v < 1e12, lambda v: [v + 1], [x])[0]
"""


def program(body: str) -> list[str]:
  return [sys.executable, '-c', _PRELUDE + textwrap.dedent(body)]


def run_program(body: str, **options) -> str:
  return subprocess.run(
    program(body),
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
    check=True,
    **options,
  ).stdout
