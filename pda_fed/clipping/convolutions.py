"""Convolutions as products of patches and kernels.

For an example, the gradient by a kernel is a product of the input's patches,
one for each output position, with the derivatives by the output.
"""

from collections.abc import Sequence
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from pda_fed.clipping import numerics

# For images with fewer channels, such as the first layer's, a GPU multiplies
# patches faster than it convolves.
_LEAST_CHANNELS = 8


class Convolution(NamedTuple):
  """What a convolution does, of any number of spatial axes.

  Attributes:
    params: The parameters of `conv_general_dilated`.
    kernel_shape: The shape of the kernel, in its own order of axes.
  """

  params: dict[str, Any]
  kernel_shape: tuple[int, ...]

  @property
  def groups(self) -> int:
    return self.params['feature_group_count']

  @property
  def size(self) -> tuple[int, ...]:
    """The kernel's spatial axes."""
    axes = self.params['dimension_numbers'].rhs_spec[2:]
    return tuple(self.kernel_shape[axis] for axis in axes)

  @property
  def channels(self) -> tuple[int, int]:
    """Channels of the input and of the output, for a group."""
    outputs, inputs = self.params['dimension_numbers'].rhs_spec[:2]
    return self.kernel_shape[inputs], self.kernel_shape[outputs] // self.groups

  def is_product(self) -> bool:
    """Returns whether to multiply patches instead of convolving.

    On a CPU, XLA's code for the derivative of a convolution in a loop is 30
    times slower than for that of a product.
    """
    few = self.channels[0] * self.groups < _LEAST_CHANNELS
    return few or jax.default_backend() == 'cpu'

  def is_shifted(self) -> bool:
    """Returns whether `shifted_products` can be used."""
    once = (1,) * len(self.size)
    strides = ('window_strides', 'lhs_dilation', 'rhs_dilation')
    return (
      len(self.size) == 2
      and self.groups == 1
      and all(tuple(self.params[name]) == once for name in strides)
      and min(itertools.chain(*self.params['padding'])) >= 0
    )


def channels_last(x: jax.Array, spec: Sequence[int]) -> jax.Array:
  """Moves axes to [..., batch, *spatial, channels].

  Args:
    x: [..., axes of a convolution's input or output].
    spec: The places of batch, channels and spatial axes among the latter.
  """
  first = x.ndim - len(spec)
  batch, channels, *spatial = spec
  order = [first + axis for axis in (batch, *spatial, channels)]
  return x.transpose(*range(first), *order)


def _pad(x: jax.Array, convolution: Convolution) -> jax.Array:
  """Pads and dilates inputs, [batch, *spatial, channels]."""
  params = convolution.params
  between = [dilation - 1 for dilation in params['lhs_dilation']]
  margins = [
    (*ends, inner)
    for ends, inner in zip(params['padding'], between, strict=True)
  ]
  config = [(0, 0, 0), *margins, (0, 0, 0)]
  return jax.lax.pad(x, jnp.zeros((), x.dtype), config)


def see(x: jax.Array, convolution: Convolution) -> jax.Array:
  """Arranges what output positions see.

  Args:
    x: [batch, *spatial, channels].
    convolution: The convolution.

  Returns:
    If `is_shifted`, only columns are arranged: [batch, height, columns of the
    output, columns of the kernel * channels]. This needs a third of the memory
    of patches, for 3 x 3 kernels. Otherwise patches: [batch, *spatial of the
    output, positions in the kernel, channels].
  """
  params, size = convolution.params, convolution.size
  x = _pad(x, convolution)
  if convolution.is_shifted():
    wide = x.shape[2] - size[1] + 1
    shifted = [x[:, :, j : j + wide] for j in range(size[1])]
    return jnp.concatenate(shifted, axis=3)
  strides, dilations = params['window_strides'], params['rhs_dilation']
  shifted = []
  for offsets in itertools.product(*map(range, size)):
    slices = []
    for axis, offset in enumerate(offsets):
      reach = (size[axis] - 1) * dilations[axis] + 1
      count = (x.shape[axis + 1] - reach) // strides[axis] + 1
      first = offset * dilations[axis]
      last = first + (count - 1) * strides[axis] + 1
      slices.append(slice(first, last, strides[axis]))
    shifted.append(x[(slice(None), *slices)])
  return jnp.stack(shifted, axis=-2)


def patches(seen: jax.Array, convolution: Convolution) -> jax.Array:
  """Returns the patches of what `see` returns."""
  if not convolution.is_shifted():
    return seen
  rows = convolution.size[0]
  high = seen.shape[1] - rows + 1
  shifted = [seen[:, i : i + high] for i in range(rows)]
  split = jnp.stack(shifted, axis=3)
  channels = convolution.channels[0]
  return split.reshape(*split.shape[:3], -1, channels)


