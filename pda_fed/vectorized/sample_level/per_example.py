"""Gradients of single examples: their norms, and their clipped sum.

DP-SGD ("Deep Learning with Differential Privacy", Abadi et al., CCS 2016,
arXiv:1607.00133) clips the gradient of each example. One at a time, or by
`vmap(grad)`, that costs several times an ordinary step. Here one ordinary
backward pass of the batch gives the deltas of each layer, and of an example's
gradient by a kernel,

    G = X' D,    X: positions x inputs,    D: positions x outputs,

only the norm is needed (positions are pixels, or steps of a sequence):

    ||G||^2 = sum_{p, q} (X X')_{p q} (D D')_{p q},

the *ghost norm* of Gram matrices ("Large Language Models Can Be Strong
Differentially Private Learners", Li et al., ICLR 2022, arXiv:2110.05679, after
"Efficient Per-Example Gradient Computations", Goodfellow, arXiv:1510.01799), or
G itself where that is cheaper. The clipped sum is then one product for all
examples.

Whatever the dtype of the backward pass, norms and sums here are of the same
numbers, in float32 at full precision, and ghost norms are rounded up: the bound
on an example's part of the sum holds for what is summed.
"""

from collections.abc import Callable
from typing import NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.models import jax_layers
from pda_fed.vectorized import aggregation
from pda_fed.vectorized import clipping
from pda_fed.vectorized.sample_level import layer_sums

_Arrays = tuple[jax.Array, ...]


def _dense(layer, shapes, x, delta) -> layer_sums.LayerSums:
  del layer, shapes
  if x.ndim == 2:
    x, delta = x[:, None], delta[:, None]
  return layer_sums.product_sums(x, delta)


def _shifted_products(
  layer: jax_layers.Convolution, x: jax.Array, delta: jax.Array
) -> jax.Array:
  """Gradients by a kernel of stride 1, without patches.

  Columns are shifted in what went in and rows in the deltas, which together is
  fewer numbers to write and read than patches: of 3 x 3 pixels, three times
  both instead of nine times the input.

  Args:
    layer: The convolution.
    x: [batch, height, width, channels].
    delta: [batch, rows, columns, outputs].

  Returns:
    [batch, column of the kernel * channels, row of the kernel * outputs].
  """
  x = jax_layers.pad_images(layer, x)
  batch, height = x.shape[:2]
  columns, outputs = delta.shape[2:]
  shifts = np.arange(layer.size)
  seen = np.arange(columns)[:, None] + shifts
  x = jnp.take(x, seen, axis=2, mode='clip')
  # Row h of an image meets the deltas of output row h - shift; there is a zero
  # where the output has no such row.
  margin = layer.size - 1
  delta = jnp.pad(delta, ((0, 0), (margin, margin), (0, 0), (0, 0)))
  seen_by = np.arange(height)[:, None] + margin - shifts
  delta = jnp.take(delta, seen_by, axis=1, mode='clip').transpose(0, 1, 3, 2, 4)
  positions = height * columns
  return layer_sums.products(
    x.reshape(batch, positions, -1),
    delta.reshape(batch, positions, layer.size * outputs),
  )


def _image_convolution(layer, shape, x, delta) -> layer_sums.LayerSums:
  """Of images; `_convolution` is of patches, too."""
  # Here, before patches repeat each pixel; the norm tells what was dropped. A
  # comparison and not `isfinite`: XLA may compute this from numbers that are
  # not yet rounded to bfloat16, where the largest ones become infinite.
  finite = (jnp.abs(x) <= jnp.finfo(x.dtype).max).all(axis=(1, 2, 3))
  x = layer_sums.keep(finite, x)
  size, _, channels, outputs = shape
  pixels = delta.reshape(len(delta), -1, outputs)
  if layer_sums.is_ghost_cheaper(
    pixels.shape[1], size * size * channels, outputs
  ):
    sums = layer_sums.ghost_sums(
      jax_layers.patches(layer, x), pixels, is_finite=True
    )
    sums = layer_sums.reshape_kernel(sums, lambda kernel: kernel.reshape(shape))
  elif layer.stride == 1:
    kernels = _shifted_products(layer, x, delta)
    split = size, channels, size, outputs
    sums = layer_sums.reshape_kernel(
      layer_sums.direct_sums(kernels, pixels),
      lambda kernel: kernel.reshape(split).transpose(2, 0, 1, 3),
    )
  else:
    kernels = layer_sums.products(jax_layers.patches(layer, x), pixels)
    sums = layer_sums.direct_sums(kernels.reshape(-1, *shape), pixels)
  return sums._replace(
    squared_norms=jnp.where(finite, sums.squared_norms, jnp.nan)
  )


