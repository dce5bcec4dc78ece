"""TensorFlow graphs of TFF computations, as thread-safe functions.

TFF's compiler emits a computation's TensorFlow code as serialized graphs. A
graph has variables, which only one call at a time can use. So concurrent
threads get separate instances: the same graph with renamed functions and
resources. The part of it that its outputs need is imported by
`tf.compat.v1.wrap_function`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
import contextlib
import itertools
import queue
from typing import Any, Optional

from pda_fed.tff.runtime import tasks
from pda_fed.tff.runtime import values
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.python.tensorflow_libs import serialization_utils

# isort: split
from tensorflow.python.eager import cancellation
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute
from tensorflow.python.framework import op_def_registry

# Node attributes that hold a function's name as a string.
_FUNCTION_NAME_ATTRIBUTES = (
  'forward_function_name',
  'backward_function_name',
  '_forward_func_name',
  '_backward_func_name',
)
_instance_numbers = itertools.count()


def _nodes(graph_def: tf.compat.v1.GraphDef) -> Iterator[Any]:
  yield from graph_def.node
  for function in graph_def.library.function:
    yield from function.node_def


def _is_named(node: Any) -> bool:
  """Whether a node has state that TensorFlow keeps by name."""
  return 'shared_name' in node.attr


def _rename_functions(graph_def: tf.compat.v1.GraphDef, suffix: str) -> None:
  names = {
    f.signature.name: f.signature.name + suffix
    for f in graph_def.library.function
  }

  def rename_in(attribute) -> None:
    for function in (attribute.func, *attribute.list.func):
      if function.name in names:
        function.name = names[function.name]

  for function in graph_def.library.function:
    function.signature.name = names[function.signature.name]
    for attribute in function.attr.values():
      rename_in(attribute)
  for gradient in graph_def.library.gradient:
    for field in ('function_name', 'gradient_func'):
      name = getattr(gradient, field)
      setattr(gradient, field, names.get(name, name))
  for node in _nodes(graph_def):
    node.op = names.get(node.op, node.op)
    for key, attribute in node.attr.items():
      kind = attribute.WhichOneof('value')
      if kind == 'func' or (kind == 'list' and attribute.list.func):
        rename_in(attribute)
      elif key in _FUNCTION_NAME_ATTRIBUTES:
        name = attribute.s.decode()
        attribute.s = names.get(name, name).encode()


def make_unique(graph_def: tf.compat.v1.GraphDef, suffix: str) -> None:
  """Renames functions and shared resources, whose names are global.

  Args:
    graph_def: The graph, which is changed in place.
    suffix: The suffix appended to each name.
  """
  _rename_functions(graph_def, suffix)
  for node in _nodes(graph_def):
    # A one-shot iterator is its kernel's own, and refuses a name.
    if _is_named(node) and node.op != 'OneShotIterator':
      name = node.attr['shared_name'].s or node.name.encode()
      node.attr['shared_name'].s = name + suffix.encode()


def _tensor_names(
  binding: computation_pb2.TensorFlow.Binding,
) -> list[str]:
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    return [binding.tensor.tensor_name]
  if kind == 'sequence':
    return [binding.sequence.variant_tensor_name]
  return [n for e in binding.struct.element for n in _tensor_names(e)]


def _op_name(tensor_name: str) -> str:
  """Returns the node of a node's input: 'x' of 'x', 'x:1' and '^x'."""
  return tensor_name.removeprefix('^').split(':')[0]


def _calls_function(node: Any, names: Set[str]) -> bool:
  return node.op in names or any(
    attribute.WhichOneof('value') == 'func' or attribute.list.func
    for attribute in node.attr.values()
  )


def _needed_part(
  graph_def: tf.compat.v1.GraphDef, fetches: Iterable[str], given: Set[str]
) -> tf.compat.v1.GraphDef:
  """Returns the part of a graph that its fetches need.

  Args:
    graph_def: The graph.
    fetches: Names of tensors or nodes.
    given: Nodes that are replaced, and so not needed.
  """
  nodes = {node.name: node for node in graph_def.node}
  needed: set[str] = set()
  missing = [_op_name(name) for name in fetches]
  while missing:
    name = missing.pop()
    if name not in needed and name not in given:
      needed.add(name)
      missing.extend(map(_op_name, nodes[name].input))
  part = tf.compat.v1.GraphDef(versions=graph_def.versions)
  part.node.extend(node for node in graph_def.node if node.name in needed)
  for node in part.node:
    # It names other nodes, which may be missing. TensorFlow places operations
    # on one resource together without it.
    node.attr.pop('_class', None)
  functions = {f.signature.name for f in graph_def.library.function}
  if any(_calls_function(node, functions) for node in part.node):
    part.library.CopyFrom(graph_def.library)
  return part


