"""The loss of a unit, and one backward pass over a batch of units.

A unit is an example or a group of them: the pytrees of its examples by the
number of the loss's argument, and a mask of members that are real, or None.
"""

from collections.abc import Callable, Sequence
from typing import Any, Optional

import jax
import jax.numpy as jnp
from pda_fed.clipping import checks
from pda_fed.clipping import interpreter
from pda_fed.clipping import known as known_lib
from pda_fed.clipping import norms as norms_lib
from pda_fed.clipping import numerics

# The loss of the weights' pytrees and of a unit, and other values.
_UnitLoss = Callable[[Sequence[Any], Any], tuple[jax.Array, Any]]


def loss_of_unit(
  loss: Callable[..., Any],
  argnums: Sequence[int],
  has_aux: bool,
  group: Optional[str] = None,
) -> _UnitLoss:
  """Returns the loss of a unit; see `clipped_grad` for the arguments."""

  def of_example(weights, examples):
    places = dict(zip(argnums, weights, strict=True)) | examples
    found = loss(*(places[k] for k in range(len(places))))
    return checks.check_loss(found, has_aux)

  def of_group(weights, unit):
    examples, members = unit
    if members is not None:
      # What is no member becomes a copy of one, so that its loss is defined.
      rows = jnp.arange(len(members))
      rows = jnp.where(members, rows, jnp.argmax(members))
      examples = jax.tree.map(lambda a: a[rows], examples)
    values, aux = jax.vmap(of_example, in_axes=(None, 0))(weights, examples)
    if members is None:
      return getattr(values, group)(), aux
    total = (values * members.astype(values.dtype)).sum()
    if group == 'mean':
      total = total / jnp.maximum(members.sum(), 1).astype(values.dtype)
    return total, aux

  if group is not None:
    return of_group
  return lambda weights, unit: of_example(weights, unit[0])


def run(
  loss: _UnitLoss, weights: Sequence[Any], units: Any
) -> tuple[list[norms_lib.Recorded], list[jax.Array], jax.Array, Any]:
  """Runs a batch forward and backward.

  Args:
    loss: The loss of a unit.
    weights: The pytrees of weights.
    units: Units, whose arrays have a leading axis.

  Returns:
    What the gradients are made of, the flattened weights, and the loss of each
    unit with what was returned beside it.
  """
  leaves, tree = jax.tree.flatten(tuple(weights))
  leaves = varying([jnp.asarray(leaf) for leaf in leaves], units)
  found: dict[str, Any] = {}

  def replay(unit, taps=None):
    run = interpreter.Run(taps)
    inputs = [known_lib.weight(leaf, k) for k, leaf in enumerate(leaves)]
    inputs += jax.tree.leaves(unit)
    outs = run.outputs(found['program'].jaxpr, found['program'].consts, inputs)
    found.update(sites=run.sites, shapes=run.shapes)
    return outs, run.records

  def trace(unit):
    # Inside vmap: arrays have the types of one unit, also in shard_map.
    found['program'], found['out'] = jax.make_jaxpr(
      lambda leaves, unit: loss(jax.tree.unflatten(tree, leaves), unit),
      return_shape=True,
    )(leaves, unit)
    replay(unit)
    return ()

  def forward(taps):
    (values, *aux), records = jax.vmap(replay)(units, taps)
    return values, (values, aux, records)

  jax.eval_shape(jax.vmap(trace), units)
  size = len(jax.tree.leaves(units)[0])
  taps = [jnp.zeros((size, *s.shape), s.dtype) for s in found['shapes']]
  _, back, (values, aux, records) = jax.vjp(
    forward, varying(taps, units), has_aux=True
  )
  (deltas,) = back(jnp.ones_like(values))
  rounded = jax.tree.map(numerics.round_once, (records, deltas))
  aux = jax.tree.unflatten(jax.tree.structure(found['out'][1]), aux)
  recorded = list(zip(found['sites'], *rounded, strict=True))
  return recorded, leaves, values, aux


def varying(arrays: Any, like: Any) -> Any:
  """Marks arrays as different on each device where others are.

  Inside `shard_map`, the derivative by what all devices share would be summed
  over devices.
  """

  def axes(array) -> set[str]:
    kind = jax.typeof(array)
    return set(getattr(getattr(kind, 'mat', kind), 'varying', ()))

  def mark(array):
    missing = tuple(sorted(wanted - axes(array)))
    return jax.lax.pcast(array, missing, to='varying') if missing else array

  wanted = set().union(*map(axes, jax.tree.leaves(like)))
  return jax.tree.map(mark, arrays)
