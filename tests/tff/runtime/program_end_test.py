"""However a program ends, nothing of it is left, and it ends soon."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

pytestmark = pytest.mark.slow

_ROOT = pathlib.Path(__file__).parents[3]
_PRELUDE = """
import os, sys, time
os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
import numpy as np
from pda_fed.tff import runtime
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
_WITH_BLOCK = """
  with runtime.in_process():
    print(add_one(1.0), flush=True)
    {then}
"""
_DEFAULT = """
  print(add_one(1.0), flush=True)
  {then}
"""
_STYLES = pytest.mark.parametrize(
  'style', [_WITH_BLOCK, _DEFAULT], ids=['with_block', 'default']
)
_ROUND = 'slow_clients([0.0] * 9)'


def _program(body: str) -> list[str]:
  return [sys.executable, '-c', _PRELUDE + textwrap.dedent(body)]


def _start(style: str, then: str) -> subprocess.Popen:
  process = subprocess.Popen(
    _program(style.format(then=then)),
    cwd=_ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    bufsize=0,  # So that readline() takes no more than a line.
    start_new_session=True,  # A terminal gives a program a group too.
  )
  assert process.stdout.readline() == b'2.0\n', process.stderr.read()
  return process


def _left_in_group(group: int) -> list[int]:
  """The processes of a group, the ended ones aside."""
  found = []
  for folder in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      fields = (folder / 'stat').read_text().rpartition(')')[2].split()
    except (FileNotFoundError, ProcessLookupError):
      continue
    if int(fields[2]) == group and fields[0] != 'Z':
      found.append(int(folder.name))
  return found


@_STYLES
def test_normally_with_its_output_in_a_pipe(style, temporary_folder):
  process = _start(style, 'print("end")')
  # communicate() returns when every holder of the pipe has closed it, as
  # `program | cat` does.
  out, err = process.communicate(timeout=120)
  assert (out, err, process.returncode) == (b'end\n', b'', 0)
  assert _left_in_group(process.pid) == []
  assert list(temporary_folder.iterdir()) == []


def test_by_ctrl_c_in_the_middle_of_a_round(temporary_folder):
  process = _start(_WITH_BLOCK, _ROUND)
  time.sleep(1)  # So that the call is under way.
  os.killpg(process.pid, signal.SIGINT)
  _, err = process.communicate(timeout=120)
  assert process.returncode == -signal.SIGINT or process.returncode == 130
  assert err.count(b'KeyboardInterrupt') == 1
  assert _left_in_group(process.pid) == []
  assert list(temporary_folder.iterdir()) == []


def test_after_ctrl_c_a_notebook_goes_on():
  process = _start(
    _DEFAULT,
    f"""
  try:
    {_ROUND}
  except KeyboardInterrupt:
    print(add_one(2.0), threads(), flush=True)
  """,
  )
  time.sleep(1)
  os.killpg(process.pid, signal.SIGINT)
  out, err = process.communicate(timeout=120)
  assert (out, err, process.returncode) == (b'3.0 idle\n', b'', 0)


def test_by_an_error_inside_a_client():
  process = _start(_WITH_BLOCK, 'fail_clients([1.0, 0.0])')
  _, err = process.communicate(timeout=120)
  assert process.returncode == 1
  last = err.strip().splitlines()[-1]
  assert b'ComputationError: At client 1 of 2' in last
  assert _left_in_group(process.pid) == []


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGKILL])
def test_by_a_signal_in_the_middle_of_a_round(number, temporary_folder):
  process = _start(_WITH_BLOCK, _ROUND)
  time.sleep(1)
  # While it runs it has no child and no socket, so no port either.
  assert _left_in_group(process.pid) == [process.pid]
  files = pathlib.Path(f'/proc/{process.pid}/fd')
  links = [os.readlink(link) for link in files.iterdir()]
  assert [link for link in links if link.startswith('socket:')] == []
  process.send_signal(number)
  process.communicate(timeout=120)
  assert process.returncode == -number
  assert _left_in_group(process.pid) == []
  assert list(temporary_folder.iterdir()) == []