class _Function:
  """A part of a graph, called by name.

  The part is imported, not cut out of an imported graph by
  `WrappedFunction.prune`: that copies node after node, and so cuts loops at an
  arbitrary place. `WrappedFunction.__call__` takes longer to match arguments
  than a small graph takes to run, and it can be cancelled only from one thread
  of a process.
  """

  def __init__(
    self,
    graph_def: tf.compat.v1.GraphDef,
    feeds: Mapping[str, tf.TensorSpec],
    fetches: Sequence[str],
    token: str = '',
  ):
    """Initializes the function.

    Args:
      graph_def: The graph.
      feeds: Tensors that are arguments.
      fetches: Tensors to return, or one node to run.
      token: A tensor that is replaced by ''; none if empty.
    """
    ops = {_op_name(name) for name in [*feeds, *([token] if token else [])]}
    part = _needed_part(graph_def, fetches, ops)
    inputs = {name for node in part.node for name in node.input}

    def import_part(*arguments):
      given = dict(zip(feeds, arguments, strict=True))
      if token:
        given[token] = tf.constant('')
      replaced = {}
      for name, tensor in given.items():
        op = _op_name(name)
        # Only what is in use may be mapped.
        names = {name, op} if name == f'{op}:0' else {name}
        if names & inputs:
          replaced[name] = tensor
        if f'^{op}' in inputs:
          replaced[f'^{op}'] = tensor
      imported = [name for name in fetches if name not in given]
      found = tf.import_graph_def(part, replaced, imported, name='part')
      if imported and isinstance(found[0], tf.Operation):
        with tf.control_dependencies(found):
          return tf.constant(True)
      found = dict(zip(imported, found, strict=True))
      return [found[n] if n in found else given[n] for n in fetches]

    # Keep a reference, or TensorFlow deletes it.
    self._wrapped = tf.compat.v1.wrap_function(import_part, feeds.values())
    self._name = self._wrapped.name
    self._num_outputs = len(self._wrapped.outputs)

  def __call__(
    self,
    arguments: Sequence[tf.Tensor],
    manager: Optional[cancellation.CancellationManager] = None,
  ) -> list[tf.Tensor]:
    context = eager_context.context()
    options = context.function_call_options.as_attrs()
    return execute.execute_with_cancellation(
      self._name.decode(),
      num_outputs=self._num_outputs,
      inputs=[*arguments, *self._wrapped.captured_inputs],
      attrs=tuple(itertools.chain(*options.items())),
      ctx=context,
      cancellation_manager=manager or tasks.cancellation_manager(),
    )


# Resources that a run creates anew after they were destroyed. Kernels of others
# create theirs only once, or keep state where no handle reaches it.
_RENEWABLE = frozenset(
  {
    'FIFOQueueV2',
    'HashTableV2',
    'MutableHashTableOfTensorsV2',
    'MutableHashTableV2',
    'PaddingFIFOQueueV2',
    'PriorityQueueV2',
    'RandomShuffleQueueV2',
    'VarHandleOp',
  }
)


def _is_reusable(graph_def: tf.compat.v1.GraphDef) -> bool:
  """Whether calls may use one copy of a graph in turn.

  That is, whether all its state can be reset between calls.
  """
  in_functions = (n for f in graph_def.library.function for n in f.node_def)
  return not any(map(_is_named, in_functions)) and all(
    node.op in _RENEWABLE and not node.input
    for node in graph_def.node
    if _is_named(node)
  )


def _resources(graph_def: tf.compat.v1.GraphDef) -> Iterator[Any]:
  """Yields the nodes that create a resource with a name."""
  for node in filter(_is_named, graph_def.node):
    op = op_def_registry.get(node.op)  # None for a function.
    if op is not None and op.output_arg:
      if op.output_arg[0].type == tf.resource.as_datatype_enum:
        yield node


def _destroy(handles: Sequence[tf.Tensor]) -> None:
  for handle in handles:
    tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)


