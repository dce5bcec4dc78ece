"""Per-example gradients: their norms and their clipped sum.

DP-SGD ("Deep Learning with Differential Privacy", Abadi et al., CCS 2016,
arXiv:1607.00133) clips the gradient of each example. Computed one at a time, or
by `vmap(grad)`, this costs several times an ordinary step. Here one ordinary
backward pass over the batch gives the deltas of each layer. Of an example's
gradient with respect to a kernel,

    G = X' D,    X: positions x inputs,    D: positions x outputs,

only the norm is needed (positions are pixels, or steps of a sequence):

    ||G||^2 = sum_{p, q} (X X')_{p q} (D D')_{p q},

the *ghost norm* of Gram matrices ("Large Language Models Can Be Strong
Differentially Private Learners", Li et al., ICLR 2022, arXiv:2110.05679, after
"Efficient Per-Example Gradient Computations", Goodfellow, arXiv:1510.01799), or
G itself where that is cheaper. The clipped sum is then one product for all
examples.

Whatever the dtype of the backward pass, norms and sums use the same values, in
float32 at full precision, and ghost norms are rounded up. So the bound on an
example's contribution holds for the values that are summed.
"""

from collections.abc import Callable
from typing import NamedTuple, Optional

import jax
import jax.numpy as jnp
from pda_fed.jax import aggregation
from pda_fed.jax import clipping
from pda_fed.jax.sample_level import by_layer
from pda_fed.jax.sample_level import layer_sums
from pda_fed.models import jax_layers

_Arrays = tuple[jax.Array, ...]


def _backward(
  model: jax_layers.Model,
  params: jax_layers.Params,
  inputs: jax.Array,
  targets: jax.Array,
  copies: int,
) -> tuple[_Arrays, jax_layers.Trace]:
  """Runs a batch forward and backward; returns the deltas and the trace."""
  shapes = jax.eval_shape(model.run, params, inputs, targets).outputs
  zeros = [jnp.zeros(s.shape, s.dtype) for s in shapes]

  def loss(taps):
    trace = model.run(params, inputs, targets, taps=taps)
    return trace.losses.sum() / copies, trace

  return jax.grad(loss, has_aux=True)(zeros)


def _layer_sums(
  model: jax_layers.Model,
  params: jax_layers.Params,
  inputs: jax.Array,
  targets: jax.Array,
  copies: int,
) -> tuple[list[layer_sums.LayerSums], jax_layers.Trace]:
  """Returns the sums of each layer and the trace of the batch."""
  deltas, trace = _backward(model, params, inputs, targets, copies)
  return [
    by_layer.sums_of(
      layer,
      model.shapes[layer.kernel : layer.kernel + layer.num_arrays],
      _round_once(x),
      _round_once(delta),
      copies,
    )
    for layer, x, delta in zip(model.layers, trace.inputs, deltas, strict=True)
  ], trace


def _round_once(x: jax.Array) -> jax.Array:
  """Rounds an array to its own dtype, for all its readers.

  XLA may remove casts to bfloat16 and back for one reader but not for another.
  Where terms cancel, the norm of values before rounding says nothing about the
  sum of values after rounding: an example could exceed its clipping norm
  severalfold.

  Args:
    x: A layer's inputs, or its deltas.
  """
  if x.dtype != jnp.bfloat16:
    return x
  info = jnp.finfo(x.dtype)
  rounded = jax.lax.reduce_precision(
    x.astype(jnp.float32), info.nexp, info.nmant
  )
  return rounded.astype(x.dtype)


class ExampleStats(NamedTuple):
  """Sums over the real examples of a batch. They are not private.

  Attributes:
    loss: Sum of the mean loss of each example's targets.
    hits: Sum of correctly predicted targets.
    squared_norm: Sum of the squared gradient norms before clipping.
  """

  loss: jax.Array
  hits: jax.Array
  squared_norm: jax.Array


def _mean_of_copies(x: jax.Array, copies: int) -> jax.Array:
  """Averages over copies: [examples * copies] to [examples]."""
  return x.reshape(-1, copies).mean(axis=1)