def as_kernel(product: jax.Array, convolution: Convolution) -> jax.Array:
  """Reshapes [groups, positions * inputs, outputs] to a kernel."""
  outputs, inputs, *spatial = convolution.params['dimension_numbers'].rhs_spec
  order = *spatial, inputs, outputs
  shape = [convolution.kernel_shape[axis] for axis in order]
  return (
    product.transpose(1, 0, 2)
    .reshape(shape)
    .transpose(*(order.index(axis) for axis in range(len(order))))
  )


def grouped(seen: jax.Array, convolution: Convolution) -> jax.Array:
  """Splits patches by groups of channels.

  Args:
    seen: Patches, [batch, ..., positions in the kernel, channels].
    convolution: The convolution.

  Returns:
    [batch, groups, output positions, positions in the kernel * inputs].
  """
  groups, batch = convolution.groups, len(seen)
  inside = math.prod(convolution.size)
  if groups == 1:
    return seen.reshape(batch, 1, -1, inside * seen.shape[-1])
  split = seen.reshape(batch, -1, inside, groups, seen.shape[-1] // groups)
  ordered = split.transpose(0, 3, 1, 2, 4)
  return ordered.reshape(batch, groups, ordered.shape[2], -1)


def grouped_deltas(delta: jax.Array, convolution: Convolution) -> jax.Array:
  """Splits derivatives, [batch, ..., channels], as `grouped` splits patches."""
  groups = convolution.groups
  split = delta.reshape(len(delta), -1, groups, delta.shape[-1] // groups)
  return split.transpose(0, 2, 1, 3)


def convolve(
  x: jax.Array, kernel: jax.Array, convolution: Convolution
) -> tuple[jax.Array, jax.Array]:
  """Convolves by products.

  Args:
    x: The input, in its own order of axes.
    kernel: The kernel, in its own order of axes.
    convolution: The convolution.

  Returns:
    The output in its own order of axes, and what `see` returns.
  """
  params = convolution.params
  numbers, dtype = params['dimension_numbers'], params['preferred_element_type']
  options = {
    'precision': params['precision'],
    'preferred_element_type': numerics.wide_dtype(x),
  }
  outputs, inputs, *spatial = numbers.rhs_spec
  ordered = kernel.transpose(*spatial, inputs, outputs)
  seen = see(channels_last(x, numbers.lhs_spec), convolution)
  if convolution.is_shifted():
    # A product for all rows of the kernel, which are then shifted and added.
    rows, columns = convolution.size
    high = seen.shape[1] - rows + 1
    split = seen.reshape(*seen.shape[:3], columns, -1)
    out = jnp.einsum('nhwjc,ijco->nhwio', split, ordered, **options)
    out = sum(out[:, i : i + high, :, i] for i in range(rows))
  else:
    groups, width = convolution.groups, convolution.channels[1]
    ordered = ordered.reshape(-1, groups, width)
    out = jnp.einsum(
      'bgpi,igo->bpgo', grouped(seen, convolution), ordered, **options
    ).reshape(*seen.shape[:-2], -1)
  batch, channels, *places = numbers.out_spec
  order = batch, *places, channels
  out = out.transpose([order.index(axis) for axis in range(len(order))])
  return out.astype(x.dtype if dtype is None else dtype), seen


def shifted_products(
  seen: jax.Array, delta: jax.Array, convolution: Convolution
) -> jax.Array:
  """Returns gradients for a kernel whose columns were arranged by `see`.

  Rows are shifted in the deltas.

  Args:
    seen: [examples, images, height, columns, columns of the kernel * inputs].
    delta: [examples, images, rows, columns, outputs].
    convolution: The convolution.

  Returns:
    [examples, 1, positions in the kernel * inputs, outputs].
  """
  rows, columns = convolution.size
  examples, _, height, _, outputs = seen.shape[:4] + delta.shape[4:]
  # Row h of an image is paired with the deltas of output row h - shift, or with
  # zeros if the output has no such row.
  margins = (0, 0), (0, 0), (rows - 1, rows - 1), (0, 0), (0, 0)
  delta = jnp.pad(delta, margins)
  starts = [rows - 1 - i for i in range(rows)]
  seen_by = jnp.concatenate(
    [delta[:, :, start : start + height] for start in starts], axis=4
  )
  products = numerics.product(
    seen.reshape(examples, -1, seen.shape[-1]),
    seen_by.reshape(examples, -1, seen_by.shape[-1]),
    ((1,), (1,)),
    ((0,), (0,)),
  )
  split = products.reshape(examples, columns, -1, rows, outputs)
  return split.transpose(0, 3, 1, 2, 4).reshape(examples, 1, -1, outputs)