def _convolution(layer, shapes, x, delta) -> layer_sums.LayerSums:
  if x.ndim == 4:
    return _image_convolution(layer, shapes[0], x, delta)
  # What went in is the patches.
  sums = layer_sums.product_sums(
    x, delta.reshape(len(delta), -1, delta.shape[-1])
  )
  return layer_sums.reshape_kernel(
    sums, lambda kernel: kernel.reshape(shapes[0])
  )


def _lstm(layer, shapes, x, delta) -> layer_sums.LayerSums:
  del layer
  sums = layer_sums.product_sums(x, delta)

  def weighted_sum(weights, counts):
    kernels, bias = sums.weighted_sum(weights, counts)
    inputs = shapes[0][0]
    return kernels[:inputs], kernels[inputs:], bias

  return layer_sums.LayerSums(sums.squared_norms, weighted_sum)


def _embedding(layer, shapes, tokens, delta) -> layer_sums.LayerSums:
  del layer
  # Rows of one token add up, so that their inner products count.
  same = tokens[:, :, None] == tokens[:, None, :]
  grams = layer_sums.gram(delta)
  squared_norms = layer_sums.from_above(
    jnp.where(same, grams, 0).sum(axis=(1, 2)),
    layer_sums.lengths_of(grams),
    features=delta.shape[-1],
  )

  def weighted_sum(weights, counts):
    table = jnp.zeros(shapes[0], jnp.float32)
    return (table.at[tokens].add(layer_sums.weigh(weights, counts, delta)),)

  return layer_sums.LayerSums(squared_norms, weighted_sum)


_SUMS = {
  jax_layers.Convolution: _convolution,
  jax_layers.Dense: _dense,
  jax_layers.Embedding: _embedding,
  jax_layers.Lstm: _lstm,
}


def _backward(
  model: jax_layers.Model,
  params: jax_layers.Params,
  inputs: jax.Array,
  targets: jax.Array,
) -> tuple[_Arrays, jax_layers.Trace]:
  """Runs a batch forward and backward; returns the deltas and the trace."""
  shapes = jax.eval_shape(model.run, params, inputs, targets).outputs
  zeros = [jnp.zeros(s.shape, s.dtype) for s in shapes]

  def loss(taps):
    trace = model.run(params, inputs, targets, taps=taps)
    return trace.losses.sum(), trace

  return jax.grad(loss, has_aux=True)(zeros)


def _round_once(x: jax.Array) -> jax.Array:
  """Rounds to the dtype that an array has, for all that reads it.

  XLA leaves out casts to bfloat16 and back, for one reader and not for another.
  Where terms cancel, the norm of numbers before they are rounded says nothing
  of the sum of those after it: an example could exceed its clip severalfold.

  Args:
    x: What a layer saw, or its deltas.
  """
  if x.dtype != jnp.bfloat16:
    return x
  info = jnp.finfo(x.dtype)
  rounded = jax.lax.reduce_precision(
    x.astype(jnp.float32), info.nexp, info.nmant
  )
  return rounded.astype(x.dtype)


class ExampleStats(NamedTuple):
  """Sums over the examples of a batch that were not padding; not private.

  Attributes:
    loss: Of the mean loss of an example's targets.
    hits: Of targets that were the most likely ones.
    squared_norm: Of the gradients before clipping.
  """

  loss: jax.Array
  hits: jax.Array
  squared_norm: jax.Array


