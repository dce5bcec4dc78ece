"""Values that depend on weights and constants, but on no example.

A loss often rearranges weights before they meet an example: it casts them to
bfloat16, transposes or joins them. `Known` values remember how they were made,
so that a gradient by such a value can be pulled back to the weights.
"""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import itertools
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
from pda_fed.clipping import numerics

_SAME_PLACE = frozenset(
  {'convert_element_type', 'copy', 'name', 'sharding_constraint'}
)
_RESHAPES = frozenset({'broadcast_in_dim', 'expand_dims', 'reshape', 'squeeze'})
# Operations that move entries, and at most repeat them or change their sign.
# Gradients by their results are pulled back in float32, whatever their dtype.
_MOVES = frozenset(
  {'concatenate', 'neg', 'rev', 'slice', 'split', 'transpose'}
).union(_SAME_PLACE, _RESHAPES)


class View(NamedTuple):
  """Which part of a weight a value is.

  Attributes:
    axes: For each axis of the value, the weight's axis that it is; None for an
      axis of length 1.
    box: For each axis of the weight, the first index and the one past the last.
  """

  axes: tuple[Optional[int], ...]
  box: tuple[tuple[int, int], ...]

  def overlaps(self, other: 'View') -> bool:
    pairs = zip(self.box, other.box, strict=True)
    return all(max(a[0], b[0]) < min(a[1], b[1]) for a, b in pairs)


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
  """A value that depends on no example.

  Attributes:
    value: The value where the program is now; inside a scan over weights, that
      of one step.
    make: Computes it again, from weights, whether to leave out casts to other
      floating-point dtypes, and results of operations that are known already.
      It has an axis for each scan that slices it.
    leaves: The numbers of the weights that it depends on, if it has a
      derivative.
    moves: Whether entries were only moved since the weights.
    keeps_norms: Whether its gradient is as long as that by the weights.
    view: Which part of a single weight it is, if that is known.
    stack: For each scan around this place, whether the value differs between
      its steps.
  """

  value: Any
  make: Callable[[Sequence[Any], bool, dict], Any]
  leaves: frozenset[int] = frozenset()
  moves: bool = True
  keeps_norms: bool = True
  view: Optional[View] = None
  stack: tuple[bool, ...] = ()

  def enter(self, value: Any, depth: int, sliced: bool) -> 'Known':
    """Returns what it is inside a scan, which may go over its first axis."""
    view = self.view
    if sliced and view is not None:
      view = View(view.axes[1:], view.box)
    outside = (False,) * (depth - len(self.stack))
    stack = (*self.stack, *outside, sliced)
    return dataclasses.replace(self, value=value, view=view, stack=stack)


def constant(value: Any) -> Known:
  """Returns a constant of the program, or what the loss closes over."""
  return Known(value, lambda *_: value)


def weight(value: jax.Array, index: int) -> Known:
  """Returns the weight at an index of the flattened weights."""
  view = View(tuple(range(value.ndim)), tuple((0, n) for n in value.shape))
  return Known(
    value, lambda leaves, *_: leaves[index], frozenset([index]), view=view
  )


def is_weight(value: Any) -> bool:
  """Returns whether a value depends on weights and on no example."""
  return isinstance(value, Known) and bool(value.leaves)


def values(ins: Sequence[Any]) -> list[Any]:
  """Returns operands as arrays."""
  return [i.value if isinstance(i, Known) else i for i in ins]


def bind(eqn, operands: Sequence[Any]) -> list[Any]:
  """Applies an operation of a program to arrays."""
  params = eqn.primitive.get_bind_params(eqn.params)
  # Before JAX 0.10 functions came apart from the other parameters.
  functions, params = params if isinstance(params, tuple) else ((), params)
  manager = getattr(getattr(eqn, 'ctx', None), 'manager', None)
  with manager if manager is not None else contextlib.nullcontext():
    out = eqn.primitive.bind(*functions, *operands, **params)
  return list(out) if eqn.primitive.multiple_results else [out]


