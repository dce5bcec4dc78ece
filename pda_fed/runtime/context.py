"""Runs TFF computations in the caller's process.

TFF ships a C++ program that executes its computations, for one platform. This
context executes them here, with the TensorFlow that the caller has imported. It
starts no process, serializes and sends nothing, and opens no port.
"""

import atexit
import collections
from collections.abc import Iterator
import contextlib
import os
import threading
from typing import Any, Optional
import weakref

from pda_fed.common import validate
from pda_fed.runtime import interpreter
from pda_fed.runtime import tasks
from pda_fed.runtime import values
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.executors import cardinalities_utils
from tensorflow_federated.python.core.impl.types import type_conversions

_compile_lock = threading.Lock()


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


def make_pool(max_concurrent_clients: Optional[int]) -> tasks.Pool:
  """Creates the threads that simulate clients.

  Args:
    max_concurrent_clients: Number of threads; None for the number of cores.

  Returns:
    A new pool.

  Raises:
    ValueError: If `max_concurrent_clients` is less than 1.
  """
  if max_concurrent_clients is None:
    max_concurrent_clients = available_cores()
  validate.integers(1, max_concurrent_clients=max_concurrent_clients)
  return tasks.Pool(max_concurrent_clients)


class InProcessContext(tff.framework.SyncContext):
  """Executes computations on threads of this process."""

  def __init__(self, max_concurrent_clients: Optional[int] = None):
    """Initializes the context; threads start with the first call.

    Args:
      max_concurrent_clients: Number of clients simulated at a time; by default
        the number of cores.

    Raises:
      ValueError: If `max_concurrent_clients` is less than 1.
    """
    self._pool = make_pool(max_concurrent_clients)
    self._programs = weakref.WeakKeyDictionary()
    # Programs whose computations were deleted. The next call closes them, not
    # the garbage collector, which may run while TensorFlow traces.
    self._orphans = collections.deque()

  def _close_orphans(self) -> None:
    while self._orphans:
      self._orphans.popleft().close()

  def _program(self, comp: tff.Computation):
    # TFF's compiler is not thread-safe.
    with _compile_lock:
      self._close_orphans()
      found = self._programs.get(comp)
      if found is None:
        compiled = compile_native(comp)
        program = interpreter.Program(compiled.to_building_block())
        orphan = weakref.finalize(comp, self._orphans.append, program)
        orphan.atexit = False
        found = self._programs[comp] = compiled.type_signature, program, orphan
    return found[:2]

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
    self._pool.check_usable()
    type_signature, program = self._program(comp)
    parameter = type_signature.parameter
    num_clients = 0
    if parameter is not None:
      found = cardinalities_utils.infer_cardinalities(arg, parameter)
      num_clients = found.get(tff.CLIENTS, 0)
      arg = values.ingest(arg, parameter)
    result = self._pool.call(lambda run: program.start(run, arg, num_clients))
    # The compiled type may be narrower and has no containers.
    result_type = comp.type_signature.result
    found = values.emit(interpreter.resolve(result), result_type, num_clients)
    return type_conversions.type_to_py_container(found, result_type)

  def close(self) -> None:
    """Ends the threads; the context cannot be used afterwards."""
    if not self._pool.is_ours:
      return  # TensorFlow does not work in a forked process.
    self._pool.close()
    with _compile_lock:
      for _, _, orphan in self._programs.values():
        orphan()
      self._programs.clear()
      self._close_orphans()


@contextlib.contextmanager
def in_process(
  *, max_concurrent_clients: Optional[int] = None
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

  Yields:
    The context.

  Raises:
    ValueError: If `max_concurrent_clients` is less than 1.
  """
  context = InProcessContext(max_concurrent_clients)
  try:
    with tff.framework.get_context_stack().install(context):
      yield context
  finally:
    context.close()


_default: Optional[InProcessContext] = None


def use_in_process(
  *, max_concurrent_clients: Optional[int] = None
) -> InProcessContext:
  """Runs TFF computations in this process by default.

  Use it in notebooks and at the Python prompt, where a `with` block is
  inconvenient. It is the default after `import pda_fed`; call it to change an
  option. It closes the context of an earlier call first, so a cell may be run
  again.

  Example:

  ```
  from pda_fed import runtime
  runtime.use_in_process(max_concurrent_clients=4)
  ```

  Args:
    max_concurrent_clients: See `in_process`.

  Returns:
    The context.

  Raises:
    ValueError: If `max_concurrent_clients` is less than 1.
  """
  global _default
  context = InProcessContext(max_concurrent_clients)
  if _default is None:
    atexit.register(lambda: _default.close())
  else:
    _default.close()
  _default = context
  tff.framework.set_default_context(context)
  return context
