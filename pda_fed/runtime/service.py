"""TFF's executor service on the in-process runtime.

A coordinator creates an executor for a number of clients, sends it values and
compiled computations, calls them, and fetches results:

    GetExecutor -> CreateValue, CreateStruct, CreateSelection, CreateCall
                -> Compute -> Dispose, DisposeExecutor

The messages are those of `tensorflow_federated/proto/v0/executor.proto`.
"""

import collections
import dataclasses
import functools
import hashlib
import threading
import time
from typing import Any, Optional
import uuid

import grpc
from pda_fed.runtime import context as context_lib
from pda_fed.runtime import errors
from pda_fed.runtime import interpreter
from pda_fed.runtime import tasks
from pda_fed.runtime import values
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.proto.v0 import executor_pb2
from tensorflow_federated.proto.v0 import executor_pb2_grpc
from tensorflow_federated.python.core.impl.compiler import building_blocks
from tensorflow_federated.python.core.impl.executors import value_serialization
from tensorflow_federated.python.core.impl.types import type_serialization

# Metadata keys: the coordinator's session, and the client that failed.
SESSION = 'pda-fed-session'
CLIENT = 'pda-fed-client'
# Number of cached programs: a coordinator sends a computation with each call.
_MAX_PROGRAMS = 32


@dataclasses.dataclass(frozen=True)
class _Value:
  """A value of a run, or a program if its type is a function."""

  value: Any
  type_spec: tff.Type


@dataclasses.dataclass
class _Executor:
  """The values of a coordinator for one number of clients."""

  session: str
  num_clients: int
  values: dict[str, _Value] = dataclasses.field(default_factory=dict)


class _GoneError(Exception):
  """An executor or a value does not exist (any more)."""


class _Programs:
  """A cache of the latest programs."""

  def __init__(self):
    self._programs = collections.OrderedDict()
    self._lock = threading.Lock()

  def get(self, proto: computation_pb2.Computation) -> _Value:
    key = hashlib.sha256(proto.SerializeToString(deterministic=True)).digest()
    with self._lock:
      if key not in self._programs:
        block = building_blocks.ComputationBuildingBlock.from_proto(proto)
        program = interpreter.Program(block)
        self._programs[key] = _Value(program, block.type_signature)
        if len(self._programs) > _MAX_PROGRAMS:
          _, oldest = self._programs.popitem(last=False)
          oldest.value.close()
      self._programs.move_to_end(key)
      return self._programs[key]

  def close(self) -> None:
    with self._lock:
      for program in self._programs.values():
        program.value.close()
      self._programs.clear()


def _answers(method):
  """Turns exceptions of a service method into gRPC statuses.

  Args:
    method: A method of `ExecutorService` that takes the executor, the request
      and the call's context.

  Returns:
    A method with gRPC's signature.
  """

  @functools.wraps(method)
  def answer(self, request, context):
    try:
      return method(self, self._executor(request), request, context)
    except _GoneError as e:
      # TFF then creates a new executor.
      context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(e))
    except errors.RuntimeClosedError as e:
      context.abort(grpc.StatusCode.UNAVAILABLE, str(e))
    except errors.ComputationError as e:
      if e.place.client is not None:
        context.set_trailing_metadata([(CLIENT, str(e.place.client))])
      context.abort(grpc.StatusCode.ABORTED, e.reason)
    except (
      errors.UnsupportedComputationError,
      LookupError,
      TypeError,
      ValueError,
    ) as e:
      context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(e))

  return answer


