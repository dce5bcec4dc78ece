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

@tff.tensorflow.computation(np.float32)
def fail(x):
  with tf.control_dependencies([tf.debugging.assert_positive(x)]):
    return tf.identity(x)

@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def slow_clients(values):
  return tff.federated_sum(tff.federated_map(slow, values))

@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def fail_clients(values):
  return tff.federated_sum(tff.federated_map(fail, values))

def threads():
  # Whether TensorFlow is busy with what nobody waits for any more.
  before = time.process_time()
  time.sleep(1)
  return 'busy' if time.process_time() - before > 0.5 else 'idle'
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
