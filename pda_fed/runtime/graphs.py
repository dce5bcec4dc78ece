"""TensorFlow graphs of TFF computations, as thread-safe functions.

TFF's compiler emits a computation's TensorFlow code as serialized graphs. A
graph has variables, which only one call at a time can use. So concurrent
threads get separate instances: the same graph with renamed functions and
resources, imported by `tf.compat.v1.wrap_function` and pruned to its inputs and
outputs.
"""

from collections.abc import Iterator, Sequence
import itertools
import queue
from typing import Any, Optional

from pda_fed.runtime import tasks
from pda_fed.runtime import values
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.python.tensorflow_libs import serialization_utils

# isort: split
from tensorflow.python.eager import cancellation
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute

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
    if 'shared_name' in node.attr:
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


class _Function:
  """A part of an imported graph, called by name.

  `WrappedFunction.__call__` takes longer to match arguments than a small graph
  takes to run, and it can be cancelled only from one thread of a process.
  """

  def __init__(self, wrapped, feeds: Sequence[str], fetches: Sequence[str]):
    find = wrapped.graph.as_graph_element
    self._pruned = wrapped.prune(  # Keep a reference, or TensorFlow deletes it.
      [find(name) for name in feeds], [find(name) for name in fetches]
    )
    self._name = self._pruned.name
    self._num_outputs = len(self._pruned.outputs)

  def __call__(
    self,
    feeds: Sequence[tf.Tensor],
    manager: Optional[cancellation.CancellationManager] = None,
  ) -> list[tf.Tensor]:
    context = eager_context.context()
    options = context.function_call_options.as_attrs()
    return execute.execute_with_cancellation(
      self._name.decode(),
      num_outputs=self._num_outputs,
      inputs=[*feeds, *self._pruned.captured_inputs],
      attrs=tuple(itertools.chain(*options.items())),
      ctx=context,
      cancellation_manager=manager or tasks.cancellation_manager(),
    )


def _handles(wrapped, feeds: Sequence[str], resources) -> Optional[_Function]:
  """Returns a function for the handles of resources; None without any."""
  names = [resource.outputs[0].name for resource in resources]
  return _Function(wrapped, feeds, names) if names else None


def _destroy(handles: Sequence[tf.Tensor]) -> None:
  for handle in handles:
    tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)


class _Instance:
  """One copy of a graph, for one call at a time."""

  def __init__(self, proto: computation_pb2.TensorFlow, feeds: Sequence[str]):
    graph_def = serialization_utils.unpack_graph_def(proto.graph_def)
    make_unique(graph_def, f'_pda_fed_{next(_instance_numbers)}')
    self._library = [f.signature.name for f in graph_def.library.function]
    token = proto.session_token_tensor_name

    def import_graph():
      replaced = {token: tf.constant('')} if token else None
      tf.import_graph_def(graph_def, input_map=replaced, name='')

    wrapped = tf.compat.v1.wrap_function(import_graph, [])
    # TensorFlow allows each fetch once; a result may contain a tensor twice.
    fetches = _tensor_names(proto.result)
    unique = list(dict.fromkeys(fetches))
    self._order = [unique.index(name) for name in fetches]
    self._run = _Function(wrapped, feeds, unique)
    self._initialize = None
    if proto.initialize_op:
      self._initialize = _Function(wrapped, feeds, [proto.initialize_op])
    resources = [
      op
      for op in wrapped.graph.get_operations()
      if 'shared_name' in op.node_def.attr
      and op.outputs
      and op.outputs[0].dtype == tf.resource
    ]
    self._kept = _handles(wrapped, [], [r for r in resources if not r.inputs])
    # The initializer resets variables, but not tables and queues.
    self._reset = _handles(
      wrapped, feeds, [r for r in resources if r.type != 'VarHandleOp']
    )

  def __call__(self, feeds: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    # State lasts for one call; otherwise a client's data would reach the next
    # client.
    if self._reset is not None:
      _destroy(self._reset(feeds))
    if self._initialize is not None:
      self._initialize(feeds)
    fetched = self._run(feeds)
    return [fetched[i] for i in self._order]

  def destroy(self) -> None:
    """Frees the resources and functions that TensorFlow keeps by name."""
    with tf.init_scope():  # Eagerly, even inside a graph.
      if self._kept is not None:
        # The manager of the thread's task may already be cancelled.
        _destroy(self._kept([], cancellation.CancellationManager()))
      for name in self._library:
        eager_context.context().remove_function(name)


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
    self._feeds = [] if parameter is None else _tensor_names(proto.parameter)
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
      feeds = []
      if self._feeds:
        feeds = values.flatten(argument, self._type.parameter)
      fetched = instance(feeds)
    finally:
      self._idle.put(instance)
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
