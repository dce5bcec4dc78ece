"""What a process says when a native library aborts it."""

import ctypes
import os
import signal
import sys
import tempfile
from typing import Optional


class LastWords:
  """Sets the message and exit code of a process that JAX's runtime aborts.

  JAX's client aborts the process, with a stack trace, as soon as the process of
  host 0 has ended. This class hides the output of native libraries; Python's
  output is still shown.

  Example:

  ```
  with LastWords() as last_words:
    last_words.set('error: The coordinator does not answer.', 2)
    hosts = connect(settings)
  ```
  """

  def __init__(self):
    self._line = b''
    self._exit_code = 1

  def set(self, line: str, exit_code: int) -> None:
    """Sets the message and exit code of an abort from now on.

    Args:
      line: One line, or an empty string.
      exit_code: The exit code.
    """
    self._line = f'{line}\n'.encode() if line else b''
    self._exit_code = exit_code

  def _end(self, signum: int) -> None:
    del signum
    os.write(self._kept[1], self._line)
    os._exit(self._exit_code)

  def __enter__(self):
    self._streams = sys.stdout, sys.stderr
    self._flush()
    self._kept = os.dup(1), os.dup(2)
    sys.stdout, sys.stderr = (
      open(fd, 'w', buffering=1, closefd=False) for fd in self._kept
    )
    with tempfile.TemporaryFile() as aside:
      os.dup2(aside.fileno(), 1)
      os.dup2(aside.fileno(), 2)
    # Python's handlers run later, in the main thread: too late for an abort.
    self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._end)
    _set_handler(signal.SIGABRT, ctypes.cast(self._handler, ctypes.c_void_p))
    return self

  def __exit__(self, *exc_info):
    _set_handler(signal.SIGABRT, None)
    self._flush()
    for number, fd in enumerate(self._kept, 1):
      os.dup2(fd, number)
      os.close(fd)
    sys.stdout, sys.stderr = self._streams

  def _flush(self) -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _set_handler(signum: int, handler: Optional[ctypes.c_void_p]) -> None:
  """Calls C's `signal`."""
  function = ctypes.CDLL(None).signal
  function.argtypes = [ctypes.c_int, ctypes.c_void_p]
  function.restype = ctypes.c_void_p
  function(signum, handler)
