"""Operations where a weight meets an example, and the gradients by the weight.

The gradient of one example by a weight is a sum of outer products, A' B: A is
made of the operation's inputs, B of the derivatives by its outputs. Both have a
row for each position, such as a token, a pixel or a step of a scan.
"""

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.clipping import convolutions
from pda_fed.clipping import known as known_lib

# Operations by entries, and those that join weights and data: the gradient by
# the weight is a sum of derivatives. All others that are not recognized are
# named in a warning.
_BY_ENTRY = frozenset(
  'add add_any clamp concatenate div dynamic_update_slice max min mul output'
  ' pad pow scan select_n sub'.split()
)


class Factors(NamedTuple):
  """A gradient as a sum of outer products over positions.

  Attributes:
    a: [batch, blocks, positions, inputs]; for rows of a table their numbers,
      [batch, 1, positions], where a number out of bounds is of no row.
    b: [batch, blocks, positions, outputs].
    inputs: The number of inputs, or of rows.
    restore: Reshapes [blocks, inputs, outputs] to the weight, with an axis for
      each scan that slices it.
    place: Which part of a weight it is, and which of the weight's axes are
      inputs and outputs; None if positions of sites cannot be paired.
  """

  a: jax.Array
  b: jax.Array
  inputs: int
  restore: Callable[[jax.Array], jax.Array]
  place: Optional[tuple[Any, tuple[int, ...], tuple[int, ...]]] = None

  @property
  def is_index(self) -> bool:
    return self.a.ndim == 3

  @property
  def positions(self) -> int:
    return self.b.shape[2]

  @property
  def outputs(self) -> int:
    return self.b.shape[3]

  def is_pair(self, other: 'Factors') -> bool:
    """Returns whether it is by the same part of a weight, or its transpose."""
    if self.place is None or other.place is None:
      return False
    part, inputs, outputs = self.place
    return other.place in ((part, inputs, outputs), (part, outputs, inputs))


class Site(NamedTuple):
  """A place in a program where a weight meets an example.

  Attributes:
    operation: The name of the operation.
    find: Finds `Factors` from the weight, what was recorded and the derivatives
      by the output, [batch, *steps, ...]; None if the derivative is that by the
      weight itself.
    weight: The weight as it stands there.
  """

  operation: str
  find: Optional[Callable[..., Factors]]
  weight: known_lib.Known

  @property
  def is_known(self) -> bool:
    """Whether the operation was recognized."""
    return self.find is not None or self.operation in _BY_ENTRY

  def factors(self, record: jax.Array, delta: jax.Array) -> Factors:
    return self.find(self.weight, record, delta)


# A site, the operation's output, and what to record of the data.
_Meeting = tuple[Site, jax.Array, jax.Array]


def recognize(eqn, ins: Sequence[Any]) -> Optional[_Meeting]:
  """Applies an operation on a weight and data, if it is a known one."""
  name = eqn.primitive.name
  is_weight = [known_lib.is_weight(i) for i in ins]
  if name not in _FINDERS or sum(is_weight) != 1:
    return None
  side = is_weight.index(True)
  find, record, *out = _FINDERS[name](eqn.params, ins, side) or (None, None)
  if find is None:
    return None
  (out,) = out or known_lib.bind(eqn, known_lib.values(ins))
  return Site(name, find, ins[side]), out, record


def _dot(params, ins, side):
  numbers = params['dimension_numbers']
  return functools.partial(_of_dot, side, numbers), ins[1 - side]


def _convolution(params, ins, side):
  if side != 1 or params['batch_group_count'] != 1:
    return None
  x, kernel = known_lib.values(ins)
  convolution = convolutions.Convolution(params, kernel.shape)
  find = functools.partial(_of_convolution, convolution)
  if not convolution.is_product():
    return find, x
  seen = convolution.see(x)
  return find, seen, convolution.apply(seen, kernel)


def _gather(params, ins, side):
  numbers, table = params['dimension_numbers'], ins[0]
  is_simple = not numbers.operand_batching_dims and all(
    tuple(dims) == (0,)
    for dims in (numbers.collapsed_slice_dims, numbers.start_index_map)
  )
  if not is_simple or not _are_rows(params, table, side):
    return None
  drops = params['mode'] != jax.lax.GatherScatterMode.CLIP
  width = tuple(numbers.offset_dims)
  return functools.partial(_of_rows, width, drops), ins[1][..., 0]


def _dynamic_slice(params, ins, side):
  table, start = ins[:2]
  if isinstance(start, known_lib.Known) or not _are_rows(params, table, side):
    return None
  width = range(1, table.value.ndim)
  return functools.partial(_of_rows, width, False), start[None]


def _are_rows(params, table, side: int) -> bool:
  """Returns whether whole rows are taken from a table."""
  whole = (1, *table.value.shape[1:])
  is_table = side == 0 and not any(table.stack)
  return is_table and tuple(params['slice_sizes']) == whole


