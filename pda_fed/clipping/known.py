"""Values that depend on weights and constants, but on no example.

A loss often rearranges weights before they meet an example: it casts them to
bfloat16, transposes or joins them. `Known` values remember how they were made,
so that a gradient by such a value can be pulled back to the weights.
"""

from collections.abc import Sequence
import contextlib
import dataclasses
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
from pda_fed.clipping import numerics

# Operations that move entries, and at most repeat them or change their sign.
# Gradients by their results are pulled back in float32, whatever their dtype.
_MOVES = frozenset({
  'broadcast_in_dim',
  'concatenate',
  'convert_element_type',
  'copy',
  'expand_dims',
  'name',
  'neg',
  'reshape',
  'rev',
  'sharding_constraint',
  'slice',
  'split',
  'squeeze',
  'transpose',
})  # fmt: skip
_SAME_PLACE = frozenset(
  {'convert_element_type', 'copy', 'name', 'sharding_constraint'}
)


class View(NamedTuple):
  """Which part of a weight a value is.

  Attributes:
    axes: For each axis of the value, the weight's axis that it is; None for an
      axis of length 1.
    box: For each axis of the weight, the first index and the one past the last.
  """

  axes: tuple[Optional[int], ...]
  box: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _Leaf:
  """The weight at an index of the flattened weights."""

  index: int


@dataclasses.dataclass(frozen=True, eq=False)
class _Constant:
  """A constant of the program, or an array that the loss closes over."""

  value: Any


