"""Runs TFF computations in this process.

    from pda_fed.tff import runtime

    with runtime.in_process():
      state = process.initialize()

`in_process` simulates clients on threads of the caller's process, with the
TensorFlow that it has imported. No other process, port or file is involved. It
becomes TFF's default context when pda_fed.tff is imported.
"""

from pda_fed.tff.runtime.context import AsyncInProcessContext
from pda_fed.tff.runtime.context import in_process
from pda_fed.tff.runtime.context import InProcessContext
from pda_fed.tff.runtime.context import use_in_process
from pda_fed.tff.runtime.errors import ComputationError
from pda_fed.tff.runtime.errors import RuntimeClosedError
from pda_fed.tff.runtime.errors import UnsupportedComputationError

__all__ = [
  'AsyncInProcessContext',
  'ComputationError',
  'InProcessContext',
  'RuntimeClosedError',
  'UnsupportedComputationError',
  'in_process',
  'use_in_process',
]
