"""The JAX model of a `ResidualSpec`."""

from collections.abc import Sequence
from typing import Optional

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.models import initializers
from pda_fed.models import jax_layers
from pda_fed.models import residual


def _layers(spec: residual.ResidualSpec) -> tuple[jax_layers.Layer, ...]:
  """Returns the layers with weights, in the order of their arrays."""
  layers = []

  def convolve(size, stride=1):
    place = 2 * len(layers)
    layers.append(jax_layers.Convolution(place, size, stride, 'SAME'))

  def normalize():
    layers.append(jax_layers.GroupNorm(2 * len(layers), spec.norm_groups))

  convolve(3)
  for block in spec.blocks:
    normalize()
    if block.has_projection:
      convolve(1, block.stride)
    convolve(3, block.stride)
    normalize()
    convolve(3)
  normalize()
  return (*layers, jax_layers.Dense(2 * len(layers)))


class ResidualModel(jax_layers.Model):
  """See `jax_layers.Model`; inputs are standardized images."""

  def __init__(self, spec: residual.ResidualSpec):
    self.spec = spec
    self.shapes = spec.parameter_shapes
    self.layers = _layers(spec)

  def initial_params(self, seed: int) -> list[np.ndarray]:
    """See `jax_layers.Model`; He-normal kernels, scales of 1, biases of 0."""
    rngs = np.random.SeedSequence(seed).spawn(len(self.layers))
    params = []
    for layer, rng in zip(self.layers, rngs, strict=True):
      shape, bias = self.shapes[layer.kernel : layer.kernel + 2]
      if isinstance(layer, jax_layers.GroupNorm):
        params.append(np.ones(shape, np.float32))
      else:
        kernel = initializers.he_normal(np.random.default_rng(rng), shape)
        params.append(kernel)
      params.append(np.zeros(bias, np.float32))
    return params

  def run(
    self,
    params: jax_layers.Params,
    inputs: jax.Array,
    targets: jax.Array,
    *,
    taps: Optional[Sequence[jax.Array]] = None,
    dropout: float = 0.0,
    key: Optional[jax.Array] = None,
  ) -> jax_layers.Trace:
    """See `jax_layers.Model`; dropout applies to the pooled features."""
    record = jax_layers.Recorder(params, taps)
    layers = iter(self.layers)

    def activated(x):
      return jax.nn.relu(record.group_norm(next(layers), x))

    def convolved(x):
      return record.convolution(next(layers), x)

    x = convolved(inputs.astype(params[0].dtype))
    for block in self.spec.blocks:
      start = activated(x)
      shortcut = convolved(start) if block.has_projection else x
      x = shortcut + convolved(activated(convolved(start)))
    pooled = activated(x).astype(jnp.float32).mean(axis=(1, 2))
    pooled = jax_layers.drop(pooled.astype(x.dtype), dropout, key, place=0)
    logits = record.dense(next(layers), pooled)
    return record.classified(logits, targets)
