"""TFF executors on a remote worker, and the context that uses them."""

from collections.abc import Callable
import functools
import threading
from typing import Any, Protocol

import cachetools
import grpc
from pda_fed.runtime import context as context_lib
from pda_fed.runtime import errors
import tensorflow_federated as tff
from tensorflow_federated.python.core.environments.tensorflow_frontend import (
  tensorflow_computation,
)

# Number of cached executors, one for each number of clients.
_EXECUTOR_CACHE_SIZE = 10
_END_SECONDS = 5.0
# A live worker counts as unreachable after this many failed attempts in a row,
# about two seconds with TFF's pauses.
_MAX_FAILURES = 10
# Timeout, in seconds, of calls that only clean up on the worker. They come from
# destructors on any thread, which must not wait for a worker that hangs.
_TIDY_SECONDS = 10.0
_TIDYING = ('/Dispose', '/DisposeExecutor')


def describe(error: Exception) -> str:
  """Returns an error as one line; gRPC prints many."""
  if isinstance(error, grpc.Call):
    return f'{error.code().name}: {error.details()}'
  return str(error) or type(error).__name__


class Worker(Protocol):
  """The interface of a worker that executors need.

  Attributes:
    target: The worker's gRPC address, for messages.
  """

  target: str

  def check_alive(self) -> None:
    """Raises `WorkerDiedError` if the worker can no longer be used."""

  def check_owner(self) -> None:
    """Raises `WorkerDiedError` in a process that must not use the worker."""


class _ExecutorCache(cachetools.LRUCache):
  """An LRU cache that closes the executors it evicts.

  TFF's own cache does not close them. The worker would then keep every evicted
  executor and its graphs forever. Poisson cohorts, whose size changes from
  round to round, would fill its memory.
  """

  def popitem(self):
    key, executor = super().popitem()
    executor.close()
    return key, executor


class _ClosedChannelError(grpc.RpcError):
  """The channel was closed before the call; gRPC raises ValueError."""


class _QuietChannel:
  """A channel for TFF's stub that is not polled and cleans up silently.

  TFF's stub polls a channel's state in a thread, which prints a traceback when
  the channel is closed. Here the worker is watched instead. Calls that only
  clean up on the worker fail silently: a worker that is gone has nothing left
  to clean up.
  """

  def __init__(
    self, channel: grpc.Channel, metadata: tuple[tuple[str, str], ...] = ()
  ):
    self._channel = channel
    self._metadata = metadata
    self._tidies = True

  def subscribe(self, callback, try_to_connect=False):
    """Does not call back."""
    del callback, try_to_connect

  def unary_unary(self, method: str, **options):
    """See `grpc.Channel`."""
    inner = self._channel.unary_unary(method, **options)

    def call(request):
      try:
        response = inner(request, metadata=self._metadata)
      except ValueError as e:
        raise _ClosedChannelError(str(e)) from e
      self._tidies = True  # The worker answers: resume cleaning up.
      return response

    def tidy(request):
      try:
        if self._tidies:
          inner(request, timeout=_TIDY_SECONDS, metadata=self._metadata)
      except (grpc.RpcError, ValueError):
        # Skip further cleaning up until the worker answers again.
        self._tidies = False

    return tidy if method.endswith(_TIDYING) else call


class WorkerExecutorFactory(tff.framework.ExecutorFactory):
  """Creates executors on one worker while it is alive."""

  def __init__(
    self,
    worker: Worker,
    channel: grpc.Channel,
    metadata: tuple[tuple[str, str], ...] = (),
  ):
    """Initializes the factory.

    Args:
      worker: The worker; checked before each use.
      channel: The channel to the worker; closed with the factory.
      metadata: Metadata sent with each call.
    """
    self._worker = worker
    self._channel = channel
    self._stub = tff.framework.RemoteExecutorGrpcStub(
      _QuietChannel(channel, metadata)
    )
    self._executors = _ExecutorCache(_EXECUTOR_CACHE_SIZE)
    # A worker may be lost while a call of another thread fails.
    self._lock = threading.Lock()
    self._failures = 0

  def create_executor(
    self, cardinalities: tff.framework.CardinalitiesType
  ) -> tff.framework.RemoteExecutor:
    """Returns the executor for these cardinalities; creates it if needed.

    TFF calls this again after each failed call, without limit. So for a dead
    worker, this must raise an error that TFF does not retry.

    Args:
      cardinalities: The number of clients by placement.

    Returns:
      An executor on this factory's worker.

    Raises:
      WorkerDiedError: If the worker is gone.
    """
    self._worker.check_alive()
    cardinalities = {tff.CLIENTS: 0, **cardinalities}
    key = cardinalities[tff.CLIENTS]
    with self._lock:
      executor = self._executors.get(key)
    if executor is None:
      executor = tff.framework.RemoteExecutor(self._stub)
      try:
        executor.set_cardinalities(cardinalities)
      except grpc.RpcError as e:
        self._failures += 1
        if self._failures > _MAX_FAILURES:
          raise errors.WorkerDiedError(
            f'The worker at {self._worker.target} cannot be reached:'
            f' {describe(e)}.'
          ) from e
        raise  # TFF retries, with growing pauses.
      self._failures = 0
      with self._lock:
        self._executors[key] = executor
    return executor

  def clean_up_executor(
    self, cardinalities: tff.framework.CardinalitiesType
  ) -> None:
    """Closes the executor for these cardinalities, if there is one."""
    with self._lock:
      executor = self._executors.pop(cardinalities.get(tff.CLIENTS, 0), None)
    if executor is not None:
      executor.close()

  def check_owner(self) -> None:
    """Raises `WorkerDiedError` in a process that must not use the worker."""
    self._worker.check_owner()

  def close(self) -> None:
    """Closes all executors and the connection."""
    with self._lock:
      while self._executors:
        self._executors.popitem()
    self._channel.close()

  def abandon(self) -> None:
    """Closes the connection first, so that calls in progress fail."""
    self._channel.close()
    self.close()


class Compiler:
  """Compiles a computation once for all contexts.

  In TFF, each context compiles for itself, which is slow and not thread-safe.
  """

  def __init__(self, compile_fn: Callable[[Any], Any]):
    self._compile = functools.lru_cache(compile_fn)
    self._lock = threading.Lock()

  def __call__(self, comp):
    with self._lock:
      return self._compile(comp)


_compile_native = Compiler(context_lib.compile_native)


class WorkerContext(tff.framework.SyncExecutionContext):
  """Runs whole computations on one worker.

  A forked process cannot use it: the thread that runs the calls does not exist
  there.
  """

  def __init__(self, factory: WorkerExecutorFactory):
    super().__init__(
      executor_fn=factory,
      compiler_fn=_compile_native,
      transform_args=tensorflow_computation.transform_args,
      transform_result=tensorflow_computation.transform_result,
    )
    self._factory = factory

  def invoke(self, comp, arg):
    """See the base class."""
    self._factory.check_owner()
    return super().invoke(comp, arg)

  def end(self) -> None:
    """Ends the thread in which the context runs its calls.

    TFF would end it when the context is garbage-collected, but the thread
    prevents that. The context cannot be used afterwards.
    """
    runner = self._async_runner
    runner._finalizer = lambda loop, thread: None
    runner._event_loop.call_soon_threadsafe(runner._event_loop.stop)
    runner._thread.join(_END_SECONDS)
    if not runner._thread.is_alive():
      runner._event_loop.close()
