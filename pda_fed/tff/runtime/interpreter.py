"""Executes the output of TFF's compiler on a pool of threads.

TFF compiles a computation to a tree of calls of *intrinsics*, such as
`federated_map` and `federated_aggregate`, and of TensorFlow graphs. `Program`
walks that tree. Each client's part of an intrinsic becomes a task:

    federated_map        a task for each client
    federated_aggregate  accumulate for client 0, then client 1, ...: the order
                         of the sum, and so its bits, are always the same
    server's functions   a task each; those that do not need clients' results
                         run while clients train
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import operator
from typing import Any

from pda_fed.tff.runtime import errors
from pda_fed.tff.runtime import graphs
from pda_fed.tff.runtime import tasks
from pda_fed.tff.runtime import values
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.compiler import (
  building_blocks as blocks,
)
from tensorflow_federated.python.core.impl.compiler import (
  intrinsic_defs as intrinsics,
)
from tensorflow_federated.python.core.impl.compiler import tree_analysis

_Struct = tff.structure.Struct
# Finish clients that have trained before further clients train.
_MAP, _AGGREGATE = 1, 2
_SERVER, _ALL_CLIENTS = errors.Place('the server'), errors.Place('all clients')


def _tasks_in(value: Any) -> Iterator[tasks.Task]:
  if isinstance(value, tasks.Task):
    yield value
  elif isinstance(value, _Struct):
    for element in value:
      yield from _tasks_in(element)


def resolve(value: Any) -> Any:
  """Replaces finished tasks by their results.

  Args:
    value: Any value of a run.

  Returns:
    The value without tasks.
  """
  if isinstance(value, tasks.Task):
    return resolve(value.result)
  if isinstance(value, _Struct):
    parts = [resolve(part) for part in value]
    if all(map(operator.is_, parts, value)):
      return value  # Building a structure takes longer than a small graph.
    names = tff.structure.name_list_with_nones(value)
    return _Struct(zip(names, parts, strict=True))
  if isinstance(value, values.AllEqual):
    return values.AllEqual(resolve(value.value))
  if isinstance(value, values.Clients):
    return values.Clients(map(resolve, value))
  return value


class _Intrinsics:
  """The intrinsics of one run."""

  def __init__(self, run: tasks.Run, num_clients: int):
    self._run = run
    self._num_clients = num_clients

  def _of_clients(self, value: Any) -> Sequence[Any]:
    if isinstance(value, values.AllEqual):
      return [value.value] * self._num_clients
    return value

  def _place(self, client: int) -> errors.Place:
    return errors.Place('a client', client, self._num_clients)

  def _start(
    self, function, argument, place: errors.Place, urgency: int
  ) -> tasks.Task:
    return self._run.start(
      lambda: function(resolve(argument)),
      list(_tasks_in(argument)),
      place=place,
      urgency=urgency,
    )

  def value_at_clients(self, argument, _):
    return values.AllEqual(argument)

  def same(self, argument, _):
    return argument

  def apply(self, argument, _):
    function, value = argument
    return self._start(function, value, _SERVER, _MAP)

  def eval_at_server(self, argument, _):
    return self._start(argument, None, _SERVER, _MAP)

  def eval_at_clients(self, argument, _):
    return values.Clients(
      self._start(argument, None, self._place(i), 0)
      for i in range(self._num_clients)
    )

  def map(self, argument, _):
    function, value = argument
    value = self._of_clients(value)
    return values.Clients(
      # Tasks without inputs start a client's work.
      self._start(function, v, self._place(i), _MAP if any(_tasks_in(v)) else 0)
      for i, v in enumerate(value)
    )

  def map_all_equal(self, argument, type_signature):
    function, value = argument
    if not isinstance(value, values.AllEqual):
      return self.map(argument, type_signature)
    return values.AllEqual(
      self._start(function, value.value, _ALL_CLIENTS, _MAP)
    )

  def zip_at_clients(self, argument, type_signature):
    parameter = type_signature.parameter
    if _all_equal(argument, parameter):
      return values.AllEqual(_pick(argument, parameter, lambda v: v.value))
    return values.Clients(
      _pick(argument, parameter, lambda v, i=i: self._of_clients(v)[i])
      for i in range(self._num_clients)
    )

  def aggregate(self, argument, _):
    value, total, accumulate, _, report = argument
    for i, v in enumerate(self._of_clients(value)):
      total = self._start(
        accumulate, _Struct.unnamed(total, v), self._place(i), _AGGREGATE
      )
    return self._start(report, total, _SERVER, _AGGREGATE)

  def select(self, argument, type_signature):
    keys, max_key, server_value, select = argument
    del max_key
    element = type_signature.result.member.element

    def select_all(argument):
      of_client, value = argument
      found = [
        values.emit(select(_Struct.unnamed(value, key)), element)
        for key in tf.unstack(of_client)
      ]
      return values.ingest(found, tff.SequenceType(element))

    return values.Clients(
      self._start(
        select_all, _Struct.unnamed(key, server_value), self._place(i), 0
      )
      for i, key in enumerate(self._of_clients(keys))
    )

  def sequence_map(self, argument, type_signature):
    function, sequence = argument
    result = type_signature.result
    items = _iterate(sequence, type_signature.parameter[1])
    return values.ingest(
      [values.emit(function(item), result.element) for item in items], result
    )

  def sequence_reduce(self, argument, type_signature):
    sequence, total, reduce = argument
    for item in _iterate(sequence, type_signature.parameter[0]):
      total = reduce(_Struct.unnamed(total, item))
    return total

  def sequence_sum(self, argument, type_signature):
    items = _iterate(argument, type_signature.parameter)
    of_type = type_signature.result
    total = [
      tf.zeros(spec.shape, spec.dtype) for spec in values.tensor_specs(of_type)
    ]
    for item in items:
      added = zip(total, values.flatten(item, of_type), strict=True)
      total = [a + b for a, b in added]
    return values.unflatten(iter(total), of_type)


def _iterate(sequence: Any, type_spec: tff.SequenceType) -> Iterator[Any]:
  for item in values.as_dataset(sequence, type_spec):
    yield values.ingest(item, type_spec.element)


def _all_equal(value: Any, type_spec: tff.Type) -> bool:
  if isinstance(type_spec, tff.FederatedType):
    return isinstance(value, values.AllEqual)
  parts = zip(value, type_spec, strict=True)
  return all(_all_equal(v, t) for v, t in parts)


def _pick(value: Any, type_spec: tff.Type, pick: Callable[[Any], Any]) -> Any:
  """Applies a function to each federated value in a structure."""
  if isinstance(type_spec, tff.FederatedType):
    return pick(value)
  names = tff.structure.name_list_with_nones(type_spec)
  parts = [_pick(v, t, pick) for v, t in zip(value, type_spec, strict=True)]
  return _Struct(zip(names, parts, strict=True))


_METHODS: Mapping[str, Callable[..., Any]] = {
  intrinsics.FEDERATED_AGGREGATE.uri: _Intrinsics.aggregate,
  intrinsics.FEDERATED_APPLY.uri: _Intrinsics.apply,
  intrinsics.FEDERATED_BROADCAST.uri: _Intrinsics.value_at_clients,
  intrinsics.FEDERATED_EVAL_AT_CLIENTS.uri: _Intrinsics.eval_at_clients,
  intrinsics.FEDERATED_EVAL_AT_SERVER.uri: _Intrinsics.eval_at_server,
  intrinsics.FEDERATED_MAP.uri: _Intrinsics.map,
  intrinsics.FEDERATED_MAP_ALL_EQUAL.uri: _Intrinsics.map_all_equal,
  intrinsics.FEDERATED_SECURE_SELECT.uri: _Intrinsics.select,
  intrinsics.FEDERATED_SELECT.uri: _Intrinsics.select,
  intrinsics.FEDERATED_VALUE_AT_CLIENTS.uri: _Intrinsics.value_at_clients,
  intrinsics.FEDERATED_VALUE_AT_SERVER.uri: _Intrinsics.same,
  intrinsics.FEDERATED_ZIP_AT_CLIENTS.uri: _Intrinsics.zip_at_clients,
  intrinsics.FEDERATED_ZIP_AT_SERVER.uri: _Intrinsics.same,
  intrinsics.SEQUENCE_MAP.uri: _Intrinsics.sequence_map,
  intrinsics.SEQUENCE_REDUCE.uri: _Intrinsics.sequence_reduce,
  intrinsics.SEQUENCE_SUM.uri: _Intrinsics.sequence_sum,
}


def check_supported(block: blocks.ComputationBuildingBlock) -> None:
  """Checks that every part of a compiled computation can be run.

  Args:
    block: The computation.

  Raises:
    UnsupportedComputationError: If a part cannot be run. The message names it.
  """

  def check(part) -> bool:
    found = None
    if isinstance(part, blocks.Intrinsic) and part.uri not in _METHODS:
      found = f'the intrinsic {part.uri!r}'
    elif isinstance(part, blocks.CompiledComputation):
      kind = part.proto.WhichOneof('computation')
      if kind != 'tensorflow':
        found = f'code of type {kind!r} (such as tff.jax)'
    elif isinstance(part, blocks.Placement):
      found = f'a placement as a value, {part.uri!r}'
    elif isinstance(part, blocks.Data):
      found = 'external data'
    if found is not None:
      raise errors.UnsupportedComputationError(
        f'This runtime cannot run {found}: it runs TensorFlow code placed at'
        ' tff.CLIENTS and tff.SERVER.'
      )
    return False

  tree_analysis.count(block, check)


class Program:
  """A compiled computation that can be called."""

  def __init__(self, block: blocks.ComputationBuildingBlock):
    """Initializes the program.

    Args:
      block: The output of TFF's native compiler.

    Raises:
      UnsupportedComputationError: If a part cannot be run.
    """
    check_supported(block)
    self._block = block
    self._graphs: dict[int, graphs.GraphFunction] = {}

  def start(self, run: tasks.Run, argument: Any, num_clients: int) -> Any:
    """Calls the computation.

    Args:
      run: Runs the tasks of clients and server.
      argument: The argument; None if the computation takes none.
      num_clients: The size of the cohort.

    Returns:
      The result, which contains tasks; call `resolve` on it after the run.
    """
    function = self._evaluate(self._block, {}, _Intrinsics(run, num_clients))
    return function(argument)

  def close(self) -> None:
    """Frees the graphs' TensorFlow resources."""
    for graph in self._graphs.values():
      graph.close()

  def _graph(self, block: blocks.CompiledComputation) -> graphs.GraphFunction:
    # Keyed by identity, as the tree lives as long as the program.
    found = self._graphs.get(id(block))
    if found is None:
      new = graphs.GraphFunction(block.proto.tensorflow, block.type_signature)
      found = self._graphs.setdefault(id(block), new)
    return found

  def _evaluate(self, block, names: Mapping[str, Any], run: _Intrinsics) -> Any:
    """Returns a block's value; functions become Python functions."""
    if isinstance(block, blocks.Reference):
      return names[block.name]
    if isinstance(block, blocks.Selection):
      source = self._evaluate(block.source, names, run)
      index = block.name if block.index is None else block.index
      return source[index]
    if isinstance(block, blocks.Struct):
      return _Struct(
        (name, self._evaluate(element, names, run))
        for name, element in tff.structure.iter_elements(block)
      )
    if isinstance(block, blocks.Call):
      function = self._evaluate(block.function, names, run)
      if block.argument is None:
        return function(None)
      return function(self._evaluate(block.argument, names, run))
    if isinstance(block, blocks.Block):
      names = dict(names)
      for name, value in block.locals:
        names[name] = self._evaluate(value, names, run)
      return self._evaluate(block.result, names, run)
    if isinstance(block, blocks.Lambda):
      return lambda argument: self._evaluate(
        block.result, {**names, block.parameter_name: argument}, run
      )
    if isinstance(block, blocks.CompiledComputation):
      return self._graph(block)
    if isinstance(block, blocks.Intrinsic):
      method, type_signature = _METHODS[block.uri], block.type_signature
      return lambda argument: method(run, argument, type_signature)
    if isinstance(block, blocks.Literal):
      return block.value
    raise errors.UnsupportedComputationError(
      f'This runtime cannot run {type(block).__name__} in a computation.'
    )