def clipped_sum(
  model: jax_layers.Model,
  params: jax_layers.Params,
  inputs: jax.Array,
  targets: jax.Array,
  mask: jax.Array,
  clip_norm: float,
  *,
  compute_dtype: Optional[jnp.dtype] = None,
) -> tuple[aggregation.ClippedSum, ExampleStats]:
  """Clips the gradient of each example's loss, and sums them.

  One example more or less changes the total by at most `clip_norm`.

  Args:
    model: The model.
    params: Its weights.
    inputs: [batch, ...].
    targets: [batch, ...].
    mask: [batch], non-zero for examples and 0 for padding, which contributes
      nothing whatever it holds.
    clip_norm: S; infinity clips nothing but gradients that are not finite,
      which become zeros.
    compute_dtype: Of the forward and backward pass; by default the weights'.

  Returns:
    The `aggregation.ClippedSum`, of arrays in float32, and statistics.
  """
  if compute_dtype is not None:
    params = tuple(w.astype(compute_dtype) for w in params)
  deltas, trace = _backward(model, params, inputs, targets)
  layers = [
    _SUMS[type(layer)](
      layer,
      model.shapes[layer.kernel : layer.kernel + layer.num_arrays],
      _round_once(x),
      _round_once(delta),
    )
    for layer, x, delta in zip(model.layers, trace.inputs, deltas, strict=True)
  ]
  squared_norms = sum(layer.squared_norms for layer in layers)
  norms = jnp.sqrt(squared_norms)
  # Booleans: a weight above 1 would break the bound on the sensitivity.
  present = mask != 0
  factors = clipping.clip_factors(norms, clip_norm)
  counts = present & ~factors.was_non_finite
  total = tuple(
    array
    for layer in layers
    for array in layer.weighted_sum(factors.scales, counts)
  )
  sums = aggregation.ClippedSum(
    total=total,
    num_clients=present.sum(),
    num_clipped=(factors.was_clipped & present).sum(),
    num_non_finite=(factors.was_non_finite & present).sum(),
  )
  return sums, ExampleStats(
    loss=jnp.where(counts, trace.token_losses, 0).sum(),
    hits=jnp.where(counts, trace.hits, 0).sum(),
    squared_norm=jnp.where(counts, squared_norms, 0).sum(),
  )


def clipped_sum_of_changed(
  model: jax_layers.Model,
  params: jax_layers.Params,
  inputs: jax.Array,
  targets: jax.Array,
  mask: jax.Array,
  clip_norm: float,
  *,
  before_clip: Optional[Callable[[_Arrays], _Arrays]] = None,
  compute_dtype: Optional[jnp.dtype] = None,
) -> tuple[aggregation.ClippedSum, ExampleStats]:
  """Does what `clipped_sum` does, with each gradient changed before the clip.

  It forms the gradients of all examples, which takes more time and memory, and
  needs no layers of the model.

  Args:
    model: See `clipped_sum`.
    params: See `clipped_sum`.
    inputs: See `clipped_sum`.
    targets: See `clipped_sum`.
    mask: See `clipped_sum`.
    clip_norm: See `clipped_sum`.
    before_clip: Changes the gradient of one example, a tuple of arrays.
    compute_dtype: See `clipped_sum`.

  Returns:
    See `clipped_sum`.
  """

  def one_loss(params, *example):
    if compute_dtype is not None:
      params = tuple(w.astype(compute_dtype) for w in params)
    found = model.run(params, *(part[None] for part in example))
    return found.losses[0], (found.token_losses[0], found.hits[0])

  def one(*example):
    gradient, stats = jax.grad(one_loss, has_aux=True)(params, *example)
    squared = sum(jnp.square(leaf).sum() for leaf in gradient)
    changed = gradient if before_clip is None else before_clip(gradient)
    return changed, (*stats, squared)

  gradients, stats = jax.vmap(one)(inputs, targets)
  sums = aggregation.clipped_sum(gradients, mask, clip_norm)
  counts = (mask != 0) & jnp.isfinite(stats[-1])
  return sums, ExampleStats(*(jnp.where(counts, s, 0).sum() for s in stats))
