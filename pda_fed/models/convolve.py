"""Convolutions and poolings that are also fast in a loop on a CPU."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from pda_fed.clipping import convolutions


def convolve(
  x: jax.Array,
  kernel: jax.Array,
  strides: Any,
  padding: Any,
  **options: Any,
) -> jax.Array:
  """Convolves as `jax.lax.conv_general_dilated`; on CPUs, by products.

  XLA's code for the derivative of a convolution in a loop, which is where
  training has it, is 25 times slower on a CPU. A Flax module takes it as
  `nn.Conv(..., conv_general_dilated=convolve)`.

  Args:
    x: Images.
    kernel: Filters.
    strides: Strides of the window.
    padding: See `jax.lax.conv_general_dilated`.
    **options: See there.
  """
  directly = functools.partial(
    jax.lax.conv_general_dilated,
    window_strides=strides,
    padding=padding,
    **options,
  )
  if jax.default_backend() != 'cpu':
    return directly(x, kernel)
  params = jax.make_jaxpr(directly)(x, kernel).eqns[-1].params
  described = convolutions.Convolution(params, kernel.shape)
  return described.apply(described.see(x), kernel)


def max_pool(x: jax.Array, size: int, stride: int) -> jax.Array:
  """Applies max-pooling without padding.

  If several pixels are the largest, they share the derivative.

  Args:
    x: Images, [batch, height, width, channels].
    size: Height and width of the windows.
    stride: Stride of the windows.
  """
  batch, height, width, channels = x.shape
  if size == stride and height % size == 0 and width % size == 0:
    # The derivative of a reduction over axes needs no scatter.
    split = batch, height // size, size, width // size, size, channels
    return x.reshape(split).max(axis=(2, 4))
  rows = (height - size) // stride + 1
  columns = (width - size) // stride + 1
  result = None
  for row in range(size):
    for column in range(size):
      shifted = x[
        :,
        row : row + (rows - 1) * stride + 1 : stride,
        column : column + (columns - 1) * stride + 1 : stride,
      ]
      result = shifted if result is None else jnp.maximum(result, shifted)
  return result
