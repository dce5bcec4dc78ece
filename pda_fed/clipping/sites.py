"""Operations where a weight meets an example.

A `Site` says how the gradient of one example by a weight follows from what is
recorded there: the operation's input, and the derivative by its output.
"""

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
from pda_fed.clipping import convolutions
from pda_fed.clipping import known as known_lib

_Input = Union[known_lib.Known, known_lib.Data]

# Operations by entries, and those that join weights and data: the gradient by
# the weight is a sum of derivatives. All others that are not recognized are
# named in a warning.
_BY_ENTRY = frozenset({
  'add',
  'add_any',
  'clamp',
  'concatenate',
  'div',
  'dynamic_update_slice',
  'max',
  'min',
  'mul',
  'output',
  'pad',
  'pow',
  'scan',
  'select_n',
  'sub',
})  # fmt: skip


class Dot(NamedTuple):
  """A product: which operand is the weight, and the axes."""

  side: int
  dimensions: Any

  def axes(self, rank: int, side: int) -> tuple[tuple[int, ...], ...]:
    """Returns the shared, free and contracted axes of an operand."""
    contracted = tuple(self.dimensions[0][side])
    shared = tuple(self.dimensions[1][side])
    free = (a for a in range(rank) if a not in (*contracted, *shared))
    return shared, tuple(free), contracted


class Rows(NamedTuple):
  """A choice of rows of a table.

  Attributes:
    width: Where the output has the axes of a row.
    drops: Whether rows out of bounds are dropped; otherwise they are clipped.
  """

  width: tuple[int, ...]
  drops: bool


class Site(NamedTuple):
  """A place in a program where a weight meets an example.

  Attributes:
    operation: The name of the operation.
    kind: A `Dot`, a `Convolution` or `Rows`; None if the derivative is that by
      the weight itself.
    weight: The weight as it stands there.
  """

  operation: str
  kind: Union[Dot, convolutions.Convolution, Rows, None]
  weight: known_lib.Known

  @property
  def is_known(self) -> bool:
    """Whether the operation was recognized."""
    return self.kind is not None or self.operation in _BY_ENTRY


@dataclasses.dataclass(frozen=True)
class Meeting:
  """A recognized operation.

  Attributes:
    site: The site.
    record: What to record of the data.
    out: The operation's output.
  """

  site: Site
  record: jax.Array
  out: jax.Array


def recognize(eqn, ins: Sequence[_Input]) -> Optional[Meeting]:
  """Applies an operation on a weight and data, if it is a known one."""
  find = _FINDERS.get(eqn.primitive.name)
  is_weight = [isinstance(i, known_lib.Known) and bool(i.leaves) for i in ins]
  if find is None or sum(is_weight) != 1:
    return None
  return find(eqn, ins, is_weight.index(True))


def _dot(eqn, ins, side) -> Optional[Meeting]:
  data = ins[1 - side]
  if not isinstance(data, known_lib.Data):
    return None
  (out,) = known_lib.bind(eqn, [i.value for i in ins])
  kind = Dot(side, eqn.params['dimension_numbers'])
  return Meeting(Site('dot_general', kind, ins[side]), data.value, out)


def _convolution(eqn, ins, side) -> Optional[Meeting]:
  if side != 1 or eqn.params['batch_group_count'] != 1:
    return None
  x, kernel = (i.value for i in ins)
  kind = convolutions.Convolution(eqn.params, kernel.shape)
  site = Site('conv_general_dilated', kind, ins[1])
  if kind.is_product():
    out, seen = convolutions.convolve(x, kernel, kind)
    return Meeting(site, seen, out)
  (out,) = known_lib.bind(eqn, [x, kernel])
  return Meeting(site, x, out)


def _gather(eqn, ins, side) -> Optional[Meeting]:
  params, table = eqn.params, ins[0].value
  numbers = params['dimension_numbers']
  is_rows = (
    side == 0
    and not any(ins[0].stack)
    and tuple(numbers.collapsed_slice_dims) == (0,)
    and tuple(numbers.start_index_map) == (0,)
    and not numbers.operand_batching_dims
    and tuple(params['slice_sizes']) == (1, *table.shape[1:])
  )
  if not is_rows:
    return None
  (out,) = known_lib.bind(eqn, [i.value for i in ins])
  drops = params['mode'] == jax.lax.GatherScatterMode.FILL_OR_DROP
  kind = Rows(tuple(numbers.offset_dims), drops)
  return Meeting(Site('gather', kind, ins[0]), ins[1].value[..., 0], out)


