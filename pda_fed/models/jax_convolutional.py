"""The JAX model of a `ConvolutionalSpec`."""

from collections.abc import Sequence
import functools
from typing import Optional

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.models import convolutional
from pda_fed.models import initializers
from pda_fed.models import jax_layers

_ACTIVATIONS = {'tanh': jnp.tanh, 'relu': jax.nn.relu}


class ConvolutionalModel(jax_layers.Model):
  """See `jax_layers.Model`; inputs are standardized images or tables."""

  def __init__(self, spec: convolutional.ConvolutionalSpec):
    self.spec = spec
    self.shapes = spec.parameter_shapes
    self.layers = tuple(
      jax_layers.Convolution(2 * i, c.size, c.stride, c.padding)
      for i, c in enumerate(spec.convolutions)
    ) + tuple(
      jax_layers.Dense(2 * (len(spec.convolutions) + i))
      for i in range(len(spec.dense_sizes) + 1)
    )

  def initial_params(self, seed: int) -> list[np.ndarray]:
    """See `jax_layers.Model`; Glorot-uniform kernels and zero biases."""
    rngs = np.random.SeedSequence(seed).spawn(len(self.shapes))
    return [
      np.zeros(shape, np.float32)
      if len(shape) == 1
      else initializers.glorot_uniform(np.random.default_rng(rng), shape)
      for shape, rng in zip(self.shapes, rngs, strict=True)
    ]

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
    """See `jax_layers.Model`; dropout applies to the dense layers."""
    record = jax_layers.Recorder(params, taps)
    drop = functools.partial(jax_layers.drop, rate=dropout, key=key)
    activation = _ACTIVATIONS[self.spec.activation]
    num_convolutions = len(self.spec.convolutions)
    x = inputs.astype(params[0].dtype)
    for layer, spec in zip(
      self.layers[:num_convolutions], self.spec.convolutions, strict=True
    ):
      x = activation(record.convolution(layer, x))
      if spec.pool_size is not None:
        x = jax_layers.max_pool(x, spec.pool_size, spec.pool_stride)
    x = x.reshape(x.shape[0], -1)
    for place, layer in enumerate(self.layers[num_convolutions:-1]):
      x = activation(record.dense(layer, drop(x, place=place)))
    x = drop(x, place=len(self.layers))
    logits = record.dense(self.layers[-1], x)
    return record.classified(logits, targets)
