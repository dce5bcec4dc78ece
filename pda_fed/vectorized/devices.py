"""Devices that share the clients of a round."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

_AXIS = 'devices'


def map_over_devices(
  function: Callable[..., Any], devices: Sequence[jax.Device]
) -> Callable[..., Any]:
  """Lets each device compute a part of a sum.

  Args:
    function: Of (replicated, split, replicated), which returns a pytree of
      sums. It gets the split argument without its first axis, that of devices.
    devices: The devices; one needs no communication.

  Returns:
    A function of the same arguments that returns the sums over all devices.
  """
  if len(devices) == 1:

    def on_one(shared, split, parameter):
      own = jax.tree_util.tree_map(lambda a: a[0], split)
      return function(shared, own, parameter)

    return on_one

  spec = jax.sharding.PartitionSpec

  def on_each(shared, split, parameter):
    own = jax.tree_util.tree_map(lambda a: a[0], split)
    sums = function(shared, own, parameter)
    return jax.tree_util.tree_map(lambda s: jax.lax.psum(s, _AXIS), sums)

  return _shard_map(
    on_each,
    mesh=jax.sharding.Mesh(np.asarray(devices), (_AXIS,)),
    in_specs=(spec(), spec(_AXIS), spec()),
    out_specs=spec(),
  )


def _shard_map(function, **options):
  """`shard_map` of any version: it has moved, and renamed an argument."""
  if hasattr(jax, 'shard_map'):
    return jax.shard_map(function, check_vma=False, **options)
  from jax.experimental import shard_map

  return shard_map.shard_map(function, check_rep=False, **options)