class ExecutorService(executor_pb2_grpc.ExecutorGroupServicer):
  """The service's methods, with gRPC's names and arguments."""

  def __init__(self, max_concurrent_clients: Optional[int] = None):
    """Initializes the service.

    Args:
      max_concurrent_clients: See `runtime.in_process`.
    """
    self._pool = context_lib.make_pool(max_concurrent_clients)
    self._programs = _Programs()
    self._lock = threading.Lock()
    self._executors: dict[str, _Executor] = {}
    self._seen: dict[str, float] = {}

  def add_to(self, server: grpc.Server) -> None:
    """Adds the methods to a server that has not started."""
    executor_pb2_grpc.add_ExecutorGroupServicer_to_server(self, server)

  def saw(self, session: str) -> None:
    """Records that a coordinator is alive."""
    with self._lock:
      self._seen[session] = time.monotonic()

  def dispose_silent(self, seconds: float) -> None:
    """Removes the data of silent coordinators.

    A killed coordinator cannot clean up, and the worker would keep its models
    and data forever.

    Args:
      seconds: How long a coordinator must have been silent.
    """
    before = time.monotonic() - seconds
    with self._lock:
      silent = {s for s, seen in self._seen.items() if seen <= before}
      self._seen = {s: t for s, t in self._seen.items() if s not in silent}
      self._executors = {
        key: e for key, e in self._executors.items() if e.session not in silent
      }

  def close(self) -> None:
    """Stops running computations and frees everything."""
    self._pool.close()
    self._programs.close()
    with self._lock:
      self._executors.clear()

  def _executor(self, request) -> _Executor:
    with self._lock:
      found = self._executors.get(request.executor.id)
    if found is None:
      raise _GoneError('The executor does not exist.')
    return found

  def _keep(self, executor: _Executor, value: _Value) -> executor_pb2.ValueRef:
    ref = uuid.uuid4().hex
    executor.values[ref] = value
    return executor_pb2.ValueRef(id=ref)

  def _find(self, executor: _Executor, ref: executor_pb2.ValueRef) -> _Value:
    try:
      return executor.values[ref.id]
    except KeyError as e:
      raise _GoneError('The value does not exist.') from e

  def GetExecutor(self, request, context):  # noqa: N802
    """Creates an executor for the requested number of clients."""
    session = dict(context.invocation_metadata()).get(SESSION, '')
    cardinalities = value_serialization.deserialize_cardinalities(
      request.cardinalities
    )
    key = uuid.uuid4().hex
    with self._lock:
      self._executors[key] = _Executor(
        session, cardinalities.get(tff.CLIENTS, 0)
      )
    return executor_pb2.GetExecutorResponse(
      executor=executor_pb2.ExecutorId(id=key)
    )

  @_answers
  def CreateValue(self, executor, request, context):  # noqa: N802
    """Stores a value or a computation."""
    del context
    if request.value.WhichOneof('value') == 'computation':
      kept = self._programs.get(request.value.computation)
    else:
      kept = _deserialize(request.value, executor.num_clients)
    return executor_pb2.CreateValueResponse(
      value_ref=self._keep(executor, kept)
    )

  @_answers
  def CreateStruct(self, executor, request, context):  # noqa: N802
    """Creates a structure of stored values."""
    del context
    parts = [
      (e.name or None, self._find(executor, e.value_ref))
      for e in request.element
    ]
    return executor_pb2.CreateStructResponse(
      value_ref=self._keep(executor, _struct(parts))
    )

  @_answers
  def CreateSelection(self, executor, request, context):  # noqa: N802
    """Selects an element of a stored structure."""
    del context
    source = self._find(executor, request.source_ref)
    if not isinstance(source.type_spec, tff.StructType):
      raise ValueError(f'{source.type_spec} has no elements to select.')
    part = _Value(source.value[request.index], source.type_spec[request.index])
    return executor_pb2.CreateSelectionResponse(
      value_ref=self._keep(executor, part)
    )

  @_answers
  def CreateCall(self, executor, request, context):  # noqa: N802
    """Calls a computation and waits for the result."""
    function = self._find(executor, request.function_ref)
    if not isinstance(function.value, interpreter.Program):
      raise ValueError(f'{function.type_spec} is not a function.')
    argument = None
    if request.HasField('argument_ref'):
      argument = self._find(executor, request.argument_ref).value

    def stop_with_the_call(run: tasks.Run) -> None:
      if not context.add_callback(run.cancel):
        run.cancel()  # The coordinator has already disconnected.

    result = self._pool.call(
      lambda run: function.value.start(run, argument, executor.num_clients),
      stop_with_the_call,
    )
    kept = _Value(interpreter.resolve(result), function.type_spec.result)
    return executor_pb2.CreateCallResponse(value_ref=self._keep(executor, kept))

  @_answers
  def Compute(self, executor, request, context):  # noqa: N802
    """Returns a stored value."""
    del context
    found = self._find(executor, request.value_ref)
    value, _ = value_serialization.serialize_value(
      values.emit(found.value, found.type_spec, executor.num_clients),
      found.type_spec,
    )
    return executor_pb2.ComputeResponse(value=value)

  @_answers
  def Dispose(self, executor, request, context):  # noqa: N802
    """Removes values."""
    del context
    for ref in request.value_ref:
      executor.values.pop(ref.id, None)
    return executor_pb2.DisposeResponse()

  def DisposeExecutor(self, request, context):  # noqa: N802
    """Removes an executor and its values."""
    del context
    with self._lock:
      self._executors.pop(request.executor.id, None)
    return executor_pb2.DisposeExecutorResponse()


def _struct(parts: list[tuple[Optional[str], _Value]]) -> _Value:
  return _Value(
    tff.structure.Struct([(name, part.value) for name, part in parts]),
    tff.StructType([(n, p.type_spec) if n else p.type_spec for n, p in parts]),
  )


def _deserialize(proto: executor_pb2.Value, num_clients: int) -> _Value:
  """Reads a value; unlike TFF's function, it allows zero clients."""
  kind = proto.WhichOneof('value')
  if kind == 'struct':
    return _struct(
      [
        (e.name or None, _deserialize(e.value, num_clients))
        for e in proto.struct.element
      ]
    )
  if kind == 'federated':
    type_spec = type_serialization.deserialize_type(
      computation_pb2.Type(federated=proto.federated.type)
    )
    members = [
      _deserialize(v, num_clients).value for v in proto.federated.value
    ]
    one = type_spec.placement is tff.SERVER or type_spec.all_equal
    if len(members) != (1 if one else num_clients):
      raise ValueError(
        f'{type_spec} must have {1 if one else num_clients} values. Found'
        f' {len(members)}.'
      )
    if type_spec.placement is tff.SERVER:
      return _Value(members[0], type_spec)
    if type_spec.all_equal:
      return _Value(values.AllEqual(members[0]), type_spec)
    return _Value(values.Clients(members), type_spec)
  value, type_spec = value_serialization.deserialize_value(proto)
  return _Value(values.ingest(value, type_spec), type_spec)
