"""Runs TFF computations in the caller's process.

TFF ships a C++ program that executes its computations, for one platform. These
contexts execute them here, with the TensorFlow that the caller has imported.
They start no process, serialize and send nothing, and open no port.
"""

import asyncio
import atexit
import collections
from collections.abc import Callable, Iterator
import contextlib
import os
import threading
from typing import Any, Optional
import weakref

from pda_fed.common import validate
from pda_fed.tff.runtime import interpreter
from pda_fed.tff.runtime import tasks
from pda_fed.tff.runtime import values
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.executors import cardinalities_utils
from tensorflow_federated.python.core.impl.types import type_conversions

_compile_lock = threading.Lock()
# Programs whose computations were deleted. The next call closes them, not the
# garbage collector, which may run while TensorFlow traces.
_orphans: collections.deque[interpreter.Program] = collections.deque()


def available_cores() -> int:
  """Returns the number of cores that this process may use."""
  if hasattr(os, 'sched_getaffinity'):  # Linux.
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def compile_native(comp: tff.Computation) -> tff.Computation:
  """Compiles a computation to the form that `interpreter` executes.

  Secure sums are computed in the clear: this is a simulation, and the results
  are the same.

  Args:
    comp: Any computation.

  Returns:
    The compiled computation, without Python containers in its type.
  """
  return tff.backends.native.desugar_and_transform_to_native(
    tff.backends.test.replace_secure_intrinsics_with_bodies(comp)
  )


class _Runner:
  """Compiles and runs computations; shared by the two kinds of contexts."""

  def __init__(
    self, max_concurrent_clients: Optional[int], default_num_clients: int
  ):
    if max_concurrent_clients is None:
      max_concurrent_clients = available_cores()
    validate.integers(1, max_concurrent_clients=max_concurrent_clients)
    validate.integers(0, default_num_clients=default_num_clients)
    self.pool = tasks.Pool(max_concurrent_clients)
    self._default_num_clients = default_num_clients
    # By identity: TFF hashes a computation by serializing it.
    self._programs: dict[int, tuple[tff.FunctionType, interpreter.Program]] = {}

  def _program(self, comp: tff.Computation):
    # TFF's compiler is not thread-safe.
    with _compile_lock:
      _close_orphans()
      found = self._programs.get(id(comp))
      if found is None:
        values.check_supported(comp.type_signature)
        compiled = compile_native(comp)
        program = interpreter.Program(compiled.to_building_block())
        found = self._programs[id(comp)] = compiled.type_signature, program
        drop = weakref.WeakMethod(self._drop)
        end = weakref.finalize(comp, _call_if_alive, drop, id(comp))
        end.atexit = False
    return found

  def _drop(self, key: int) -> None:
    found = self._programs.pop(key, None)
    if found is not None:
      _orphans.append(found[1])

  def start(
    self,
    comp: tff.Computation,
    arg: Any,
    on_end: Callable[[tasks.Run], None] = lambda run: None,
  ) -> tuple[tasks.Run, Callable[[], Any]]:
    """Starts a computation.

    Args:
      comp: The computation.
      arg: The argument; None if the computation takes none.
      on_end: Called with the run by the thread that finishes it.

    Returns:
      The run, and a function that returns the result when it has ended.
    """
    self.pool.check_usable()
    type_signature, program = self._program(comp)
    parameter = type_signature.parameter
    num_clients = self._default_num_clients
    if parameter is not None:
      found = cardinalities_utils.infer_cardinalities(arg, parameter)
      num_clients = found.get(tff.CLIENTS, num_clients)
      with tf.init_scope():  # Eagerly, even inside a graph.
        arg = values.ingest(arg, parameter)
    run = self.pool.start(
      lambda run: program.start(run, arg, num_clients), on_end
    )

    def result() -> Any:
      # The compiled type may be narrower and has no containers.
      of_type = comp.type_signature.result
      found = values.emit(
        interpreter.resolve(run.result()), of_type, num_clients
      )
      return type_conversions.type_to_py_container(found, of_type)

    return run, result

  def close(self) -> None:
    """Ends the threads and frees the programs."""
    if not self.pool.is_ours:
      return  # TensorFlow does not work in a forked process.
    self.pool.close()
    with _compile_lock:
      self.abandon()
      _close_orphans()

  def abandon(self) -> None:
    """Like `close`, but waits for nothing and calls no TensorFlow."""
    if not self.pool.is_ours:
      return
    self.pool.stop()
    for key in list(self._programs):
      self._drop(key)


def _call_if_alive(method: weakref.WeakMethod, *args) -> None:
  if (function := method()) is not None:
    function(*args)


def _close_orphans() -> None:
  while _orphans:
    _orphans.popleft().close()


class _Context:
  """What both kinds of contexts have."""

  def __init__(
    self,
    max_concurrent_clients: Optional[int] = None,
    default_num_clients: int = 0,
  ):
    """Initializes the context; threads start with the first call.

    Args:
      max_concurrent_clients: Number of clients simulated at a time; by default
        the number of cores.
      default_num_clients: Number of clients of computations whose argument has
        no value at clients.

    Raises:
      ValueError: If `max_concurrent_clients` is less than 1 or
        `default_num_clients` less than 0.
    """
    self._runner = _Runner(max_concurrent_clients, default_num_clients)
    self._end = weakref.finalize(self, self._runner.abandon)
    self._end.atexit = False
    _open_runners.add(self._runner)

  def close(self) -> None:
    """Ends the threads; the context cannot be used afterwards."""
    self._runner.close()


