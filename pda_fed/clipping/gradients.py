"""Sums of clipped gradients of examples, for any loss in JAX."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
from pda_fed.clipping import backward
from pda_fed.clipping import checks
from pda_fed.clipping import norms as norms_lib
from pda_fed.clipping import numerics
from pda_fed.clipping import sites as sites_lib


class ClipInfo(NamedTuple):
  """What `clipped_grad` found beside the sum. None of it is private.

  Attributes:
    norms: The norm of each unit's gradient, rounded up; NaN if it is not
      finite, and 0 for padding.
    count: The number of units; padding is none.
    clipped: How many were scaled down.
    non_finite: How many were left out because of a NaN or an infinity.
    values: The loss of each unit.
    aux: What the loss returned beside its value, for each example.
  """

  norms: jax.Array
  count: jax.Array
  clipped: jax.Array
  non_finite: jax.Array
  values: jax.Array
  aux: Any = None


def clipped_grad(
  loss: Callable[..., Any],
  clip_norm: checks.Scalar,
  *,
  argnums: Union[int, Sequence[int]] = 0,
  has_aux: bool = False,
  key_argnum: Optional[int] = None,
  microbatch_size: Optional[int] = None,
  copies: int = 1,
  group: Optional[str] = None,
  before_clip: Optional[Callable[[Any], Any]] = None,
) -> Callable[..., tuple[Any, ClipInfo]]:
  """Returns a function that sums clipped gradients of examples.

  It stands beside `jax.grad`: the function takes the arguments of `loss`, but
  for a batch. Adding or removing one example changes the sum by at most
  `clip_norm`, whatever the example holds and however values are rounded.
  Examples whose gradients are not finite become zeros and are counted.

  `loss` may be any function that JAX can differentiate backward. It is traced
  once; products, convolutions, embeddings, biases and scales are recognized in
  it, and one ordinary backward pass gives the norms and the sum (see `norms`).
  Gradients by weights that reach other operations are formed for each example,
  as `vmap(grad)` would; a warning names them, and `explain` lists all.

  Like `jax.grad` it does not compile: call the result inside `jax.jit`. It
  works in `vmap`, in `scan`, on arrays that are sharded, and in `shard_map`,
  where each device sums over its own examples.

  Example:

    >>> def loss(params, x, y):
    ...   return jnp.square(x @ params['w'] - y)
    >>> params = {'w': jnp.zeros(2)}
    >>> x, y = jnp.array([[3.0, 4.0], [0.0, 0.1]]), jnp.array([1.0, 1.0])
    >>> sums, info = clipped_grad(loss, clip_norm=1.0)(params, x, y)
    >>> np.asarray(sums['w']).round(3)
    array([-0.6, -1. ], dtype=float32)
    >>> np.asarray(info.norms).round(3), int(info.clipped)
    (array([10. ,  0.2], dtype=float32), 1)

  Args:
    loss: Returns the loss of one example, a scalar, or with `has_aux` a pair of
      it and other values. Its arguments are pytrees of arrays.
    clip_norm: The largest norm of an example's gradient, positive; may be
      infinite or traced.
    argnums: Which arguments are weights, one or several. If it is a sequence,
      the sum is a tuple. All other arguments hold examples: their arrays have
      a leading axis, the same for all.
    has_aux: Whether the loss returns a pair.
    key_argnum: Which argument is a random key, if any: it is split, so that
      each example, and each copy, has its own.
    microbatch_size: Number of examples, or of groups, whose gradients are
      computed at once, to save memory; None for all.
    copies: Number of augmented copies of each example, which are adjacent. The
      mean of their gradients is clipped.
    group: 'mean' or 'sum' if not an example but a group, such as a user, is the
      unit: arrays have the axes [groups, members, ...], and the mean or the sum
      of the members' gradients is clipped.
    before_clip: Changes the gradient of one unit, a pytree like the weights,
      before it is clipped. All gradients are then formed.

  Returns:
    A function of the arguments of `loss`, by position, and of an optional
    `mask`: non-zero for examples and 0 for padding, which contributes nothing,
    whatever it holds. With groups it is [groups] or [groups, members]. It
    returns the sum, in at least float32, and a `ClipInfo`. An empty batch is
    one row of padding.

  Raises:
    TypeError: If weights or the loss are not floating-point numbers.
    ValueError: If an option is out of range; when called, if shapes do not fit
      or weights reach a `while_loop`.
  """
  checks.check_clip_norm(clip_norm)
  checks.check_options(copies, microbatch_size, group)
  numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

  def clipped(*args, mask: Optional[jax.Array] = None):
    own = checks.check_weights(args, numbers)
    units = _units(args, own, key_argnum, copies, group, mask)
    unit_loss = backward.Loss(
      loss, own, has_aux, 'mean' if copies > 1 else group
    )
    weights = tuple(args[number] for number in own)
    sites: list[sites_lib.Site] = []

    def sums_of(units):
      found = backward.run(unit_loss, weights, units)
      sites[:] = [recorded.site for recorded in found.recorded]
      return _clip(found, weights, units.present, clip_norm, before_clip)

    sums, info = _in_microbatches(sums_of, units, microbatch_size)
    checks.warn_formed(sites, checks.weight_names(args, own))
    checks.warn_non_finite(info.count, info.non_finite)
    return (sums[0] if isinstance(argnums, int) else sums), info

  return clipped


def _units(args, argnums, key_argnum, copies, group, mask) -> backward.Units:
  """Returns the units of a call; copies of an example are members of one."""
  key = None if key_argnum is None else key_argnum % len(args)
  examples = [k for k in range(len(args)) if k not in (*argnums, key)]
  rows, *members = checks.batch_shape(args, examples, 2 if group else 1)
  if rows % copies:
    raise ValueError(
      f'copies must divide the number of rows, {rows}. Found {copies}.'
    )
  arrays = {k: jax.tree.map(jnp.asarray, args[k]) for k in examples}
  is_empty = rows == 0
  if is_empty:  # One row of padding: not all operations take no row at all.
    rows, mask = copies, None
    arrays = jax.tree.map(
      lambda a: jnp.zeros((rows, *a.shape[1:]), a.dtype), arrays
    )
  size = rows // copies
  if copies > 1:
    members = [copies]
    arrays = jax.tree.map(
      lambda a: a.reshape(size, copies, *a.shape[1:]), arrays
    )
  if key is not None:
    arrays[key] = jax.random.split(args[key], (size, *members))
  if mask is None:
    return backward.Units(arrays, jnp.full(size, not is_empty))
  # Booleans: a weight above 1 would break the bound on what an example changes.
  mask = jnp.asarray(mask) != 0
  checks.check_mask(mask, [(size,)] + ([(size, *members)] if group else []))
  if mask.ndim == 1:
    return backward.Units(arrays, mask)
  return backward.Units(arrays, mask.any(axis=1), mask)


def _clip(
  found: backward.Backward, weights, present, clip_norm, before_clip
) -> tuple[Any, ClipInfo]:
  """Clips and sums the gradients of a backward pass."""
  zeros, tree = jax.tree.flatten(weights)
  zeros = [jnp.zeros(w.shape, numerics.wide_dtype(w)) for w in zeros]
  if before_clip is None:
    parts = norms_lib.find(found.recorded, found.leaves)
  else:
    formed = {
      k: jnp.broadcast_to(zero, (len(present), *zero.shape))
      for k, zero in enumerate(zeros)
    }
    for recorded in found.recorded:
      norms_lib.add(formed, norms_lib.form(recorded, found.leaves))
    changed = _changed(list(formed.values()), tree, before_clip)
    parts = [norms_lib.formed_part([], [dict(enumerate(changed))])]
  is_rounded = any(part.rounded for part in parts)
  squared = sum((p.squared for p in parts), jnp.zeros(len(present)))
  scales = numerics.clip_scales(squared, clip_norm, present, is_rounded)
  factors = scales.scales
  if is_rounded:
    squared = sum(
      part.rounded(factors, scales.counts)
      if part.rounded
      else jnp.square(factors) * part.squared
      for part in parts
    )
    factors = numerics.reduce(factors, squared, clip_norm)
  sums: norms_lib.Sums = {}
  for part in parts:
    norms_lib.add(sums, part.weighted(factors, scales.counts))
  sums = [
    sums[k].astype(zero.dtype) if k in sums else zero
    for k, zero in enumerate(zeros)
  ]
  return jax.tree.unflatten(tree, sums), ClipInfo(
    norms=scales.norms,
    count=present.sum(),
    clipped=scales.clipped.sum(),
    non_finite=scales.non_finite.sum(),
    values=found.values,
    aux=found.aux,
  )


def _changed(formed: Sequence[jax.Array], tree, before_clip) -> list[jax.Array]:
  """Returns the gradients of all units after `before_clip`."""

  def change(*gradients):
    pytrees = jax.tree.unflatten(tree, gradients)
    whole = pytrees[0] if len(pytrees) == 1 else pytrees
    changed = before_clip(whole)
    before, after = (
      jax.tree.map(jnp.shape, gradient) for gradient in (whole, changed)
    )
    if before != after:
      raise ValueError(
        f'before_clip must return a pytree like its argument, {before}. '
        f'Found {after}.'
      )
    return jax.tree.leaves(changed)

  return jax.vmap(change)(*formed)


def _in_microbatches(
  sums_of, units: backward.Units, microbatch_size: Optional[int]
) -> tuple[Any, ClipInfo]:
  """Adds up the sums of parts of a batch, one part after the other."""
  size = len(units.present)
  if microbatch_size is None or microbatch_size >= size:
    return sums_of(units)
  # The last part is filled up with padding.
  rows = jnp.arange(-(-size // microbatch_size) * microbatch_size)
  padded = jax.tree.map(lambda a: a[rows % size], units)
  padded = padded._replace(present=padded.present & (rows < size))
  parts = jax.tree.map(
    lambda a: a.reshape(-1, microbatch_size, *a.shape[1:]), padded
  )

  def totals(part):
    sums, info = sums_of(part)
    added = sums, (info.count, info.clipped, info.non_finite)
    return added, (info.norms, info.values, info.aux)

  def body(total, part):
    added, rest = totals(part)
    return jax.tree.map(jnp.add, total, added), rest

  shapes, _ = jax.eval_shape(totals, jax.tree.map(lambda a: a[0], parts))
  zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
  start = backward.varying(zeros, units)
  (sums, counts), rest = jax.lax.scan(body, start, parts)
  norms, values, aux = jax.tree.map(
    lambda a: a.reshape(-1, *a.shape[2:])[:size], rest
  )
  count, clipped, non_finite = counts
  return sums, ClipInfo(norms, count, clipped, non_finite, values, aux)
