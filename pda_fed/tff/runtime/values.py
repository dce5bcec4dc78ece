"""Values of TFF types, for TensorFlow in this process.

A tensor is an eager tensor, a sequence is a variant tensor or a
`tf.data.Dataset`, a structure is a `tff.structure.Struct`. A value placed at
clients is `Clients` or `AllEqual`; a value placed at the server is the value
itself. Nothing is serialized.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np
from pda_fed.tff.runtime import errors
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.compiler import array
from tensorflow_federated.python.core.impl.types import type_analysis
from tensorflow_federated.python.core.impl.types import type_conversions
from tensorflow_federated.python.core.impl.utils import tensorflow_utils
import tree

_VALUE_TYPES = (
  tff.FederatedType,
  tff.SequenceType,
  tff.StructType,
  tff.TensorType,
)


@dataclasses.dataclass(frozen=True)
class AllEqual:
  """A value that all clients share."""

  value: Any


class Clients(list):
  """Values of clients, in the order of the cohort."""


def check_supported(type_signature: tff.FunctionType) -> None:
  """Checks that a computation's argument and result are values.

  Args:
    type_signature: The computation's type.

  Raises:
    UnsupportedComputationError: If a part of them is a function, or another
      type that is no value. The message names it.
  """
  sides = {
    'an argument': type_signature.parameter,
    'a result': type_signature.result,
  }
  for side, type_spec in sides.items():
    if type_spec is None:
      continue
    for part in type_analysis.preorder_types(type_spec):
      if not isinstance(part, _VALUE_TYPES):
        raise errors.UnsupportedComputationError(
          f'This runtime cannot run a computation with {side} of type'
          f' {type_spec}: {part} is no tensor and no sequence.'
        )


def _map_struct(
  function: Callable[[Any, tff.Type], Any],
  value: Any,
  type_spec: tff.StructType,
) -> tff.structure.Struct:
  names = tff.structure.name_list_with_nones(type_spec)
  parts = [function(v, t) for v, t in _elements(value, type_spec)]
  return tff.structure.Struct(zip(names, parts, strict=True))


def _elements(value: Any, type_spec: tff.StructType) -> list[tuple[Any, Any]]:
  """Pairs the elements of a structure with their types."""
  found = tff.structure.from_container(value, recursive=False)
  if len(found) != len(type_spec):
    raise TypeError(
      f'A value of type {type_spec} must have {len(type_spec)} elements. Found'
      f' {len(found)}.'
    )
  names = tff.structure.name_list_with_nones(type_spec)
  given = tff.structure.name_list_with_nones(found)
  if any(b not in (a, None) for a, b in zip(names, given, strict=True)):
    raise TypeError(
      f'A value of type {type_spec} must have the names {names}. Found {given}.'
    )
  return list(zip(found, type_spec, strict=True))


def _tensor(value: Any, type_spec: tff.TensorType) -> tf.Tensor:
  """Converts a number, a string or an array without changing its dtype."""
  if isinstance(value, tf.Variable):
    value = value.read_value()
  if isinstance(value, tf.Tensor):
    dtype, shape = value.dtype, value.shape
    if dtype == tf.as_dtype(type_spec.dtype.type) and tf.TensorShape(
      type_spec.shape
    ).is_compatible_with(shape):
      return value
    raise TypeError(
      f'A value of type {type_spec} is required. Found a tensor of type'
      f' {dtype.name} and shape {shape}.'
    )
  dtype = type_spec.dtype.type
  if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
    fits = all(array.is_compatible_dtype(x, dtype) for x in tree.flatten(value))
    value = np.asarray(value, None if dtype is np.str_ else dtype)
  else:
    fits = array.is_compatible_dtype(value, dtype)
  if not fits or not array.is_compatible_shape(value, type_spec.shape):
    raise TypeError(
      f'A value of type {type_spec} is required. Found {value!r}.'
    )
  return tf.constant(value, tf.as_dtype(type_spec.dtype.type))


def _element_type(spec: Any) -> tff.Type:
  """Returns the type of a dataset's elements, cached for a cohort.

  Args:
    spec: The dataset's `element_spec`.
  """
  try:
    return _cached_type(spec)
  except TypeError:  # A dictionary is not hashable.
    return tff.types.tensorflow_to_type(spec)


_cached_type = functools.lru_cache(tff.types.tensorflow_to_type)


def _dataset(value: Any, type_spec: tff.SequenceType) -> tf.data.Dataset:
  if not isinstance(value, tf.data.Dataset):
    return tensorflow_utils.make_data_set_from_elements(
      None, list(value), type_spec.element
    )
  found = _element_type(value.element_spec)
  if not type_spec.element.is_assignable_from(found):
    raise TypeError(
      f'A dataset with elements of type {type_spec.element} is required. Found'
      f' elements of type {found}.'
    )
  return value


def ingest(value: Any, type_spec: tff.Type) -> Any:
  """Converts a caller's argument to a value.

  Args:
    value: A number, a string, an array, a tensor, a dataset, a list of a
      sequence's elements, a list of clients' values, or a structure of these.
    type_spec: The required type.

  Returns:
    The value.

  Raises:
    TypeError: If the value does not have that type.
  """
  if isinstance(type_spec, tff.FederatedType):
    if type_spec.placement is tff.SERVER:
      return ingest(value, type_spec.member)
    if type_spec.all_equal:
      return AllEqual(ingest(value, type_spec.member))
    return Clients(ingest(v, type_spec.member) for v in value)
  if isinstance(type_spec, tff.StructType):
    return _map_struct(ingest, value, type_spec)
  if isinstance(type_spec, tff.SequenceType):
    return _dataset(value, type_spec)
  return _tensor(value, type_spec)


def emit(value: Any, type_spec: tff.Type, num_clients: int = 0) -> Any:
  """Converts a value to NumPy arrays and numbers for the caller.

  Args:
    value: A value returned by `ingest` or a graph.
    type_spec: The value's type.
    num_clients: The size of the cohort.

  Returns:
    Arrays, datasets, lists of clients' values, and structures of these.
  """
  if isinstance(type_spec, tff.FederatedType):
    if isinstance(value, Clients):
      return [emit(v, type_spec.member) for v in value]
    if isinstance(value, AllEqual):
      one = emit(value.value, type_spec.member)
      return one if type_spec.all_equal else [one] * num_clients
    return emit(value, type_spec.member)
  if isinstance(type_spec, tff.StructType):
    emit_part = functools.partial(emit, num_clients=num_clients)
    return _map_struct(emit_part, value, type_spec)
  if isinstance(type_spec, tff.SequenceType):
    return as_dataset(value, type_spec)
  return value.numpy() if isinstance(value, tf.Tensor) else value


def as_dataset(value: Any, type_spec: tff.SequenceType) -> tf.data.Dataset:
  """Returns a sequence, in any form, as a dataset."""
  if isinstance(value, tf.data.Dataset):
    return value
  spec = type_conversions.type_to_tf_structure(type_spec.element)
  return tf.data.experimental.from_variant(value, spec)


def tensor_specs(type_spec: tff.Type) -> list[tf.TensorSpec]:
  """Returns the specs of the tensors of `flatten`.

  Args:
    type_spec: A type without functions and placements.
  """
  if isinstance(type_spec, tff.StructType):
    return [spec for part in type_spec for spec in tensor_specs(part)]
  if isinstance(type_spec, tff.SequenceType):
    return [tf.TensorSpec([], tf.variant)]
  return [tf.TensorSpec(type_spec.shape, type_spec.dtype.type)]


def flatten(value: Any, type_spec: tff.Type) -> list[tf.Tensor]:
  """Returns the tensors of a value, in the order of its type.

  Args:
    value: A value returned by `ingest` or a graph, or a literal of TFF's
      compiler.
    type_spec: The value's type.
  """
  if isinstance(type_spec, tff.StructType):
    parts = zip(value, type_spec, strict=True)
    return [tensor for v, t in parts for tensor in flatten(v, t)]
  if isinstance(value, tf.data.Dataset):
    return [tf.data.experimental.to_variant(value)]
  if isinstance(value, tf.Tensor):
    return [value]
  return [tf.constant(value, tf.as_dtype(type_spec.dtype.type))]


def unflatten(tensors: Iterator[tf.Tensor], type_spec: tff.Type) -> Any:
  """Builds a value from the next tensors; the inverse of `flatten`."""
  if isinstance(type_spec, tff.StructType):
    return tff.structure.Struct(
      [
        (n, unflatten(tensors, t))
        for n, t in tff.structure.iter_elements(type_spec)
      ]
    )
  return next(tensors)
