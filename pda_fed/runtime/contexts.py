"""TFF execution contexts over workers that this package started.

This is the only module that reaches into tensorflow_federated for names that
it does not export, so that another TFF release is met in one place.
"""

import atexit
from collections.abc import Iterator
import contextlib
import os
from typing import Optional, Union

import cachetools
import grpc
from pda_fed import _validate
from pda_fed.runtime import errors
from pda_fed.runtime import worker as worker_lib
import tensorflow_federated as tff
from tensorflow_federated.python.core.environments.tensorflow_frontend import (
  tensorflow_computation,
)

Isolation = worker_lib.Isolation

# An unlimited message: a cohort's data and models travel in one.
_CHANNEL_OPTIONS = (
  ('grpc.max_receive_message_length', -1),
  ('grpc.max_send_message_length', -1),
)
# Executors kept, one for each number of clients met.
_EXECUTOR_CACHE_SIZE = 10
_END_SECONDS = 5.0
# Failed tries in a row after which a live worker counts as out of reach; with
# TFF's pauses between them, about two seconds.
_MAX_FAILURES = 10


class _ExecutorCache(cachetools.LRUCache):
  """An LRU cache that closes the executors it lets go.

  TFF's own cache only forgets them. The worker then keeps every evicted
  executor, with its graphs, for ever, and Poisson cohorts, whose size changes
  from round to round, fill its memory.
  """

  def popitem(self):
    key, executor = super().popitem()
    executor.close()
    return key, executor


class _UnwatchedChannel:
  """A channel whose state nobody polls.

  TFF's stub polls it in a thread, which prints a traceback when the channel is
  closed under it. We watch the worker's process instead.
  """

  def __init__(self, channel: grpc.Channel):
    self.unary_unary = channel.unary_unary

  def subscribe(self, callback, try_to_connect=False):
    """Does not call back."""
    del callback, try_to_connect


class WorkerExecutorFactory(tff.framework.ExecutorFactory):
  """Hands out executors on one worker, as long as it is alive."""

  def __init__(self, worker: worker_lib.LocalWorker):
    self._worker = worker
    self._channel = grpc.insecure_channel(worker.target, _CHANNEL_OPTIONS)
    self._stub = tff.framework.RemoteExecutorGrpcStub(
      _UnwatchedChannel(self._channel)
    )
    self._executors = _ExecutorCache(_EXECUTOR_CACHE_SIZE)
    self._failures = 0

  def create_executor(
    self, cardinalities: tff.framework.CardinalitiesType
  ) -> tff.framework.RemoteExecutor:
    """Returns the executor for these cardinalities, made if need be.

    TFF calls this again, without end, after each failed call. A dead worker
    must therefore raise here something that TFF does not retry.

    Args:
      cardinalities: The number of clients, by placement.

    Returns:
      An executor on this factory's worker.

    Raises:
      WorkerDiedError: If the worker is gone.
    """
    self._worker.check_alive()
    cardinalities = {tff.CLIENTS: 0, **cardinalities}
    key = cardinalities[tff.CLIENTS]
    executor = self._executors.get(key)
    if executor is None:
      executor = tff.framework.RemoteExecutor(self._stub)
      try:
        executor.set_cardinalities(cardinalities)
      except grpc.RpcError as e:
        self._failures += 1
        if self._failures > _MAX_FAILURES:
          raise errors.WorkerDiedError(
            f'The TFF worker cannot be reached at {self._worker.target}: {e}'
          ) from e
        raise  # TFF tries again, after a growing pause.
      self._failures = 0
      self._executors[key] = executor
    return executor

  def clean_up_executor(
    self, cardinalities: tff.framework.CardinalitiesType
  ) -> None:
    """Closes the executor for these cardinalities, if there is one."""
    executor = self._executors.pop(cardinalities.get(tff.CLIENTS, 0), None)
    if executor is not None:
      executor.close()

  def check_owner(self) -> None:
    """Raises `WorkerDiedError` in a process that did not start the worker."""
    self._worker.check_owner()

  def close(self) -> None:
    """Closes all executors and the connection."""
    while self._executors:
      self._executors.popitem()
    self._channel.close()


_CONTEXT_OPTIONS = dict(
  compiler_fn=tff.backends.native.desugar_and_transform_to_native,
  transform_args=tensorflow_computation.transform_args,
  transform_result=tensorflow_computation.transform_result,
)
_Context = Union[
  tff.framework.SyncExecutionContext,
  tff.framework.MergeableCompExecutionContext,
]


class _OwnedContext(tff.framework.SyncExecutionContext):
  """A context that a forked process cannot wait for.

  The thread that runs the calls does not exist there.
  """

  def __init__(self, factory: WorkerExecutorFactory):
    super().__init__(executor_fn=factory, **_CONTEXT_OPTIONS)
    self._factory = factory

  def invoke(self, comp, arg):
    self._factory.check_owner()
    return super().invoke(comp, arg)


def _build_context(factories: list[WorkerExecutorFactory]) -> _Context:
  """One worker runs whole computations; several share the clients of each."""
  if len(factories) == 1:
    return _OwnedContext(factories[0])
  return tff.backends.native.create_mergeable_comp_execution_context(
    [
      tff.framework.AsyncExecutionContext(executor_fn=f, **_CONTEXT_OPTIONS)
      for f in factories
    ]
  )


def _end_event_loop(context: _Context) -> None:
  """Ends the thread in which a context runs its calls.

  TFF would end it when the context is collected, which the thread prevents.

  Args:
    context: Not usable afterwards.
  """
  runner = context._async_runner
  runner._finalizer = lambda loop, thread: None
  runner._event_loop.call_soon_threadsafe(runner._event_loop.stop)
  runner._thread.join(_END_SECONDS)
  if not runner._thread.is_alive():
    runner._event_loop.close()


class _Session:
  """Workers, the context over them, and their common end."""

  def __init__(self, num_workers: int, **worker_options):
    _validate.integers(1, num_workers=num_workers)
    share = max(1, worker_lib.available_cores() // num_workers)
    for name in ('max_concurrent_computation_calls', 'threads'):
      if worker_options.get(name) is None:
        worker_options[name] = share
    self.workers = []
    self.context = None
    self._factories = []
    self._owner_pid = os.getpid()
    try:
      for _ in range(num_workers):
        self.workers.append(worker_lib.LocalWorker(**worker_options))
      self._factories = [WorkerExecutorFactory(w) for w in self.workers]
      self.context = _build_context(self._factories)
    except BaseException:
      self.stop()
      raise
    atexit.register(self.stop)

  def stop(self) -> None:
    if os.getpid() != self._owner_pid:
      return  # A forked process: nothing of this is its own.
    atexit.unregister(self.stop)
    # Workers first: their end is bounded in time, and it makes a call that is
    # still under way fail, where closing an executor would wait behind it.
    for worker in self.workers:
      worker.stop()
    for factory in self._factories:
      factory.close()
    if self.context is not None:
      _end_event_loop(self.context)


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