_open_runners: weakref.WeakSet[_Runner] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
  for runner in list(_open_runners):
    runner.close()


class InProcessContext(_Context, tff.framework.SyncContext):
  """Executes computations on threads of this process."""

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    """Runs a computation; see the base class.

    Args:
      comp: The computation.
      arg: The argument; None if the computation takes none.

    Returns:
      The result.

    Raises:
      ComputationError: If a graph fails; the message names the client.
      RuntimeClosedError: If the context is closed, or this process was forked.
      TypeError: If the argument is not of the parameter's type.
      UnsupportedComputationError: If this runtime cannot run a part of it.
    """
    run, result = self._runner.start(comp, arg)
    run.wait()
    return result()


# TFF's programs ask for this base class.
class AsyncInProcessContext(_Context, tff.framework.AsyncExecutionContext):
  """Executes computations on threads of this process, without waiting.

  `tff.program.NativeFederatedContext` takes it. Calls that are awaited together
  run side by side. A call whose task is cancelled stops its clients.
  """

  async def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    """Runs a computation; see `InProcessContext.invoke`."""
    if asyncio.iscoroutine(arg):
      arg = await arg  # What another computation returned.
    call = _AsyncCall(asyncio.get_running_loop())
    try:
      # The compiler would block the loop.
      result = await asyncio.to_thread(call.start, self._runner, comp, arg)
      await call.ended
    except BaseException:
      call.cancel()
      raise
    return result()


class _AsyncCall:
  """A call that may be cancelled before and after its run has started."""

  def __init__(self, loop: asyncio.AbstractEventLoop):
    self.ended = loop.create_future()
    self._loop = loop
    self._run: Optional[tasks.Run] = None
    self._is_cancelled = False

  def start(
    self, runner: _Runner, comp: tff.Computation, arg: Any
  ) -> Callable[[], Any]:
    # If the loop is closed, nothing but the run would hold this call. Then the
    # garbage collector ends the coroutine, which cancels the run.
    weak = weakref.WeakMethod(self._on_end)

    def on_end(_) -> None:
      if (function := weak()) is not None:
        function()

    self._run, result = runner.start(comp, arg, on_end)
    # `cancel` in another thread sees the run, or this sees that it was called.
    if self._is_cancelled:
      self._run.cancel()
    return result

  def cancel(self) -> None:
    self._is_cancelled = True
    if self._run is not None:
      self._run.cancel()

  def _on_end(self) -> None:
    with contextlib.suppress(RuntimeError):  # The loop was closed.
      self._loop.call_soon_threadsafe(self._wake)

  def _wake(self) -> None:
    if not self.ended.done():
      self.ended.set_result(None)


@contextlib.contextmanager
def in_process(
  *,
  max_concurrent_clients: Optional[int] = None,
  default_num_clients: int = 0,
) -> Iterator[InProcessContext]:
  """Runs the TFF computations of a `with` block in this process.

  Example:

  ```
  with runtime.in_process():
    state = process.initialize()
    for round_num in range(rounds):
      state, metrics = process.next(state, client_data(round_num))
  ```

  Results do not depend on `max_concurrent_clients`: sums are taken in the order
  of the clients. Random operations with `seed=` keep their own state; use
  stateless ones in a client's graph. A block applies only to the thread that
  enters it.

  Args:
    max_concurrent_clients: Number of clients simulated at a time; by default
      the number of cores.
    default_num_clients: Number of clients of computations whose argument has no
      value at clients.

  Yields:
    The context.

  Raises:
    ValueError: If `max_concurrent_clients` is less than 1 or
      `default_num_clients` less than 0.
  """
  context = InProcessContext(max_concurrent_clients, default_num_clients)
  try:
    with tff.framework.get_context_stack().install(context):
      yield context
  finally:
    context.close()


_default: Optional[_Context] = None


def set_default(context: _Context) -> None:
  """Makes a context TFF's default, and closes the one that was set before."""
  global _default
  if _default is not None:
    _default.close()
  _default = context
  tff.framework.set_default_context(context)


def use_in_process(
  *,
  max_concurrent_clients: Optional[int] = None,
  default_num_clients: int = 0,
) -> InProcessContext:
  """Runs TFF computations in this process by default.

  Use it in notebooks and at the Python prompt, where a `with` block is
  inconvenient. It is the default after `import pda_fed.tff`; call it to change
  an option. It closes the context of an earlier call first, so a cell may be
  run again.

  Example:

  ```
  from pda_fed.tff import runtime
  runtime.use_in_process(max_concurrent_clients=4)
  ```

  Args:
    max_concurrent_clients: See `in_process`.
    default_num_clients: See `in_process`.

  Returns:
    The context.

  Raises:
    ValueError: If `max_concurrent_clients` is less than 1 or
      `default_num_clients` less than 0.
  """
  context = InProcessContext(max_concurrent_clients, default_num_clients)
  set_default(context)
  return context