def clipped_sum(
  model: jax_layers.Model,
  params: jax_layers.Params,
  inputs: jax.Array,
  targets: jax.Array,
  mask: jax.Array,
  clip_norm: float,
  *,
  compute_dtype: Optional[jnp.dtype] = None,
  copies: int = 1,
) -> tuple[aggregation.ClippedSum, ExampleStats]:
  """Clips the gradient of each example's loss and sums the gradients.

  Adding or removing one example changes the total by at most `clip_norm`,
  however many copies it has.

  Args:
    model: The model.
    params: Its weights.
    inputs: [batch * copies, ...], with adjacent copies of an example.
    targets: [batch * copies, ...].
    mask: [batch], non-zero for examples and 0 for padding. Padding contributes
      nothing, whatever values it holds.
    clip_norm: S. If infinite, only non-finite gradients are changed, to zeros.
    compute_dtype: Dtype of the forward and backward pass; by default that of
      the weights.
    copies: Number of augmented copies of each example. The loss of an example
      is the mean over its copies.

  Returns:
    The `aggregation.ClippedSum`, with float32 arrays, and statistics.
  """
  if compute_dtype is not None:
    params = tuple(w.astype(compute_dtype) for w in params)
  layers, trace = _layer_sums(model, params, inputs, targets, copies)
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
  stats = (
    _mean_of_copies(trace.token_losses, copies),
    _mean_of_copies(trace.hits, copies),
    squared_norms,
  )
  return sums, ExampleStats(*(jnp.where(counts, s, 0).sum() for s in stats))


def example_gradients(
  model: jax_layers.Model,
  params: jax_layers.Params,
  inputs: jax.Array,
  targets: jax.Array,
  *,
  compute_dtype: Optional[jnp.dtype] = None,
  copies: int = 1,
) -> tuple[_Arrays, tuple[jax.Array, jax.Array]]:
  """Forms the gradient of each example's loss.

  A model with layers needs one backward pass over the batch. Other models use
  `vmap(grad)`, which is slow for convolutions.

  Args:
    model: See `clipped_sum`.
    params: See `clipped_sum`.
    inputs: See `clipped_sum`.
    targets: See `clipped_sum`.
    compute_dtype: See `clipped_sum`.
    copies: See `clipped_sum`.

  Returns:
    The gradients, [batch, ...] for each of the model's arrays, and for each
    example the mean loss of its targets and its hits.
  """

  def cast(params):
    if compute_dtype is None:
      return params
    return tuple(w.astype(compute_dtype) for w in params)

  if model.layers:
    layers, trace = _layer_sums(model, cast(params), inputs, targets, copies)
    gradients = tuple(g for layer in layers for g in layer.gradients())
    stats = trace.token_losses, trace.hits
    return gradients, tuple(_mean_of_copies(s, copies) for s in stats)

  def one_loss(params, *example):
    found = model.run(cast(params), *example)
    return found.losses.mean(), (found.token_losses.mean(), found.hits.mean())

  def split(part):
    return part.reshape(-1, copies, *part.shape[1:])

  one = jax.grad(one_loss, has_aux=True)
  return jax.vmap(one, in_axes=(None, 0, 0))(
    params, split(inputs), split(targets)
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
  copies: int = 1,
) -> tuple[aggregation.ClippedSum, ExampleStats]:
  """Like `clipped_sum`, but changes each gradient before it is clipped.

  It forms the gradients of all examples, which takes more time and memory. The
  model need not have layers.

  Args:
    model: See `clipped_sum`.
    params: See `clipped_sum`.
    inputs: See `clipped_sum`.
    targets: See `clipped_sum`.
    mask: See `clipped_sum`.
    clip_norm: See `clipped_sum`.
    before_clip: Changes the gradient of one example, a tuple of arrays.
    compute_dtype: See `clipped_sum`.
    copies: See `clipped_sum`.

  Returns:
    See `clipped_sum`.
  """
  gradients, stats = example_gradients(
    model,
    params,
    inputs,
    targets,
    compute_dtype=compute_dtype,
    copies=copies,
  )
  squared = sum(jax.vmap(lambda g: jnp.square(g).sum())(g) for g in gradients)
  changed = gradients
  if before_clip is not None:
    changed = jax.vmap(before_clip)(gradients)
  sums = aggregation.clipped_sum(changed, mask, clip_norm)
  counts = (mask != 0) & jnp.isfinite(squared)
  return sums, ExampleStats(
    *(jnp.where(counts, s, 0).sum() for s in (*stats, squared))
  )
