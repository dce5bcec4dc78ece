"""TensorFlow graphs of TFF computations as functions that threads share.

TFF's compiler leaves a computation's TensorFlow code as serialized graphs. A
graph has variables, which belong to one call at a time. So each thread that
calls a graph while another does gets an instance of its own: the same graph
with functions and resources renamed, imported by `tf.compat.v1.wrap_function`
and pruned to what is fed and fetched.
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

# Attributes of nodes that hold the name of a function as a string.
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
  """Renames what a process has only one of: functions and shared resources.

  Args:
    graph_def: Changed in place.
    suffix: Appended to each name.
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

  `WrappedFunction.__call__` matches arguments to a signature for longer than a
  small graph runs, and the way to cancel it is for one thread of a process.
  """

  def __init__(self, wrapped, feeds: Sequence[str], fetches: Sequence[str]):
    find = wrapped.graph.as_graph_element
    self._pruned = wrapped.prune(  # TensorFlow forgets it when we do.
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
  """Returns a function that gives the handles of resources, if there are."""
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
    # TensorFlow wants each fetch once; a result may hold a tensor twice.
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
    # The initializer assigns variables anew; tables and queues it would not.
    self._reset = _handles(
      wrapped, feeds, [r for r in resources if r.type != 'VarHandleOp']
    )

  def __call__(self, feeds: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    # What a computation has lives for one call: else a client's data would
    # reach the next one.
    if self._reset is not None:
      _destroy(self._reset(feeds))
    if self._initialize is not None:
      self._initialize(feeds)
    fetched = self._run(feeds)
    return [fetched[i] for i in self._order]

  def destroy(self) -> None:
    """Frees what TensorFlow keeps by name: resources and functions."""
    with tf.init_scope():  # Eagerly, wherever the caller is.
      if self._kept is not None:
        # Not that of the thread's task, which may be cancelled already.
        _destroy(self._kept([], cancellation.CancellationManager()))
      for name in self._library:
        eager_context.context().remove_function(name)


class GraphFunction:
  """A TensorFlow computation of TFF, callable from any number of threads."""

  def __init__(
    self, proto: computation_pb2.TensorFlow, type_signature: tff.FunctionType
  ):
    """Initializes the function; graphs are imported when it is called.

    Args:
      proto: The computation.
      type_signature: Its type.
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
      A value of the result's type, of eager tensors.
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
    """Frees all instances; those that run, afterwards."""
    self._closed = True
    while True:
      try:
        self._idle.get_nowait().destroy()
      except queue.Empty:
        return
