"""Runs TFF computations in this process or on other machines.

    from pda_fed import runtime

    with runtime.in_process():
      state = process.initialize()

`in_process` simulates clients on threads of the caller's process, with the
TensorFlow that it has imported. No other process, port or file is involved. It
becomes TFF's default context when pda_fed is imported. `remote_workers` splits
the clients over workers on other machines. Each is a `WorkerServer` that
requires a certificate.
"""

from pda_fed.common.workers import TlsFiles
from pda_fed.runtime.context import AsyncInProcessContext
from pda_fed.runtime.context import in_process
from pda_fed.runtime.context import InProcessContext
from pda_fed.runtime.context import use_in_process
from pda_fed.runtime.errors import ComputationError
from pda_fed.runtime.errors import RuntimeClosedError
from pda_fed.runtime.errors import UnsupportedComputationError
from pda_fed.runtime.errors import WorkerDiedError
from pda_fed.runtime.errors import WorkerError
from pda_fed.runtime.errors import WorkerStartError
from pda_fed.runtime.errors import WorkerVersionError
from pda_fed.runtime.remote import remote_workers
from pda_fed.runtime.server import versions
from pda_fed.runtime.server import WorkerServer

__all__ = [
  'AsyncInProcessContext',
  'ComputationError',
  'InProcessContext',
  'RuntimeClosedError',
  'TlsFiles',
  'UnsupportedComputationError',
  'WorkerDiedError',
  'WorkerError',
  'WorkerServer',
  'WorkerStartError',
  'WorkerVersionError',
  'in_process',
  'remote_workers',
  'use_in_process',
  'versions',
]
