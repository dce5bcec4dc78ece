"""Sums of clipped gradients of examples, for any loss in JAX."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
from pda_fed.clipping import backward
from pda_fed.clipping import checks
from pda_fed.clipping import norms as norms_lib
from pda_fed.clipping import numerics


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
  checks.check_options(clip_norm, copies, microbatch_size, group)
  numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

  def clipped(*args, mask: Optional[jax.Array] = None):
    own, names = checks.weights_of(args, numbers)
    units, present = _units(args, own, key_argnum, copies, group, mask)
    how = 'mean' if copies > 1 else group
    unit_loss = backward.loss_of_unit(loss, own, has_aux, how)
    weights = tuple(args[number] for number in own)
    sites: list[Any] = []

    def sums_of(units, present):
      found = backward.run(unit_loss, weights, units)
      sites[:] = [site for site, *_ in found[0]]
      return _clip(found, weights, present, clip_norm, before_clip)

    sums, info = _in_microbatches(sums_of, units, present, microbatch_size)
    checks.warn_formed(sites, names)
    checks.warn_non_finite(info.count, info.non_finite)
    return (sums[0] if isinstance(argnums, int) else sums), info

  return clipped


def _units(args, argnums, key_argnum, copies, group, mask):
  """Returns the units of a call, and which of them are real.

  Copies of an example are members of a unit.
  """
  key = None if key_argnum is None else key_argnum % len(args)
  examples = [k for k in range(len(args)) if k not in (*argnums, key)]
  rows, *members = checks.batch_shape(args, examples, 2 if group else 1)
  if rows % copies:
    raise ValueError(
      f'copies must divide the number of rows, {rows}. Found {copies}.'
    )
  is_empty = rows == 0
  if is_empty:  # One row of padding: not all operations take no row at all.
    rows, mask = copies, None
  size = rows // copies
  members = [copies] if copies > 1 else members

  def split(a):
    a = jnp.zeros((rows, *a.shape[1:]), a.dtype) if is_empty else jnp.asarray(a)
    return a.reshape(size, copies, *a.shape[1:]) if copies > 1 else a

  arrays = {k: jax.tree.map(split, args[k]) for k in examples}
  if key is not None:
    arrays[key] = jax.random.split(args[key], (size, *members))
  if mask is None:
    return (arrays, None), jnp.full(size, not is_empty)
  # Booleans: a weight above 1 would break the bound on what an example changes.
  mask = jnp.asarray(mask) != 0
  allowed = [(size,)] + ([(size, *members)] if group else [])
  if mask.shape not in allowed:
    shapes = ' or '.join(map(str, allowed))
    raise ValueError(f'mask must have shape {shapes}. Found {mask.shape}.')
  if mask.ndim == 1:
    return (arrays, None), mask
  return (arrays, mask), mask.any(axis=1)


def _clip(
  found, weights, present, clip_norm, before_clip
) -> tuple[Any, ClipInfo]:
  """Clips and sums the gradients of a backward pass."""
  all_recorded, leaves, values, aux = found
  zeros, tree = jax.tree.flatten(weights)
  zeros = [jnp.zeros(w.shape, numerics.wide_dtype(w)) for w in zeros]
  if before_clip is None:
    parts = norms_lib.find(all_recorded, leaves)
  else:
    formed = {
      k: jnp.broadcast_to(zero, (len(present), *zero.shape))
      for k, zero in enumerate(zeros)
    }
    for recorded in all_recorded:
      norms_lib.add(formed, norms_lib.form(recorded, leaves))
    changed = _changed(formed.values(), tree, before_clip)
    parts = [norms_lib.formed_part([], [dict(enumerate(changed))])]
  squared = sum((p.squared for p in parts), jnp.zeros(len(present)))
  norms = numerics.root_from_above(squared)
  finite = jnp.isfinite(norms)
  counts, above = present & finite, finite & (norms > clip_norm)
  scales = _scales(parts, counts, above, norms, clip_norm)
  sums: norms_lib.Sums = {}
  for part in parts:
    norms_lib.add(sums, part.weighted(counts, scales))
  total = [
    sums[k].astype(zero.dtype) if k in sums else zero
    for k, zero in enumerate(zeros)
  ]
  return jax.tree.unflatten(tree, total), ClipInfo(
    norms=jnp.where(present, jnp.where(finite, norms, jnp.nan), 0),
    count=present.sum(),
    clipped=(above & present).sum(),
    non_finite=(~finite & present).sum(),
    values=values,
    aux=aux,
  )


def _scales(
  parts: Sequence[norms_lib.Part], counts, above, norms, clip_norm
) -> jax.Array:
  """Returns the factors of examples, such that none exceeds `clip_norm`.

  Where scaled values are rounded, factors aim a little below it. Roundings
  hardly ever add up to more, but an adversarial example can make them.
  """
  is_rounded = any(part.rounded for part in parts)
  goal = clip_norm * (1 - numerics.MARGIN) if is_rounded else clip_norm
  scales = jnp.where(above, goal / norms, 1.0).astype(norms.dtype)
  if not is_rounded:
    return scales
  squared = sum(
    part.rounded(counts, scales)
    if part.rounded
    # The square of a small scale alone would underflow.
    else jnp.square(scales * jnp.sqrt(part.squared))
    for part in parts
  )
  rounded = numerics.root_from_above(squared)
  return scales * numerics.reduction(rounded, clip_norm)


def _changed(formed, tree, before_clip) -> list[jax.Array]:
  """Returns the gradients of all units after `before_clip`."""

  def change(*gradients):
    pytrees = jax.tree.unflatten(tree, gradients)
    whole = pytrees[0] if len(pytrees) == 1 else pytrees
    changed = before_clip(whole)
    before, after = (jax.tree.map(jnp.shape, g) for g in (whole, changed))
    if before != after:
      raise ValueError(
        f'before_clip must return a pytree like its argument, {before}. '
        f'Found {after}.'
      )
    return jax.tree.leaves(changed)

  return jax.vmap(change)(*formed)


def _in_microbatches(
  sums_of, units, present, microbatch_size: Optional[int]
) -> tuple[Any, ClipInfo]:
  """Adds up the sums of parts of a batch, one part after the other."""
  size = len(present)
  if microbatch_size is None or microbatch_size >= size:
    return sums_of(units, present)
  # The last part is filled up with padding.
  rows = jnp.arange(-(-size // microbatch_size) * microbatch_size)
  units, present = jax.tree.map(lambda a: a[rows % size], (units, present))
  parts = jax.tree.map(
    lambda a: a.reshape(-1, microbatch_size, *a.shape[1:]),
    (units, present & (rows < size)),
  )

  def totals(part):
    sums, info = sums_of(*part)
    added = sums, (info.count, info.clipped, info.non_finite)
    return added, (info.norms, info.values, info.aux)

  def body(total, part):
    added, rest = totals(part)
    return jax.tree.map(jnp.add, total, added), rest

  shapes, _ = jax.eval_shape(totals, jax.tree.map(lambda a: a[0], parts))
  zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
  start = backward.varying(zeros, (units, present))
  (sums, (count, clipped, non_finite)), rest = jax.lax.scan(body, start, parts)
  norms, values, aux = jax.tree.map(
    lambda a: a.reshape(-1, *a.shape[2:])[:size], rest
  )
  return sums, ClipInfo(norms, count, clipped, non_finite, values, aux)
