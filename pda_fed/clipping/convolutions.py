"""Convolutions as products of patches and kernels.

For an example, the gradient by a kernel is a product of the input's patches,
one for each output position, with the derivatives by the output. If strides are
1, only columns are shifted in the input, and rows in the derivatives: for 3 x 3
kernels this needs a third of the memory of patches.
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
  def rows(self) -> tuple[int, ...]:
    """The kernel's axes that are shifted in derivatives: the first or none."""
    once = (1,) * len(self.size)
    strides = ('window_strides', 'lhs_dilation', 'rhs_dilation')
    is_simple = (
      len(self.size) == 2
      and self.groups == 1
      and all(tuple(self.params[name]) == once for name in strides)
      and min(itertools.chain(*self.params['padding'])) >= 0
    )
    return self.size[:1] if is_simple else ()

  def is_product(self) -> bool:
    """Returns whether to multiply patches instead of convolving.

    On a CPU, XLA's code for the derivative of a convolution in a loop is 30
    times slower than for that of a product.
    """
    inputs = self.params['dimension_numbers'].rhs_spec[1]
    few = self.kernel_shape[inputs] * self.groups < _LEAST_CHANNELS
    return few or jax.default_backend() == 'cpu'

  def see(self, x: jax.Array) -> jax.Array:
    """Returns what positions see of inputs.

    Args:
      x: [..., axes of the input].

    Returns:
      [..., batch, *positions, places in the kernel, groups, channels].
    """
    params, skipped = self.params, len(self.rows)
    x = _channels_last(x, params['dimension_numbers'].lhs_spec)
    lead = x.shape[: -1 - len(self.size)]
    pads = zip(params['padding'], params['lhs_dilation'], strict=True)
    margins = [(*ends, dilation - 1) for ends, dilation in pads]
    x = x.reshape(-1, *x.shape[len(lead) :])
    zero = jnp.zeros((), x.dtype)
    x = jax.lax.pad(x, zero, [(0, 0, 0), *margins, (0, 0, 0)])
    shifted = []
    for offsets in itertools.product(*map(range, self.size[skipped:])):
      slices = [slice(None)] * (1 + skipped)
      for axis, offset in enumerate(offsets, skipped):
        stride = params['window_strides'][axis]
        dilation = params['rhs_dilation'][axis]
        start = offset * dilation
        room = max(0, x.shape[axis + 1] - (self.size[axis] - 1) * dilation)
        slices.append(slice(start, start + room, stride))
      shifted.append(x[tuple(slices)])
    seen = jnp.stack(shifted, axis=-2)
    return seen.reshape(*lead, *seen.shape[1:-1], self.groups, -1)

  def spread(self, delta: jax.Array) -> jax.Array:
    """Arranges derivatives by the output as `see` arranges inputs."""
    delta = _channels_last(delta, self.params['dimension_numbers'].out_spec)
    if self.rows:
      # Row h of an image is paired with the derivatives of output row h -
      # shift, or with zeros if the output has no such row.
      (rows,) = self.rows
      margins = [(0, 0)] * (delta.ndim - 3) + [(rows - 1,) * 2] + [(0, 0)] * 2
      padded = jnp.pad(delta, margins)
      high = delta.shape[-3] + rows - 1
      starts = reversed(range(rows))
      shifted = [padded[..., i : i + high, :, :] for i in starts]
      delta = jnp.stack(shifted, axis=-2)
    else:
      delta = delta[..., None, :]
    return delta.reshape(*delta.shape[:-1], self.groups, -1)

  def layout(self) -> tuple[list[int], list[int]]:
    """Returns the axes of a product of both, and where the kernel's are in it.

    It has groups, places in the kernel, channels of the input, rows of the
    kernel, channels of the output.
    """
    outputs, inputs, *spatial = self.params['dimension_numbers'].rhs_spec
    skipped = len(self.rows)
    columns = spatial[skipped:]
    order = ['groups', *columns, inputs, *spatial[:skipped], 'outputs']
    sizes = dict(enumerate(self.kernel_shape)) | {
      'groups': self.groups,
      'outputs': self.kernel_shape[outputs] // self.groups,
    }
    places = []
    for axis in range(len(self.kernel_shape)):
      names = ('groups', 'outputs') if axis == outputs else (axis,)
      places += [order.index(name) for name in names]
    return [sizes[name] for name in order], places

  def apply(self, seen: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolves by products, from what `see` returns for one input."""
    numbers = self.params['dimension_numbers']
    outputs, inputs, *spatial = numbers.rhs_spec
    *lead, places, groups, channels = seen.shape
    rows, equation = math.prod(self.rows), '...kgc,rkcgo->...rgo'
    ordered = kernel.transpose(*spatial, inputs, outputs)
    ordered = ordered.reshape(rows, places, channels, groups, -1)
    if groups == 1:  # XLA for CPUs is slower with an axis of length 1.
      seen, ordered = seen.squeeze(-2), ordered.squeeze(-2)
      equation = equation.replace('g', '')
    dtype, exact = numerics.wide_dtype(seen), self.params['precision']
    out = jnp.einsum(
      equation, seen, ordered, precision=exact, preferred_element_type=dtype
    ).reshape(*lead, rows, -1)
    # A product for all rows of the kernel, which are then shifted and added.
    high = lead[1] - rows + 1
    out = sum(out[:, i : i + high, ..., i, :] for i in range(rows))
    batch, channel, *positions = numbers.out_spec
    order = batch, *positions, channel
    out = out.transpose([order.index(axis) for axis in range(len(order))])
    return out.astype(self.params['preferred_element_type'] or seen.dtype)


def _channels_last(x: jax.Array, spec: Sequence[int]) -> jax.Array:
  """Moves the last axes, placed as in `spec`, to batch, *spatial, channels."""
  first = x.ndim - len(spec)
  batch, channels, *spatial = spec
  order = [first + axis for axis in (batch, *spatial, channels)]
  return x.transpose(*range(first), *order)
