"""Per-example gradients for each type of layer.

See `per_example` for the formulas. One backward pass over the batch gives the
inputs of each layer and its deltas. Augmented copies of an example count as
additional positions.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.jax.sample_level import layer_sums
from pda_fed.models import jax_layers


def _dense(layer, shapes, x, delta, copies) -> layer_sums.LayerSums:
  del layer, shapes
  if x.ndim == 2:
    x, delta = x[:, None], delta[:, None]
  return layer_sums.product_sums(
    *(layer_sums.merge_copies(part, copies) for part in (x, delta))
  )


def _shifted_products(
  layer: jax_layers.Convolution, x: jax.Array, delta: jax.Array, copies: int
) -> jax.Array:
  """Returns gradients for a kernel of stride 1, without forming patches.

  Columns are shifted in the input and rows in the deltas. This needs less
  memory traffic than patches: for 3 x 3 kernels, three times both arrays
  instead of nine times the input.

  Args:
    layer: The convolution.
    x: [batch, height, width, channels].
    delta: [batch, rows, columns, outputs].
    copies: Number of copies of each example.

  Returns:
    [examples, column of the kernel * channels, row of the kernel * outputs].
  """
  x = jax_layers.pad_images(layer, x)
  examples, height = len(x) // copies, x.shape[1]
  columns, outputs = delta.shape[2:]
  shifts = np.arange(layer.size)
  seen = np.arange(columns)[:, None] + shifts
  x = jnp.take(x, seen, axis=2, mode='clip')
  # Row h of an image is paired with the deltas of output row h - shift, or with
  # zeros if the output has no such row.
  margin = layer.size - 1
  delta = jnp.pad(delta, ((0, 0), (margin, margin), (0, 0), (0, 0)))
  seen_by = np.arange(height)[:, None] + margin - shifts
  delta = jnp.take(delta, seen_by, axis=1, mode='clip').transpose(0, 1, 3, 2, 4)
  positions = copies * height * columns
  return layer_sums.products(
    x.reshape(examples, positions, -1),
    delta.reshape(examples, positions, layer.size * outputs),
  )


def _image_convolution(layer, shape, x, delta, copies) -> layer_sums.LayerSums:
  """Handles image inputs; `_convolution` also takes patches."""
  # Drop non-finite inputs here, before patches repeat each pixel; the norm
  # marks them. Compare instead of calling `isfinite`: XLA may evaluate this on
  # values not yet rounded to bfloat16, where the largest become infinite.
  finite = (jnp.abs(x) <= jnp.finfo(x.dtype).max).all(axis=(1, 2, 3))
  finite = finite.reshape(-1, copies).all(axis=1)
  x = layer_sums.keep(jnp.repeat(finite, copies), x)
  size, _, channels, outputs = shape
  pixels = delta.reshape(len(finite), -1, outputs)

  def seen():
    return layer_sums.merge_copies(jax_layers.patches(layer, x), copies)

  if layer_sums.is_ghost_cheaper(
    pixels.shape[1], size * size * channels, outputs
  ):
    sums = layer_sums.ghost_sums(seen(), pixels, is_finite=True)
    sums = layer_sums.reshape_kernel(sums, lambda kernel: kernel.reshape(shape))
  elif layer.stride == 1:
    kernels = _shifted_products(layer, x, delta, copies)
    split = size, channels, size, outputs
    sums = layer_sums.reshape_kernel(
      layer_sums.direct_sums(kernels, pixels),
      lambda kernel: kernel.reshape(split).transpose(2, 0, 1, 3),
    )
  else:
    kernels = layer_sums.products(seen(), pixels)
    sums = layer_sums.direct_sums(kernels.reshape(-1, *shape), pixels)
  gradients = sums.gradients

  def marked():
    # Set these gradients to NaN, like their norms: they look finite because
    # non-finite inputs were dropped.
    kernel, bias = gradients()
    mark = jnp.where(finite, 0.0, jnp.nan)
    return kernel + mark.reshape(-1, 1, 1, 1, 1), bias

  return sums._replace(
    squared_norms=jnp.where(finite, sums.squared_norms, jnp.nan),
    gradients=marked,
  )


def _convolution(layer, shapes, x, delta, copies) -> layer_sums.LayerSums:
  if x.ndim == 4:
    return _image_convolution(layer, shapes[0], x, delta, copies)
  # The input consists of patches.
  pixels = delta.reshape(len(delta), -1, delta.shape[-1])
  sums = layer_sums.product_sums(
    *(layer_sums.merge_copies(part, copies) for part in (x, pixels))
  )
  return layer_sums.reshape_kernel(
    sums, lambda kernel: kernel.reshape(shapes[0])
  )


def _group_norm(layer, shapes, x, delta, copies) -> layer_sums.LayerSums:
  """Sums over pixels: normalized input times delta (scale), delta (bias)."""
  del layer
  channels = shapes[0][0]
  x, delta = (
    p.reshape(-1, p.shape[1] * p.shape[2], channels) for p in (x, delta)
  )
  x, delta = (layer_sums.merge_copies(p, copies) for p in (x, delta))
  products = x.astype(jnp.float32) * delta.astype(jnp.float32)
  return layer_sums.direct_sums(products.sum(axis=1), delta)


def _lstm(layer, shapes, x, delta, copies) -> layer_sums.LayerSums:
  del layer
  inputs = shapes[0][0]
  sums = layer_sums.product_sums(
    *(layer_sums.merge_copies(part, copies) for part in (x, delta))
  )

  def split(arrays):
    kernels, bias = arrays
    return kernels[:inputs], kernels[inputs:], bias

  return layer_sums.map_arrays(sums, split)


def _embedding(layer, shapes, tokens, delta, copies) -> layer_sums.LayerSums:
  del layer
  tokens, delta = (layer_sums.merge_copies(p, copies) for p in (tokens, delta))
  # Rows of the same token add up, so their inner products count.
  same = tokens[:, :, None] == tokens[:, None, :]
  grams = layer_sums.gram(delta)
  squared_norms = layer_sums.from_above(
    jnp.where(same, grams, 0).sum(axis=(1, 2)),
    layer_sums.lengths_of(grams),
    features=delta.shape[-1],
  )

  def table(tokens, rows):
    return jnp.zeros(shapes[0], jnp.float32).at[tokens].add(rows)

  def weighted_sum(weights, counts):
    return (table(tokens, layer_sums.weigh(weights, counts, delta)),)

  def gradients():
    return (jax.vmap(table)(tokens, delta.astype(jnp.float32)),)

  return layer_sums.LayerSums(squared_norms, weighted_sum, gradients)


_SUMS = {
  jax_layers.Convolution: _convolution,
  jax_layers.Dense: _dense,
  jax_layers.Embedding: _embedding,
  jax_layers.GroupNorm: _group_norm,
  jax_layers.Lstm: _lstm,
}


def sums_of(
  layer: jax_layers.Layer,
  shapes: Sequence[tuple[int, ...]],
  x: jax.Array,
  delta: jax.Array,
  copies: int,
) -> layer_sums.LayerSums:
  """Returns norms and weighted sums of the gradients of a layer's weights.

  Args:
    layer: The layer.
    shapes: The shapes of its weights.
    x: The layer's inputs, [examples * copies, ...]; see `jax_layers.Trace`.
    delta: The derivatives with respect to the layer's outputs.
    copies: Number of copies of each example.
  """
  return _SUMS[type(layer)](layer, shapes, x, delta, copies)
