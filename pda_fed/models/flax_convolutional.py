"""The Flax module of a `ConvolutionalSpec`."""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
from pda_fed.models import convolutional
from pda_fed.models import convolve
from pda_fed.models import flax_models
from pda_fed.models import model as model_lib

_ACTIVATIONS = {'tanh': jnp.tanh, 'relu': jax.nn.relu}


class Convolutional(nn.Module):
  """Convolutions and dense layers; dropout applies to the dense layers."""

  spec: convolutional.ConvolutionalSpec
  dropout: float = 0.0

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns logits, [batch, classes].

    Args:
      x: Standardized images or tables, [batch, ...].
    """
    spec, activation = self.spec, _ACTIVATIONS[self.spec.activation]
    options: Any = {'kernel_init': nn.initializers.glorot_uniform()}
    drop = nn.Dropout(self.dropout, deterministic=not self.has_rng('dropout'))
    for i, c in enumerate(spec.convolutions):
      x = activation(
        nn.Conv(
          c.filters,
          (c.size, c.size),
          c.stride,
          c.padding,
          conv_general_dilated=convolve.convolve,
          name=f'conv_{i + 1}',
          **options,
        )(x)
      )
      if c.pool_size is not None:
        x = convolve.max_pool(x, c.pool_size, c.pool_stride)
    x = x.reshape(len(x), -1)
    for i, size in enumerate(spec.dense_sizes):
      x = activation(nn.Dense(size, name=f'dense_{i + 1}', **options)(drop(x)))
    return nn.Dense(spec.num_classes, name='logits', **options)(drop(x))


def create(spec: convolutional.ConvolutionalSpec) -> model_lib.Model:
  """Returns the model of a specification."""
  return flax_models.from_flax(Convolutional(spec), jnp.zeros(spec.image_shape))