def _dynamic_slice(eqn, ins, side) -> Optional[Meeting]:
  table, start = ins[0].value, ins[1]
  whole_rows = tuple(eqn.params['slice_sizes']) == (1, *table.shape[1:])
  is_rows = side == 0 and whole_rows and isinstance(start, known_lib.Data)
  if not is_rows or any(ins[0].stack):
    return None
  (out,) = known_lib.bind(eqn, [i.value for i in ins])
  kind = Rows(tuple(range(1, table.ndim)), drops=False)
  return Meeting(Site('dynamic_slice', kind, ins[0]), start.value[None], out)


_FINDERS = {
  'conv_general_dilated': _convolution,
  'dot_general': _dot,
  'dynamic_slice': _dynamic_slice,
  'gather': _gather,
}


@dataclasses.dataclass(frozen=True)
class Factors:
  """A gradient as a sum of outer products over positions.

  Attributes:
    a: [batch, blocks, positions, inputs]; for rows of a table their numbers,
      [batch, 1, positions], where a number out of bounds is of no row.
    b: [batch, blocks, positions, outputs].
    inputs: The number of inputs, or of rows.
    row_axes: The weight's axes that are inputs.
    column_axes: The weight's axes that are outputs.
    restore: Reshapes [blocks, inputs, outputs] to the weight, with an axis for
      each scan that slices it.
    finite: For each example whether `a` was finite, if the others were already
      replaced by zeros.
    shifted: Computes the product of both factors from images and derivatives,
      if there is a quicker way.
  """

  a: jax.Array
  b: jax.Array
  inputs: int
  row_axes: tuple[int, ...]
  column_axes: tuple[int, ...]
  restore: Any
  finite: Optional[jax.Array] = None
  shifted: Any = None

  @property
  def is_index(self) -> bool:
    return self.a.ndim == 3

  @property
  def positions(self) -> int:
    return self.b.shape[2]

  @property
  def outputs(self) -> int:
    return self.b.shape[3]


def _split_steps(x: jax.Array, stack: tuple[bool, ...]) -> jax.Array:
  """Moves steps that share a weight to positions and the others to blocks.

  Args:
    x: [batch, *steps, blocks, positions, ...].
    stack: For each axis of steps, whether each step has its own weight.
  """
  sliced = [1 + k for k, own in enumerate(stack) if own]
  shared = [1 + k for k, own in enumerate(stack) if not own]
  first = 1 + len(stack)
  rest = range(first + 2, x.ndim)
  x = x.transpose(0, *sliced, first, *shared, first + 1, *rest)
  places = 2 + len(sliced)
  blocks = x.shape[1:places]
  tail = [x.shape[a] for a in range(places + len(shared) + 1, x.ndim)]
  return x.reshape(x.shape[0], _prod(blocks), -1, *tail)


def _prod(sizes: Sequence[int]) -> int:
  return functools.reduce(lambda a, b: a * b, sizes, 1)


def factors(site: Site, record: jax.Array, delta: jax.Array) -> Factors:
  """Returns the factors of a site's gradients.

  Args:
    site: The site; its kind is not None.
    record: What was recorded, [batch, *steps, ...].
    delta: The derivatives by the output, [batch, *steps, ...].
  """
  find = {
    Dot: _dot_factors,
    Rows: _row_factors,
    convolutions.Convolution: _convolution_factors,
  }[type(site.kind)]
  return find(site, record, delta)


def _restored(site: Site, record: jax.Array, restore_one):
  """Returns `Factors.restore` from that of one step."""
  steps = record.shape[1 : 1 + len(site.weight.stack)]
  own = [n for n, own in zip(steps, site.weight.stack, strict=True) if own]

  def restore(product):
    split = product.reshape(*own, -1, *product.shape[1:])
    one = restore_one
    for _ in own:
      one = jax.vmap(one)
    return one(split)

  return restore


