"""The Flax module of a `ResidualSpec`."""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
from pda_fed.models import convolve
from pda_fed.models import flax_models
from pda_fed.models import model as model_lib
from pda_fed.models import residual

_He = nn.initializers.variance_scaling(2.0, 'fan_in', 'normal')


class Residual(nn.Module):
  """A wide residual net; dropout applies to the pooled features."""

  spec: residual.ResidualSpec
  dropout: float = 0.0

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns logits, [batch, classes].

    Args:
      x: Standardized images, [batch, height, width, channels].
    """
    conv = functools.partial(
      nn.Conv,
      kernel_init=_He,
      padding='SAME',
      conv_general_dilated=convolve.convolve,
    )

    def activated(x, name):
      norm = nn.GroupNorm(
        self.spec.norm_groups,
        epsilon=1e-5,
        use_fast_variance=False,
        name=name,
      )
      return jax.nn.relu(norm(x).astype(x.dtype))

    x = conv(self.spec.first_channels, (3, 3), name='conv')(x)
    for i, block in enumerate(self.spec.blocks):
      of_block = f'block_{i + 1:02d}'
      start, size, stride = activated(x, f'{of_block}_norm_1'), (3, 3), (1, 1)
      strides = (block.stride, block.stride)
      if block.has_projection:
        x = conv(block.outputs, (1, 1), strides, name=f'{of_block}_shortcut')(
          start
        )
      inner = conv(block.outputs, size, strides, name=f'{of_block}_conv_1')(
        start
      )
      inner = activated(inner, f'{of_block}_norm_2')
      x = x + conv(block.outputs, size, stride, name=f'{of_block}_conv_2')(
        inner
      )
    pooled = activated(x, 'norm').astype(jnp.float32).mean(axis=(1, 2))
    drop = nn.Dropout(self.dropout, deterministic=not self.has_rng('dropout'))
    logits = nn.Dense(self.spec.num_classes, kernel_init=_He, name='logits')
    return logits(drop(pooled.astype(x.dtype)))


def create(spec: residual.ResidualSpec) -> model_lib.Model:
  """Returns the model of a specification."""
  return flax_models.from_flax(Residual(spec), jnp.zeros(spec.image_shape))
