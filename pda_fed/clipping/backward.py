"""One backward pass over a batch, and the norms of its gradients."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
from pda_fed.clipping import checks
from pda_fed.clipping import interpreter
from pda_fed.clipping import known as known_lib
from pda_fed.clipping import norms as norms_lib
from pda_fed.clipping import numerics


class Units(NamedTuple):
  """A batch of units, which are examples or groups of them.

  Attributes:
    examples: The arguments of the loss that hold examples, by their number:
      pytrees of arrays [units, ...], or [units, members, ...].
    present: Which units are real; others are padding.
    members: Which members of each unit are real; None for all.
  """

  examples: dict[int, Any]
  present: jax.Array
  members: Optional[jax.Array] = None


class Loss(NamedTuple):
  """The loss of one unit.

  Attributes:
    function: The user's loss of one example.
    argnums: Which of its arguments are weights.
    has_aux: Whether it returns a pair of the loss and other values.
    group: 'mean' or 'sum' of the members of a group; None for an example.
  """

  function: Callable[..., Any]
  argnums: tuple[int, ...] = (0,)
  has_aux: bool = False
  group: Optional[str] = None

  def of_unit(self, weights, examples, members) -> tuple[jax.Array, Any]:
    """Returns the loss of a unit, and other values."""
    if self.group is None:
      return self._of_example(weights, examples)
    if members is not None:
      # What is no member becomes a copy of one, so that its loss is defined.
      rows = jnp.arange(len(members))
      rows = jnp.where(members, rows, jnp.argmax(members))
      examples = jax.tree.map(lambda a: a[rows], examples)
    of_members = jax.vmap(self._of_example, in_axes=(None, 0))
    values, aux = of_members(weights, examples)
    if members is None:
      return getattr(values, self.group)(), aux
    total = (values * members.astype(values.dtype)).sum()
    if self.group == 'mean':
      total = total / jnp.maximum(members.sum(), 1).astype(values.dtype)
    return total, aux

  def _of_example(self, weights, examples) -> tuple[jax.Array, Any]:
    places = dict(zip(self.argnums, weights, strict=True)) | examples
    found = self.function(*(places[k] for k in range(len(places))))
    if self.has_aux and not (isinstance(found, tuple) and len(found) == 2):
      raise ValueError(
        'loss must return a pair of a scalar and other values if has_aux=True.'
        f' Found {type(found).__name__}.'
      )
    value, aux = found if self.has_aux else (found, None)
    checks.check_loss(value)
    return jnp.asarray(value), aux


class Backward(NamedTuple):
  """What a backward pass found.

  Attributes:
    recorded: What the gradients are made of.
    leaves: The flattened weights.
    values: The loss of each unit.
    aux: What the loss returned beside it.
  """

  recorded: list[norms_lib.Recorded]
  leaves: list[jax.Array]
  values: jax.Array
  aux: Any


def run(loss: Loss, weights: Sequence[Any], units: Units) -> Backward:
  """Runs a batch forward and backward.

  Args:
    loss: The loss of a unit.
    weights: The pytree for each of `loss.argnums`.
    units: The batch.
  """
  leaves, tree = jax.tree.flatten(tuple(weights))
  data = units.examples, units.members
  leaves = varying([jnp.asarray(leaf) for leaf in leaves], data)
  size = len(units.present)
  found: dict[str, Any] = {}

  def flat_loss(leaves, data):
    return loss.of_unit(jax.tree.unflatten(tree, leaves), *data)

  def replay(data, taps=None):
    run = interpreter.Run(taps)
    program, consts = found['program'].jaxpr, found['program'].consts
    inputs = [known_lib.weight(leaf, k) for k, leaf in enumerate(leaves)]
    outs = run.outputs(program, consts, [*inputs, *jax.tree.leaves(data)])
    found.update(sites=run.sites, shapes=run.shapes)
    return outs, run.records

  def trace(data):
    # Inside vmap: arrays have the types of one unit, also in shard_map.
    program, out = jax.make_jaxpr(flat_loss, return_shape=True)(leaves, data)
    found.update(program=program, out=out)
    replay(data)
    return ()

  def forward(taps):
    (value, *aux), records = jax.vmap(
      lambda taps, data: replay(data, taps), axis_size=size
    )(taps, data)
    return value, (value, aux, records)

  jax.eval_shape(jax.vmap(trace), data)
  taps = [jnp.zeros((size, *s.shape), s.dtype) for s in found['shapes']]
  taps = varying(taps, data)
  _, back, (values, aux, records) = jax.vjp(forward, taps, has_aux=True)
  (deltas,) = back(jnp.ones_like(values))
  rounded = jax.tree.map(numerics.round_once, (records, deltas))
  recorded = map(norms_lib.Recorded, found['sites'], *rounded)
  aux = jax.tree.unflatten(jax.tree.structure(found['out'][1]), aux)
  return Backward(list(recorded), leaves, values, aux)


def varying(arrays: Any, like: Any) -> Any:
  """Marks arrays as different on each device where others are.

  Inside `shard_map`, the derivative by what all devices share would be summed
  over devices.

  Args:
    arrays: Arrays that may be the same on all devices.
    like: The others.
  """
  axes = set().union(*map(_device_axes, jax.tree.leaves(like)))

  def mark(a):
    missing = tuple(sorted(axes - _device_axes(a)))
    return jax.lax.pcast(a, missing, to='varying') if missing else a

  return jax.tree.map(mark, arrays)


def _device_axes(array) -> set[str]:
  """Returns the axes of devices over which an array varies."""
  kind = jax.typeof(array)
  return set(getattr(getattr(kind, 'mat', kind), 'varying', ()))