_FINDERS = {
  'conv_general_dilated': _convolution,
  'dot_general': _dot,
  'dynamic_slice': _dynamic_slice,
  'gather': _gather,
}


def _matrix(x, stack: Sequence[bool], *groups: Sequence[int]) -> jax.Array:
  """Returns [batch, blocks, positions, features].

  Args:
    x: [batch, *steps, ...].
    stack: For each axis of steps whether each step has its own weight, and so
      is a block; otherwise it is a position.
    *groups: The axes behind the steps that are blocks, positions, features.
  """
  first = 1 + len(stack)
  blocks, positions, features = ([first + a for a in g] for g in groups)
  own = [1 + k for k, is_own in enumerate(stack) if is_own]
  shared = [1 + k for k, is_own in enumerate(stack) if not is_own]
  merged = [0], [*own, *blocks], [*shared, *positions], features
  shape = [math.prod(x.shape[a] for a in axes) for axes in merged]
  return x.transpose(sum(merged, [])).reshape(shape)


def _restorer(weight, x, split: Sequence[int], order: Sequence[int]):
  """Returns `Factors.restore`, for a record x [batch, *steps, ...].

  One step's [blocks, inputs, outputs] has the shape `split`, all axes apart, in
  which the weight's axes are at `order`.
  """
  steps = zip(weight.stack, x.shape[1:], strict=False)
  own = [n for is_own, n in steps if is_own]
  axes = *range(len(own)), *(len(own) + place for place in order)

  def restore(product):
    product = product.reshape(*own, *split).transpose(axes)
    return product.reshape(*own, *weight.value.shape)

  return restore


def _of_dot(side: int, numbers, weight, x, delta) -> Factors:
  """The factors of a product; `side` says which operand is the weight."""
  stack, shape = weight.stack, weight.value.shape
  ranks = [x.ndim - 1 - len(stack)] * 2
  ranks[side] = len(shape)
  # Labels of axes, as in an einsum.
  left, right = [*range(ranks[0])], [*range(ranks[0], sum(ranks))]
  for pairs in numbers:
    for one, other in zip(*pairs, strict=True):
      right[other] = left[one]
  inputs, blocks = ([left[a] for a in pairs[0]] for pairs in numbers)
  own, others = (right, left) if side else (left, right)
  out = blocks + [n for n in left + right if n not in inputs + blocks]
  positions = [n for n in others if n not in own]
  outputs = [n for n in own if n not in others]

  def places(labels, *groups):
    return [[labels.index(n) for n in group] for group in groups]

  groups = places(own, blocks, inputs, outputs)
  order = sum(groups, [])
  return Factors(
    a=_matrix(x, stack, *places(others, blocks, positions, inputs)),
    b=_matrix(delta, stack, *places(out, blocks, positions, outputs)),
    inputs=math.prod(shape[a] for a in groups[1]),
    restore=_restorer(
      weight, x, [shape[a] for a in order], np.argsort(order).tolist()
    ),
    place=_place(weight, *groups),
  )


def _place(weight, *groups: Sequence[int]):
  """Returns `Factors.place` of axes that are blocks, inputs and outputs."""
  if weight.view is None or any(weight.stack):
    return None
  shape, axes = weight.value.shape, weight.view.axes
  blocks, inputs, outputs = (
    tuple(axes[a] for a in group if shape[a] > 1) for group in groups
  )
  return (weight.view.box, blocks), inputs, outputs


def _of_rows(width, drops: bool, weight, index, delta) -> Factors:
  """The factors of rows of a table.

  Rows out of bounds are dropped or clipped. The output has the axes of a row at
  `width`.
  """
  stack, (rows, *row) = weight.stack, weight.value.shape
  inner = range(delta.ndim - 1 - len(stack))
  b = _matrix(delta, stack, (), [a for a in inner if a not in width], width)
  index = index.reshape(len(index), 1, -1)
  index = index.astype(jnp.promote_types(index.dtype, jnp.int32))
  if drops:
    index = jnp.where((index < 0) | (index >= rows), rows, index)
    # What is dropped has no gradient.
    b = jnp.where((index < rows)[..., None], b, jnp.zeros((), b.dtype))
  else:
    index = jnp.clip(index, 0, rows - 1)
  return Factors(
    a=index.astype(jnp.int32),
    b=b,
    inputs=rows,
    restore=lambda product: product.reshape(rows, *row),
    place=_place(weight, (), (0,), range(1, 1 + len(row))),
  )


def _of_convolution(convolution, weight, record, delta) -> Factors:
  seen = record if convolution.is_product() else convolution.see(record)
  spread = convolution.spread(delta)
  *positions, kernel, groups, channels = range(
    seen.ndim - 1 - len(weight.stack)
  )
  features = kernel, channels
  return Factors(
    a=_matrix(seen, weight.stack, [groups], positions, features),
    b=_matrix(spread, weight.stack, [groups], positions, features),
    inputs=seen.shape[-3] * seen.shape[-1],
    restore=_restorer(weight, record, *convolution.layout()),
  )
