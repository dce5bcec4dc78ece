"""TFF execution: workers that are started, watched and always ended.

    from pda_fed import runtime

    with runtime.local_workers():
      state = process.initialize()

A worker started here writes to a log of its own, is out of the network's
reach, ends with this program however it ends, and never lets a call wait for a
worker that is gone. `remote_workers` does the same over workers of other
machines, each behind a `WorkerServer` that asks for a certificate.
"""

import importlib

from pda_fed.runtime.errors import IsolationError
from pda_fed.runtime.errors import WorkerDiedError
from pda_fed.runtime.errors import WorkerError
from pda_fed.runtime.errors import WorkerStartError
from pda_fed.runtime.errors import WorkerVersionError
from pda_fed.runtime.relay import versions
from pda_fed.runtime.relay import WorkerServer
from pda_fed.runtime.worker import Isolation
from pda_fed.runtime.worker import LocalWorker
from pda_fed.workers import TlsFiles

__all__ = [
  'Isolation',
  'IsolationError',
  'LocalWorker',
  'TlsFiles',
  'WorkerDiedError',
  'WorkerError',
  'WorkerServer',
  'WorkerStartError',
  'WorkerVersionError',
  'local_workers',
  'remote_workers',
  'use_local_worker',
  'versions',
]

# These need tensorflow_federated, which takes seconds and much memory to
# import. A program that only serves a worker does without.
_OF_TFF = {
  'local_workers': 'contexts',
  'remote_workers': 'remote',
  'use_local_worker': 'contexts',
}


def __getattr__(name: str):
  if name not in _OF_TFF:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module = importlib.import_module(f'{__name__}.{_OF_TFF[name]}')
  return getattr(module, name)
