"""Splits clients or examples over the devices of one or more hosts."""

from collections.abc import Callable, Sequence
import os
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import errors

# Axes of the mesh: each device trains some of a round's clients, or computes
# the gradients of some of a step's examples.
CLIENTS = 'clients'
EXAMPLES = 'examples'
_HOST_DEVICES = '--xla_force_host_platform_device_count'
# Fixed cost (latency) of a step on a GPU, in units of one client's cost.
_STEP_COST = 7
_SMALL_GPU = 8 * 2**30
# Memory of a client in training, as copies of its weights; this includes its
# activations.
_COPIES = 8


class DeviceError(errors.PdaFedError):
  """A requested device is not available.

  Example:

    >>> issubclass(DeviceError, errors.PdaFedError)
    True
  """


def use_all_cores(cores: Optional[int] = None) -> None:
  """Makes each CPU core a JAX device.

  A single device with all cores would split small products over threads, which
  costs more than it gains. Call this before JAX is initialized. It does nothing
  if the user has set the number of devices.

  Args:
    cores: Number of cores; by default all that this process may use.
  """
  flags = os.environ.get('XLA_FLAGS', '')
  if _HOST_DEVICES not in flags:
    cores = cores or len(os.sched_getaffinity(0))
    os.environ['XLA_FLAGS'] = f'{flags} {_HOST_DEVICES}={cores}'.strip()


def choose_devices(platform: Optional[str] = None) -> list[jax.Device]:
  """Returns the devices to compute on.

  Args:
    platform: 'cpu' or 'gpu'; None for JAX's default.

  Raises:
    DeviceError: If no such device is available.
  """
  try:
    return list(jax.devices(platform))
  except RuntimeError as e:
    raise DeviceError(
      f'platform must be available to JAX, such as'
      f' {jax.default_backend()!r}. Found {platform!r}: {e}'
    ) from e