def _detached(tensor: tf.Tensor) -> tf.Tensor:
  """Returns a dataset that has copies of the variables that it reads."""
  if tensor.dtype != tf.variant:
    return tensor
  graph = tf.raw_ops.DatasetToGraphV2(input_dataset=tensor)
  return tf.raw_ops.DatasetFromGraph(graph_def=graph)


class _Instance:
  """One copy of a graph, for one call at a time."""

  def __init__(
    self,
    proto: computation_pb2.TensorFlow,
    feeds: Mapping[str, tf.TensorSpec],
  ):
    graph_def = serialization_utils.unpack_graph_def(proto.graph_def)
    make_unique(graph_def, f'_pda_fed_{next(_instance_numbers)}')
    self.is_reusable = _is_reusable(graph_def)
    self._has_state = any(map(_is_named, _nodes(graph_def)))
    self._library = [f.signature.name for f in graph_def.library.function]

    def function(*fetches, feeds=feeds) -> Optional[_Function]:
      if not fetches:
        return None
      token = proto.session_token_tensor_name
      return _Function(graph_def, feeds, fetches, token)

    self._run = function(*_tensor_names(proto.result))
    self._initialize = None
    if proto.initialize_op:
      self._initialize = function(proto.initialize_op)
    resources = list(_resources(graph_def))
    names = {r.name: f'{r.name}:0' for r in resources}
    self._kept = function(
      *(names[r.name] for r in resources if not r.input), feeds={}
    )
    self._reset = self._made_of_inputs = None
    if self.is_reusable:
      # The initializer resets variables, but not tables and queues.
      self._reset = function(
        *(names[r.name] for r in resources if r.op != 'VarHandleOp'), feeds={}
      )
    else:
      self._made_of_inputs = function(
        *(names[r.name] for r in resources if r.input)
      )

  def __call__(self, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    # State lasts for one call; otherwise a client's data would reach the next
    # client.
    if self._reset is not None:
      _destroy(self._reset([]))
    if self._initialize is not None:
      self._initialize(arguments)
    found = self._run(arguments) if self._run is not None else []
    if self._has_state:
      # A dataset is read later, when the variables have other values.
      found = [_detached(tensor) for tensor in found]
    if self._made_of_inputs is not None:
      _destroy(self._made_of_inputs(arguments))
    return found

  def destroy(self) -> None:
    """Frees the resources and functions that TensorFlow keeps by name."""
    with tf.init_scope():  # Eagerly, even inside a graph.
      context = eager_context.context()
      if self._kept is not None:
        # Whoever frees this has nothing to do with an error of its kernels,
        # which the call has raised already.
        with contextlib.suppress(tf.errors.OpError):
          # The manager of the thread's task may already be cancelled.
          _destroy(self._kept([], cancellation.CancellationManager()))
      for name in self._library:
        # Each part of the graph has added the function once or more.
        while context.has_function(name):
          context.remove_function(name)


class GraphFunction:
  """A TensorFlow computation of TFF that any number of threads can call."""

  def __init__(
    self, proto: computation_pb2.TensorFlow, type_signature: tff.FunctionType
  ):
    """Initializes the function; graphs are imported when it is called.

    Args:
      proto: The computation.
      type_signature: The computation's type.
    """
    self._proto = proto
    self._type = type_signature
    parameter = type_signature.parameter
    self._feeds = {}
    if parameter is not None:
      names = _tensor_names(proto.parameter)
      self._feeds = dict(
        zip(names, values.tensor_specs(parameter), strict=True)
      )
    self._idle: queue.SimpleQueue[_Instance] = queue.SimpleQueue()
    self._closed = False

  def __call__(self, argument: Optional[Any] = None) -> Any:
    """Runs the graph.

    Args:
      argument: A value of the parameter's type; see `values`.

    Returns:
      A value of the result's type, with eager tensors.
    """
    try:
      instance = self._idle.get_nowait()
    except queue.Empty:
      instance = _Instance(self._proto, self._feeds)
    try:
      arguments = []
      if self._feeds:
        arguments = values.flatten(argument, self._type.parameter)
      fetched = instance(arguments)
    finally:
      if instance.is_reusable:
        self._idle.put(instance)
      else:
        instance.destroy()
      if self._closed:
        self.close()
    return values.unflatten(iter(fetched), self._type.result)

  def close(self) -> None:
    """Frees all instances; running ones are freed when they finish."""
    self._closed = True
    while True:
      try:
        self._idle.get_nowait().destroy()
      except queue.Empty:
        return
