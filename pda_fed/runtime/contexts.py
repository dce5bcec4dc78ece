"""Sessions of TFF workers on this machine, for a `with` block or a notebook."""

import atexit
from collections.abc import Iterator
import contextlib
import os
from typing import Optional

import grpc
from pda_fed import _validate
from pda_fed.runtime import errors
from pda_fed.runtime import executors
from pda_fed.runtime import sharing
from pda_fed.runtime import worker as worker_lib
import tensorflow_federated as tff

Isolation = worker_lib.Isolation


class _LocalSeat:
  """A local worker as a member of a group; see `sharing.Seat`."""

  def __init__(self, worker: worker_lib.LocalWorker):
    self.worker = worker
    self.name = worker.target
    self._factory = executors.WorkerExecutorFactory(
      worker, grpc.insecure_channel(worker.target, worker_lib.CHANNEL_OPTIONS)
    )
    self.context = executors.WorkerContext(self._factory)

  @property
  def usable(self) -> bool:
    return self.worker.alive

  def check_owner(self) -> None:
    self.worker.check_owner()

  def invoke(self, comp, arg):
    try:
      return self.context.invoke(comp, arg)
    except errors.WorkerDiedError:
      raise
    except Exception:
      self.worker.check_alive()  # If it is dead, that is the error to tell.
      raise

  def close(self) -> None:
    self._factory.close()
    self.context.end()


class _Session:
  """Workers, the context over them, and their common end."""

  def __init__(self, num_workers: int, **worker_options):
    _validate.integers(1, num_workers=num_workers)
    share = max(1, worker_lib.available_cores() // num_workers)
    for name in ('max_concurrent_computation_calls', 'threads'):
      if worker_options.get(name) is None:
        worker_options[name] = share
    self.workers = []
    self._seats = []
    self._owner_pid = os.getpid()
    try:
      for _ in range(num_workers):
        self.workers.append(worker_lib.LocalWorker(**worker_options))
      self._seats = [_LocalSeat(w) for w in self.workers]
    except BaseException:
      self.stop()
      raise
    # One worker runs whole computations; several share the clients of each.
    alone = num_workers == 1
    self.context = (
      self._seats[0].context if alone else sharing.SharedContext(self._seats)
    )
    atexit.register(self.stop)

  def stop(self) -> None:
    if os.getpid() != self._owner_pid:
      return  # A forked process: nothing of this is its own.
    atexit.unregister(self.stop)
    # Workers first: their end is bounded in time, and it makes a call that is
    # still under way fail, where closing an executor would wait behind it.
    for worker in self.workers:
      worker.stop()
    for seat in self._seats:
      seat.close()


@contextlib.contextmanager
def local_workers(
  num_workers: int = 1,
  *,
  log_dir: Optional[os.PathLike] = None,
  max_concurrent_computation_calls: Optional[int] = None,
  threads: Optional[int] = None,
  start_timeout: float = 18.0,
  isolation: Isolation = Isolation.AUTO,
  binary: Optional[os.PathLike] = None,
) -> Iterator[list[worker_lib.LocalWorker]]:
  """Runs the TFF computations of a `with` block on workers of its own.

  Example:

  ```
  with runtime.local_workers():
    state = process.initialize()
    for round_num in range(rounds):
      state, metrics = process.next(state, client_data(round_num))
  ```

  Args:
    num_workers: How many workers share the clients of each round. More than
      one on a machine seldom pays: one worker already uses all cores.
    log_dir: Where the workers' logs are kept; by default they go away with
      the workers, unless one dies.
    max_concurrent_computation_calls: How many clients each worker simulates at
      a time. Default: the cores, shared between the workers.
    threads: Threads of a TensorFlow operation. Default: likewise.
    start_timeout: Seconds to wait for each worker.
    isolation: Whether the workers may be reachable from the network if the
      kernel offers no way to prevent it.
    binary: Another `worker_binary`.

  Yields:
    The workers, for their logs and process state.

  Raises:
    IsolationError: If isolation is required and the kernel forbids it.
    ValueError: If a number is out of its range.
    WorkerStartError: If a worker cannot be started.
  """
  session = _Session(
    num_workers,
    log_dir=log_dir,
    max_concurrent_computation_calls=max_concurrent_computation_calls,
    threads=threads,
    start_timeout=start_timeout,
    isolation=isolation,
    binary=binary,
  )
  try:
    with tff.framework.get_context_stack().install(session.context):
      yield session.workers
  finally:
    session.stop()


_notebook_session: Optional[_Session] = None


def use_local_worker(**options) -> worker_lib.LocalWorker:
  """Makes one worker the default for this thread, until the program ends.

  For notebooks and the Python prompt, where a `with` block is in the way. A
  worker from an earlier call is ended first, so a cell may be run again.

  Example:

  ```
  from pda_fed import runtime
  runtime.use_local_worker()
  ```

  Args:
    **options: As for `local_workers`, except `num_workers`.

  Returns:
    The worker.

  Raises:
    IsolationError: If isolation is required and the kernel forbids it.
    ValueError: If a number is out of its range.
    WorkerStartError: If the worker cannot be started.
  """
  global _notebook_session
  if _notebook_session is not None:
    _notebook_session.stop()
  _notebook_session = _Session(1, **options)
  tff.framework.set_default_context(_notebook_session.context)
  return _notebook_session.workers[0]