def derive(eqn, parts: Sequence[Known]) -> list[Known]:
  """Applies an operation to known values."""
  leaves = frozenset().union(*(part.leaves for part in parts))
  stack = tuple(map(any, _stacks(parts)))
  name = eqn.primitive.name

  def make_all(weights, wide, memo):
    if make_all not in memo:
      made = [part.make(weights, wide, memo) for part in parts]
      memo[make_all] = _again(eqn, parts, made, wide)
    return memo[make_all]

  derived = []
  for index, value in enumerate(bind(eqn, values(parts))):
    known = Known(
      value, lambda *a, index=index: make_all(*a)[index], stack=stack
    )
    differs = jnp.issubdtype(value.dtype, jnp.inexact)
    if leaves and differs and name != 'stop_gradient':
      moves = name in _MOVES and all(p.moves for p in parts if p.leaves)
      moves = moves and jnp.issubdtype(value.dtype, jnp.floating)
      keeps = moves and _keeps_norms(name, parts, value)
      view = _view(eqn, parts[0], value, index) if moves else None
      known = dataclasses.replace(
        known, leaves=leaves, moves=moves, keeps_norms=keeps, view=view
      )
    derived.append(known)
  return derived


def _stacks(parts: Sequence[Known]) -> list[tuple[bool, ...]]:
  """Returns for each scan around the parts which of them it slices."""
  stacks = (part.stack for part in parts)
  return list(itertools.zip_longest(*stacks, fillvalue=False))


def _keeps_norms(name: str, parts: Sequence[Known], value) -> bool:
  if name == 'broadcast_in_dim' and value.size != parts[0].value.size:
    return False
  # Weights that are joined must differ: otherwise their gradients add up.
  leaves = [leaf for part in parts for leaf in part.leaves]
  is_kept = all(part.leaves and part.keeps_norms for part in parts)
  return is_kept and len(leaves) == len(set(leaves))


def _view(eqn, part: Known, value, index: int) -> Optional[View]:
  """Returns the view of an operation's result, if it is a simple one."""
  name, params, old = eqn.primitive.name, eqn.params, part.view
  if old is None or name in _SAME_PLACE:
    return old
  if name == 'transpose':
    return View(tuple(old.axes[a] for a in params['permutation']), old.box)
  if name in _RESHAPES:  # Only axes of length 1 may come or go.
    shape = part.value.shape
    if [n for n in shape if n > 1] != [n for n in value.shape if n > 1]:
      return None
    left = (a for a, n in zip(old.axes, shape, strict=True) if n > 1)
    axes = (next(left) if n > 1 else None for n in value.shape)
    return View(tuple(axes), old.box)
  starts = [0] * value.ndim
  if name == 'slice' and params['strides'] is None:
    starts = params['start_indices']
  elif name == 'split':
    starts[params['axis']] = sum(params['sizes'][:index])
  else:
    return None
  box = list(old.box)
  for axis, start, size in zip(old.axes, starts, value.shape, strict=True):
    if axis is not None:
      first = box[axis][0] + start
      box[axis] = first, first + size
  return View(old.axes, tuple(box))


def _again(eqn, parts: Sequence[Known], made: Sequence[Any], wide: bool):
  """Applies an operation again, once for each step of scans around it."""

  def operation(*operands):
    if wide and eqn.primitive.name == 'convert_element_type':
      return list(operands)
    if wide and eqn.primitive.name == 'concatenate':
      dtype = jnp.result_type(*operands)
      operands = [jnp.asarray(x, dtype) for x in operands]
    return bind(eqn, operands)

  for sliced in reversed(_stacks(parts)):
    if any(sliced):
      axes = [0 if own else None for own in sliced]
      operation = jax.vmap(operation, in_axes=axes)
  return operation(*made)


def pull(
  known: Known, leaves: Sequence[jax.Array], gradient: jax.Array
) -> dict[int, jax.Array]:
  """Pulls a gradient by a known value back to the weights.

  The gradient has an axis for each scan that slices the value. What is returned
  is in at least float32.
  """
  own = {k: leaves[k] for k in known.leaves}
  if known.moves:
    dtype = numerics.wide_dtype(gradient)
    own = {k: leaf.astype(dtype) for k, leaf in own.items()}

  def make(own):
    return known.make(dict(enumerate(leaves)) | own, known.moves, {})

  value, back = jax.vjp(make, own)
  (gradients,) = back(gradient.astype(value.dtype))
  return jax.tree.map(numerics.widen, gradients)
