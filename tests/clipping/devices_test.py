"""Several devices: sharded arrays, and a part of the batch on each device."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import clipping

from tests.clipping import nets

_NETS = ('mlp', 'recurrent')


def _main():
  """Runs in a process with two devices."""
  auto = jax.sharding.AxisType.Auto
  mesh = jax.make_mesh((2,), ('data',), axis_types=(auto,))
  spec = jax.sharding.PartitionSpec
  for name in _NETS:
    loss, params, batch = nets.BY_NAME[name]()
    params, batch = nets.cast((params, batch), jnp.float32)
    batch = jax.tree.map(lambda a: a[:4], batch)
    clip = clipping.clipped_grad(loss, 2.0)
    expected, info = jax.jit(clip)(params, *batch)

    def on_each(params, batch, clip=clip):
      sums, info = clip(params, *batch)
      parts = sums, info.clipped
      return jax.tree.map(lambda a: jax.lax.psum(a, 'data'), parts), info.norms

    mapped = jax.shard_map(
      on_each,
      mesh=mesh,
      in_specs=(spec(), spec('data')),
      out_specs=(spec(), spec('data')),
    )
    (sums, clipped), norms = jax.jit(mapped)(params, batch)
    sharding = jax.sharding.NamedSharding(mesh, spec('data'))
    split = jax.device_put(batch, sharding)
    by_compiler, _ = jax.jit(clip)(params, *split)
    for found in (sums, by_compiler):
      jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        found,
        expected,
      )
    np.testing.assert_allclose(norms, info.norms, rtol=1e-5)
    assert int(clipped) == int(info.clipped)


def test_devices_share_a_batch():
  flags = os.environ.get('XLA_FLAGS', '')
  flags += ' --xla_force_host_platform_device_count=2'
  subprocess.run(
    [sys.executable, '-m', 'tests.clipping.devices_test'],
    env={**os.environ, 'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'},
    check=True,
  )


if __name__ == '__main__':
  _main()