@dataclasses.dataclass(frozen=True, eq=False)
class _Application:
  """An operation on known values."""

  eqn: Any
  parts: tuple['Known', ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
  """A value that depends on no example.

  Attributes:
    value: The value where the program is now; inside a scan over weights, that
      of one step.
    source: How it was made.
    index: Which result of `source` it is.
    leaves: The weights that it depends on, if it has a derivative.
    moves: Whether entries were only moved since the weights.
    keeps_norms: Whether its gradient is as long as that by the weights.
    view: Which part of a single weight it is, if that is known.
    stack: For each scan around this place, whether the value differs between
      its steps.
  """

  value: Any
  source: Any
  index: int = 0
  leaves: frozenset[int] = frozenset()
  moves: bool = True
  keeps_norms: bool = True
  view: Optional[View] = None
  stack: tuple[bool, ...] = ()

  def enter(self, value: Any, depth: int, sliced: bool) -> 'Known':
    """Returns the value inside a scan.

    Args:
      value: Its value there.
      depth: The number of scans around that scan.
      sliced: Whether the scan goes over its first axis.
    """
    view = self.view
    if sliced and view is not None:
      view = View(view.axes[1:], view.box)
    outside = (False,) * (depth - len(self.stack))
    stack = (*self.stack, *outside, sliced)
    return dataclasses.replace(self, value=value, view=view, stack=stack)


@dataclasses.dataclass(frozen=True)
class Data:
  """A value that depends on the example, or on a tap."""

  value: Any


def constant(value: Any) -> Known:
  """Returns a constant."""
  return Known(value, _Constant(value))


def weight(value: jax.Array, index: int) -> Known:
  """Returns the weight at an index of the flattened weights."""
  view = View(tuple(range(value.ndim)), tuple((0, n) for n in value.shape))
  return Known(value, _Leaf(index), 0, frozenset([index]), view=view)


def bind(eqn, values: Sequence[Any]) -> list[Any]:
  """Applies an operation of a program to values."""
  params = eqn.primitive.get_bind_params(eqn.params)
  # Before JAX 0.10 functions came apart from the other parameters.
  functions, params = params if isinstance(params, tuple) else ((), params)
  manager = getattr(getattr(eqn, 'ctx', None), 'manager', None)
  with manager if manager is not None else contextlib.nullcontext():
    out = eqn.primitive.bind(*functions, *values, **params)
  return list(out) if eqn.primitive.multiple_results else [out]


def derive(eqn, parts: Sequence[Known]) -> list[Known]:
  """Applies an operation to known values."""
  source = _Application(eqn, tuple(parts))
  leaves = frozenset().union(*(part.leaves for part in parts))
  depth = max((len(part.stack) for part in parts), default=0)
  stack = tuple(
    any(_is_stacked(p, level) for p in parts) for level in range(depth)
  )
  name = eqn.primitive.name
  derived = []
  for index, value in enumerate(bind(eqn, [part.value for part in parts])):
    known = Known(value, source, index, stack=stack)
    differs = jnp.issubdtype(value.dtype, jnp.inexact)
    if leaves and differs and name != 'stop_gradient':
      is_real = jnp.issubdtype(value.dtype, jnp.floating)
      moves = name in _MOVES and all(p.moves for p in parts if p.leaves)
      moves = moves and is_real
      known = dataclasses.replace(
        known,
        leaves=leaves,
        moves=moves,
        keeps_norms=moves and _keeps_norms(name, parts, value),
        view=_view(eqn, parts[0], value, index) if moves else None,
      )
    derived.append(known)
  return derived


def _is_stacked(known: Known, level: int) -> bool:
  return level < len(known.stack) and known.stack[level]


def _keeps_norms(name: str, parts: Sequence[Known], value) -> bool:
  if not all(part.leaves and part.keeps_norms for part in parts):
    return False
  if name == 'broadcast_in_dim':
    return value.size == parts[0].value.size
  # Weights that are joined must differ: otherwise their gradients add up.
  together = frozenset().union(*(part.leaves for part in parts))
  return len(together) == sum(len(part.leaves) for part in parts)


def _view(eqn, part: Known, value, index: int) -> Optional[View]:
  """Returns the view of an operation's result, if it is a simple one."""
  name, params, old = eqn.primitive.name, eqn.params, part.view
  if old is None:
    return None
  if name in _SAME_PLACE:
    return old
  if name == 'transpose':
    return View(tuple(old.axes[a] for a in params['permutation']), old.box)
  if name in ('reshape', 'squeeze', 'expand_dims', 'broadcast_in_dim'):
    # Only axes of length 1 may come or go.
    axes = [a for a, n in zip(old.axes, part.value.shape, strict=True) if n > 1]
    if [n for n in part.value.shape if n > 1] != [
      n for n in value.shape if n > 1
    ]:
      return None
    left = iter(axes)
    return View(
      tuple(next(left) if n > 1 else None for n in value.shape), old.box
    )
  if name == 'slice' and params['strides'] is None:
    starts = params['start_indices']
  elif name == 'split':
    starts = [0] * value.ndim
    starts[params['axis']] = sum(params['sizes'][:index])
  else:
    return None
  box = list(old.box)
  for axis, start, size in zip(old.axes, starts, value.shape, strict=True):
    if axis is not None:
      first = box[axis][0] + start
      box[axis] = first, first + size
  return View(old.axes, tuple(box))


def evaluate(
  known: Known, leaves: Sequence[jax.Array], wide: bool, memo: dict
) -> Any:
  """Computes a known value again, from other weights.

  Args:
    known: The value.
    leaves: The flattened weights.
    wide: Whether to leave out casts to other floating-point dtypes.
    memo: Results of operations, by their identity.

  Returns:
    The value, with an axis for each scan that slices it.
  """
  source = known.source
  if isinstance(source, _Leaf):
    return leaves[source.index]
  if isinstance(source, _Constant):
    return source.value
  if id(source) not in memo:
    parts = [evaluate(part, leaves, wide, memo) for part in source.parts]
    memo[id(source)] = _apply(source, parts, wide)
  return memo[id(source)][known.index]


def _apply(
  source: _Application, values: Sequence[Any], wide: bool
) -> list[Any]:
  def operation(*values):
    if wide and source.eqn.primitive.name == 'convert_element_type':
      return list(values)
    if wide and source.eqn.primitive.name == 'concatenate':
      dtype = jnp.result_type(*values)
      values = [jnp.asarray(v, dtype) for v in values]
    return bind(source.eqn, values)

  depth = max((len(part.stack) for part in source.parts), default=0)
  for level in reversed(range(depth)):
    axes = [0 if _is_stacked(part, level) else None for part in source.parts]
    if 0 in axes:
      operation = jax.vmap(operation, in_axes=axes)
  return operation(*values)


def pull(
  known: Known, leaves: Sequence[jax.Array], gradient: jax.Array
) -> dict[int, jax.Array]:
  """Pulls a gradient by a known value back to the weights.

  Args:
    known: The value; it depends on weights.
    leaves: The flattened weights.
    gradient: The gradient, with an axis for each scan that slices the value.

  Returns:
    The gradient by each weight that the value depends on, in at least float32.
  """
  which = sorted(known.leaves)

  def chain(*own):
    replaced = list(leaves)
    for index, leaf in zip(which, own, strict=True):
      replaced[index] = leaf
    return evaluate(known, replaced, known.moves, {})

  own = [leaves[index] for index in which]
  if known.moves:
    own = [leaf.astype(numerics.wide_dtype(gradient)) for leaf in own]
  value, back = jax.vjp(chain, *own)
  gradients = map(numerics.widen, back(gradient.astype(value.dtype)))
  return dict(zip(which, gradients, strict=True))
