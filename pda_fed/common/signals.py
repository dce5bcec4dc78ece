"""Ctrl-C and SIGTERM as a question that a loop asks when it suits it."""

import signal
import threading
import time
from typing import Optional

from pda_fed import errors

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
  """Remembers the first SIGINT or SIGTERM of a `with` block.

  The second one does what it did before, so that nobody has to wait. Outside
  of the main thread, where Python takes no signals, nothing is remembered.
  """

  # Those whose blocks are running.
  _active: list['StopSignals'] = []

  def __init__(self):
    self.signum: Optional[int] = None
    self._before = {}

  @classmethod
  def request(cls, signum: int) -> bool:
    """Does as if a signal had come, from any thread.

    Args:
      signum: The signal.

    Returns:
      Whether somebody listens.
    """
    for listener in cls._active:
      if listener.signum is None:
        listener.signum = signum
    return bool(cls._active)

  def __enter__(self):
    self._active.append(self)
    if threading.current_thread() is threading.main_thread():
      self._before = {s: signal.signal(s, self._remember) for s in _SIGNALS}
    return self

  def __exit__(self, *exc_info):
    self._active.remove(self)
    self._restore()

  def _restore(self) -> None:
    while self._before:
      signal.signal(*self._before.popitem())

  def _remember(self, signum, frame) -> None:
    del frame
    self.signum = signum
    self._restore()

  def wait(self, seconds: float) -> bool:
    """Waits, at most so long; returns whether a signal has come."""
    # A sleep goes on after a handler has run, so it should be short.
    if self.signum is None:
      time.sleep(seconds)
    return self.signum is not None

  def raise_if_stopped(self, message: str) -> None:
    """Raises `StoppedError` with a message if a signal has come."""
    if self.signum is not None:
      raise errors.StoppedError(self.signum, message)
