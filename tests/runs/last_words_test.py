"""A process that a native library aborts."""

import subprocess
import sys

import pytest

_ABORT = """
import os, sys, threading
from pda_fed.runs import last_words as lib
with lib.LastWords() as last_words:
  last_words.set('error: too early', 1)
  print('seen')
  os.write(1, b'hidden')
  os.write(2, b'hidden')
  last_words.set('error: it is gone', 3)
  if len(sys.argv) > 1:
    thread = threading.Thread(target=os.abort)
    thread.start()
    thread.join()
print('seen, too', file=sys.stderr)
os.write(1, b'back')
"""


def _run_abort(*arguments):
  return subprocess.run(
    [sys.executable, '-c', _ABORT, *arguments],
    capture_output=True,
    text=True,
    check=False,
  )


def test_an_abort_ends_with_one_line():
  done = _run_abort('abort')
  assert (done.returncode, done.stdout) == (3, 'seen\n')
  assert done.stderr == 'error: it is gone\n'


@pytest.mark.slow
def test_output_comes_back():
  done = _run_abort()
  assert (done.returncode, done.stdout) == (0, 'seen\nback')
  assert done.stderr == 'seen, too\n'
