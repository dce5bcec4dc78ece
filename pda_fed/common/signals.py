"""Lets a loop check for Ctrl-C and SIGTERM when it is safe to stop."""

import signal
import threading
from typing import Optional

from pda_fed import errors

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
  """Remembers the first SIGINT or SIGTERM of a `with` block.

  A second signal has its usual effect, so that the user need not wait. Outside
  the main thread, Python delivers no signals, and nothing is remembered.
  """

  # Instances whose `with` blocks are active.
  _active: list['StopSignals'] = []

  def __init__(self) -> None:
    self.signum: Optional[int] = None
    self._before = {}

  @classmethod
  def request(cls, signum: int) -> bool:
    """Acts as if a signal had arrived; callable from any thread.

    Args:
      signum: The signal's number.

    Returns:
      Whether any `with` block is active.
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

  def raise_if_stopped(self, message: str) -> None:
    """Raises `StoppedError` with `message` if a signal has arrived."""
    if self.signum is not None:
      raise errors.StoppedError(self.signum, message)