def choose_clients_per_chunk(
  num_parameters: int,
  device: jax.Device,
  num_steps: np.ndarray,
  cohort_size: int,
) -> int:
  """Returns how many clients to train side by side.

  A CPU trains one client at a time: products are then plain matrix products,
  and the weights stay in cache. A GPU takes as long for a few clients as for
  one, but all clients of a chunk wait for the largest one. So the best number
  depends on the clients' sizes.

  Args:
    num_parameters: Number of parameters of the model.
    device: A CPU or an accelerator.
    num_steps: Number of local steps of each user.
    cohort_size: Number of clients in a round.
  """
  if device.platform == 'cpu':
    return 1
  stats = device.memory_stats() or {}
  limit = stats.get('bytes_limit', _SMALL_GPU)
  per_client = 4 * _COPIES * num_parameters
  most = max(1, min(cohort_size, int(limit // 2 // per_client)))
  # A typical cohort, largest first.
  places = (np.arange(cohort_size)[::-1] + 0.5) / cohort_size
  typical = np.quantile(num_steps, places, method='nearest')
  costs = [
    typical[::chunk].sum() * (_STEP_COST + chunk)
    for chunk in range(1, most + 1)
  ]
  return int(np.argmin(costs)) + 1


def map_over_devices(
  function: Callable[..., Any], devices: Sequence[jax.Device]
) -> Callable[..., Any]:
  """Splits the computation of a sum over devices.

  Args:
    function: A function of (replicated, split, replicated) arguments that
      returns a pytree of sums. It gets the split argument without its device
      axis, the first one.
    devices: The devices. A single device needs no communication.

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
    return ordered_sum(function(shared, own, parameter), len(devices))

  return _shard_map(
    on_each,
    mesh=_mesh(devices, CLIENTS),
    in_specs=(spec(), spec(CLIENTS), spec()),
    out_specs=spec(),
  )


def run_on_each(
  function: Callable[..., Any], devices: Sequence[jax.Device], axis: str
) -> Callable[..., Any]:
  """Runs a whole computation on each device, on its own copies.

  The function can split work by `jax.lax.axis_index(axis)` and sum the results
  with `ordered_sum`. Every device repeats all other computations.

  Args:
    function: A function of arrays that are replicated on all devices. It
      returns the same on each.
    devices: Two or more devices.
    axis: The name of the mesh's axis.

  Returns:
    A function of the same arguments. It returns the first device's result. Some
    GPU sums are not deterministic in their last digits, so the copies would
    otherwise drift apart.
  """

  def on_each(*arguments):
    is_first = jax.lax.axis_index(axis) == 0
    return jax.tree_util.tree_map(
      lambda a: jax.lax.psum(jnp.where(is_first, a, jnp.zeros_like(a)), axis),
      function(*arguments),
    )

  spec = jax.sharding.PartitionSpec
  return _shard_map(
    on_each, mesh=_mesh(devices, axis), in_specs=spec(), out_specs=spec()
  )


def ordered_sum(tree: Any, num_devices: int, axis: str = CLIENTS) -> Any:
  """Sums over devices in a fixed order, with one reduction for all arrays.

  The order of `psum` depends on how devices are spread over hosts. Here each
  device sums a part of the values, so the traffic is the same as for `psum`.

  Args:
    tree: The device's own values. Counts must be below 2^24 to be exact in
      float32.
    num_devices: Number of devices.
    axis: The name of the mesh's axis.
  """
  leaves, structure = jax.tree_util.tree_flatten(tree)
  flat = jnp.concatenate([a.astype(jnp.float32).reshape(-1) for a in leaves])
  padded = jnp.pad(flat, (0, -flat.size % num_devices))
  parts = jax.lax.all_to_all(
    padded.reshape(num_devices, -1), axis, split_axis=0, concat_axis=0
  )
  total = parts[0]
  for part in parts[1:]:
    total = total + part
  flat = jax.lax.all_gather(total, axis).reshape(-1)[: flat.size]
  ends = np.cumsum([a.size for a in leaves])
  summed = [
    part.reshape(a.shape).astype(a.dtype)
    for a, part in zip(leaves, jnp.split(flat, ends[:-1]), strict=True)
  ]
  return jax.tree_util.tree_unflatten(structure, summed)


def _mesh(devices: Sequence[jax.Device], axis: str) -> jax.sharding.Mesh:
  return jax.sharding.Mesh(np.asarray(devices), (axis,))


def places_of_this_host(devices: Sequence[jax.Device]) -> list[int]:
  """Returns the indices of the devices that belong to this process.

  Args:
    devices: The devices of all hosts.
  """
  own = jax.process_index()
  return [i for i, d in enumerate(devices) if d.process_index == own]


def _is_on_several_hosts(devices: Sequence[jax.Device]) -> bool:
  return len({device.process_index for device in devices}) > 1


def replicate(
  tree: Any, devices: Sequence[jax.Device], axis: str = CLIENTS
) -> Any:
  """Copies arrays to each device, unless they are already there.

  Args:
    tree: A pytree of arrays, the same on all hosts.
    devices: The devices to use, whatever JAX's default is.
    axis: The name of the mesh's axis.
  """
  if len(devices) == 1:
    return jax.device_put(tree, devices[0])
  spec = jax.sharding.PartitionSpec()
  sharding = jax.sharding.NamedSharding(_mesh(devices, axis), spec)
  if not _is_on_several_hosts(devices):
    return jax.device_put(tree, sharding)

  def put(array):
    if isinstance(array, jax.Array) and array.sharding == sharding:
      return array
    value = np.asarray(array)
    return jax.make_array_from_callback(
      value.shape, sharding, lambda index: value[index]
    )

  return jax.tree_util.tree_map(put, tree)


def split(tree: Any, devices: Sequence[jax.Device]) -> Any:
  """Splits arrays [rounds, devices, ...] over devices.

  Args:
    tree: A pytree of arrays with the parts of this host's devices.
    devices: The devices of all hosts. With one host, JAX splits the arrays
      itself.

  Returns:
    Arrays over all devices.
  """
  if not _is_on_several_hosts(devices):
    return tree
  spec = jax.sharding.PartitionSpec(None, CLIENTS)
  sharding = jax.sharding.NamedSharding(_mesh(devices, CLIENTS), spec)
  return jax.tree_util.tree_map(
    lambda a: jax.make_array_from_process_local_data(sharding, np.asarray(a)),
    tree,
  )


def _shard_map(function, **options):
  """Calls `shard_map`, which moved and renamed an argument between versions."""
  if hasattr(jax, 'shard_map'):
    return jax.shard_map(function, check_vma=False, **options)
  from jax.experimental import shard_map

  return shard_map.shard_map(function, check_rep=False, **options)
