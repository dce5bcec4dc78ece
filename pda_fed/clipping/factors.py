"""Gradients as sums of outer products, for each kind of operation.

The gradient of one example by a weight is A' B: A is made of the operation's
inputs, B of the derivatives by its outputs. Both have a row for each position,
such as a token, a pixel or a step of a scan.
"""

from collections.abc import Callable
import dataclasses
import functools
import math
from typing import Any, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
from pda_fed.clipping import convolutions
from pda_fed.clipping import known as known_lib


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
  restore: Callable[[jax.Array], jax.Array]
  finite: Optional[jax.Array] = None
  shifted: Optional[Callable[[], jax.Array]] = None

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
  return x.reshape(x.shape[0], math.prod(blocks), -1, *tail)


Kind = Union[Dot, Rows, convolutions.Convolution]


def find(
  kind: Kind, weight: known_lib.Known, record: jax.Array, delta: jax.Array
) -> Factors:
  """Returns the factors of a weight's gradients.

  Args:
    kind: What the operation does.
    weight: The weight as the operation sees it.
    record: What was recorded, [batch, *steps, ...].
    delta: The derivatives by the output, [batch, *steps, ...].
  """
  if isinstance(kind, Dot):
    return _of_dot(kind, weight, record, delta)
  if isinstance(kind, Rows):
    return _of_rows(kind, weight, record, delta)
  return _of_convolution(kind, weight, record, delta)


def _restored(weight: known_lib.Known, record: jax.Array, restore_one):
  """Returns `Factors.restore` from that of one step."""
  steps = record.shape[1 : 1 + len(weight.stack)]
  own = [n for n, own in zip(steps, weight.stack, strict=True) if own]

  def restore(product):
    split = product.reshape(*own, -1, *product.shape[1:])
    one = restore_one
    for _ in own:
      one = jax.vmap(one)
    return one(split)

  return restore


def _of_dot(kind: Dot, weight, x: jax.Array, delta: jax.Array) -> Factors:
  stack, side = weight.stack, kind.side
  first = 1 + len(stack)
  steps = x.shape[:first]
  shape = weight.value.shape
  w_shared, w_free, w_contracted = kind.axes(len(shape), side)
  shared, free, contracted = kind.axes(x.ndim - first, 1 - side)
  inner = x.shape[first:]
  blocks = math.prod([shape[a] for a in w_shared])
  positions = math.prod([inner[a] for a in free])
  inputs = math.prod([shape[a] for a in w_contracted])
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
    restore=_restored(weight, x, restore),
  )


def _of_rows(kind: Rows, weight, index: jax.Array, delta: jax.Array) -> Factors:
  first = 1 + len(weight.stack)
  shape = weight.value.shape
  rows = shape[0]
  ends = delta.ndim - len(kind.width)
  width = [first + a for a in kind.width]
  b = jnp.moveaxis(delta, width, range(ends, delta.ndim))
  b = b.reshape(len(b), 1, -1, math.prod(shape[1:]))
  index = index.reshape(len(index), 1, -1)
  index = index.astype(jnp.promote_types(index.dtype, jnp.int32))
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


def _of_convolution(
  kind: convolutions.Convolution, weight, record: jax.Array, delta: jax.Array
) -> Factors:
  stack = weight.stack
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
  count = math.prod(steps)
  b = convolutions.grouped_deltas(
    delta.reshape(count, -1, delta.shape[-1]), kind
  )

  def regroup(x):
    return _split_steps(x.reshape(*steps, *x.shape[1:]), stack)

  seen = record
  if not kind.is_product():
    image = convolutions.channels_last(record, numbers.lhs_spec)
    seen = convolutions.see(image.reshape(-1, *image.shape[first + 1 :]), kind)
    seen = seen.reshape(*image.shape[: first + 1], *seen.shape[1:])
  shifted = None
  if kind.is_shifted() and not any(stack):
    shifted = functools.partial(
      convolutions.shifted_products,
      seen.reshape(len(seen), -1, *seen.shape[-3:]),
      delta.reshape(len(delta), -1, *delta.shape[-3:]),
      kind,
    )
  flat = seen.reshape(-1, *seen.shape[first + 1 :])
  seen = convolutions.patches(flat, kind)
  seen = seen.reshape(count, -1, *seen.shape[-2:])
  return Factors(
    a=regroup(convolutions.grouped(seen, kind)),
    b=regroup(b),
    inputs=math.prod(kind.size) * kind.channels[0],
    row_axes=(),
    column_axes=(),
    restore=_restored(
      weight,
      record,
      functools.partial(convolutions.as_kernel, convolution=kind),
    ),
    finite=finite,
    shifted=shifted,
  )