def _dot_factors(site: Site, x: jax.Array, delta: jax.Array) -> Factors:
  kind, weight = site.kind, site.weight
  stack, side = weight.stack, kind.side
  first = 1 + len(stack)
  steps = x.shape[:first]
  shape = weight.value.shape
  w_shared, w_free, w_contracted = kind.axes(len(shape), side)
  shared, free, contracted = kind.axes(x.ndim - first, 1 - side)
  inner = x.shape[first:]
  blocks = _prod([shape[a] for a in w_shared])
  positions = _prod([inner[a] for a in free])
  inputs = _prod([shape[a] for a in w_contracted])
  order = [first + a for a in (*shared, *free, *contracted)]
  a = x.transpose(*range(first), *order)
  a = a.reshape(*steps, blocks, positions, inputs)
  # The output has shared axes, then free ones of the left operand, then those
  # of the right one.
  b = delta
  if side == 0:
    ends = first + len(w_shared), first + len(w_shared) + len(w_free)
    b = jnp.moveaxis(b, range(*ends), range(b.ndim - len(w_free), b.ndim))
  b = b.reshape(*steps, blocks, positions, -1)
  axes = *w_shared, *w_contracted, *w_free

  def restore(product):
    split = product.reshape([shape[a] for a in axes])
    return split.transpose([axes.index(a) for a in range(len(axes))])

  view = weight.view
  place = view.axes if view is not None else range(len(shape))
  return Factors(
    a=_split_steps(a, stack),
    b=_split_steps(b, stack),
    inputs=inputs,
    row_axes=tuple(place[a] for a in w_contracted if shape[a] > 1),
    column_axes=tuple(place[a] for a in w_free if shape[a] > 1),
    restore=_restored(site, x, restore),
  )


def _row_factors(site: Site, index: jax.Array, delta: jax.Array) -> Factors:
  kind, weight = site.kind, site.weight
  first = 1 + len(weight.stack)
  shape = weight.value.shape
  rows = shape[0]
  ends = delta.ndim - len(kind.width)
  width = [first + a for a in kind.width]
  b = jnp.moveaxis(delta, width, range(ends, delta.ndim))
  b = b.reshape(len(b), 1, -1, _prod(shape[1:]))
  index = index.reshape(len(index), 1, -1)
  if kind.drops:
    index = jnp.where((index < 0) | (index >= rows), rows, index)
    # What is dropped has no gradient.
    b = jnp.where((index < rows)[..., None], b, jnp.zeros((), b.dtype))
  else:
    index = jnp.clip(index, 0, rows - 1)
  view = weight.view
  place = view.axes if view is not None else range(len(shape))
  return Factors(
    a=index.astype(jnp.int32),
    b=b,
    inputs=rows,
    row_axes=(place[0],),
    column_axes=tuple(
      p for p, n in zip(place[1:], shape[1:], strict=True) if n > 1
    ),
    restore=lambda product: product.reshape(shape),
  )


def _convolution_factors(
  site: Site, record: jax.Array, delta: jax.Array
) -> Factors:
  kind, stack = site.kind, site.weight.stack
  first = 1 + len(stack)
  steps = record.shape[:first]
  # Drop inputs that are not finite here, before patches repeat each pixel; the
  # norm marks them. Compare instead of calling `isfinite`: XLA may evaluate it
  # on values not yet rounded to bfloat16, where the largest become infinite.
  most = jnp.finfo(record.dtype).max
  finite = (jnp.abs(record) <= most).reshape(len(record), -1).all(axis=1)
  spread = finite.reshape(-1, *(1,) * (record.ndim - 1))
  record = jnp.where(spread, record, jnp.zeros((), record.dtype))
  numbers = kind.params['dimension_numbers']
  delta = convolutions.channels_last(delta, numbers.out_spec)
  count = _prod(steps)
  b = convolutions.grouped_deltas(
    delta.reshape(count, -1, delta.shape[-1]), kind
  )

  def regroup(x):
    return _split_steps(x.reshape(*steps, *x.shape[1:]), stack)

  shifted = None
  seen = record
  if not kind.is_product():
    image = convolutions.channels_last(record, numbers.lhs_spec)
    flat = image.reshape(-1, *image.shape[first + 1 :])
    seen = convolutions.patches(flat, kind)
    if kind.is_shifted() and not stack:
      shifted = functools.partial(
        convolutions.shifted_products, image, delta, kind
      )
  seen = seen.reshape(count, -1, *seen.shape[-2:])
  return Factors(
    a=regroup(convolutions.grouped(seen, kind)),
    b=regroup(b),
    inputs=_prod(kind.size) * kind.channels[0],
    row_axes=(),
    column_axes=(),
    restore=_restored(
      site, record, functools.partial(convolutions.as_kernel, convolution=kind)
    ),
    finite=finite,
    shifted=shifted,
  )
