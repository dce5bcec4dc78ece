"""TFF's executors on one remote worker, and the context that runs on them."""

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

# Executors kept, one for each number of clients met.
_EXECUTOR_CACHE_SIZE = 10
_END_SECONDS = 5.0
# Failed tries in a row after which a live worker counts as out of reach; with
# TFF's pauses between them, about two seconds.
_MAX_FAILURES = 10
# Seconds for calls that only tidy up on the worker. They come from destructors,
# on any thread: none may wait for a worker that hangs.
_TIDY_SECONDS = 10.0
_TIDYING = ('/Dispose', '/DisposeExecutor')


def describe(error: Exception) -> str:
  """Returns an error in one line; gRPC shows many."""
  if isinstance(error, grpc.Call):
    return f'{error.code().name}: {error.details()}'
  return str(error) or type(error).__name__


class Worker(Protocol):
  """What executors need of a worker.

  Attributes:
    target: Its gRPC address, for messages.
  """

  target: str

  def check_alive(self) -> None:
    """Raises `WorkerDiedError` if it can no longer be used."""

  def check_owner(self) -> None:
    """Raises `WorkerDiedError` in a process that may not use it."""


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


class _ClosedChannelError(grpc.RpcError):
  """The channel was closed before the call; gRPC says ValueError."""


class _QuietChannel:
  """A channel as TFF's stub needs it.

  TFF's stub polls a channel's state in a thread, which prints a traceback when
  the channel is closed under it: here nobody polls, we watch the worker. And
  what only tidies up on the worker fails in silence: of a worker that is gone,
  nothing is left to tidy.
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
      self._tidies = True  # Else it would fill up after one lost answer.
      return response

    def tidy(request):
      try:
        if self._tidies:
          inner(request, timeout=_TIDY_SECONDS, metadata=self._metadata)
      except (grpc.RpcError, ValueError):
        # There may be many to come: none waits until the worker answers again.
        self._tidies = False

    return tidy if method.endswith(_TIDYING) else call


class WorkerExecutorFactory(tff.framework.ExecutorFactory):
  """Hands out executors on one worker, as long as it is alive."""

  def __init__(
    self,
    worker: Worker,
    channel: grpc.Channel,
    metadata: tuple[tuple[str, str], ...] = (),
  ):
    """Initializes the factory.

    Args:
      worker: Asked before each use.
      channel: Leads to it; closed with the factory.
      metadata: Goes with each call.
    """
    self._worker = worker
    self._channel = channel
    self._stub = tff.framework.RemoteExecutorGrpcStub(
      _QuietChannel(channel, metadata)
    )
    self._executors = _ExecutorCache(_EXECUTOR_CACHE_SIZE)
    # Who loses a worker does it while another thread's call fails.
    self._lock = threading.Lock()
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
            f'The worker cannot be reached at {self._worker.target}:'
            f' {describe(e)}.'
          ) from e
        raise  # TFF tries again, after a growing pause.
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
    """Raises `WorkerDiedError` in a process that may not use the worker."""
    self._worker.check_owner()

  def close(self) -> None:
    """Closes all executors and the connection."""
    with self._lock:
      while self._executors:
        self._executors.popitem()
    self._channel.close()

  def abandon(self) -> None:
    """Closes the connection first: calls under way fail, nothing is asked."""
    self._channel.close()
    self.close()


class Compiler:
  """Compiles a computation once, whatever number of contexts asks.

  TFF's contexts each compile for themselves, which is slow, and never meant to
  be done in two threads at a time.
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

  A forked process cannot wait for it: the thread that runs the calls does not
  exist there.
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

    TFF would end it when the context is collected, which the thread prevents.
    The context is not usable afterwards.
    """
    runner = self._async_runner
    runner._finalizer = lambda loop, thread: None
    runner._event_loop.call_soon_threadsafe(runner._event_loop.stop)
    runner._thread.join(_END_SECONDS)
    if not runner._thread.is_alive():
      runner._event_loop.close()
