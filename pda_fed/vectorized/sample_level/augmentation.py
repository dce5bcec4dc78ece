"""Images and tables, standardised; images, varied."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.common import standardization


class Standardization(NamedTuple):
  """Brings inputs to mean 0 and variance 1, by channel or feature.

  Attributes:
    mean: [channels], of pixels from 0 to 255, or [features].
    stddev: [channels] or [features].
  """

  mean: np.ndarray
  stddev: np.ndarray

  @classmethod
  def of(cls, inputs: np.ndarray) -> 'Standardization':
    """Measures inputs: public ones, or epsilon does not cover it.

    Args:
      inputs: uint8 [images, height, width, channels], or float32 [examples,
        features].
    """
    return cls(*standardization.mean_and_scale(inputs))

  def apply(self, inputs: jax.Array) -> jax.Array:
    """Returns standardised inputs, float32."""
    return (inputs.astype(jnp.float32) - self.mean) / self.stddev


def flip_and_crop(
  images: jax.Array, key: jax.Array, start: int = 0
) -> jax.Array:
  """Mirrors half of the images and shifts each by up to an eighth of its size.

  What is beyond an image is 0. For CIFAR-10 these are 4 pixels, as is usual.

  What happens to an image depends on the key and on its place in the batch, not
  on how many there are: a batch in parts, or with padding, is varied alike.

  Args:
    images: Standardised, [images, height, width, channels].
    key: Of the draws of the whole batch.
    start: The place of the first image in the batch.
  """
  padding = round(min(images.shape[1:3]) / 8)

  def vary(image, place):
    flip_key, crop_key = jax.random.split(jax.random.fold_in(key, place))
    image = jnp.where(jax.random.bernoulli(flip_key), image[:, ::-1], image)
    margin = (padding, padding)
    padded = jnp.pad(image, (margin, margin, (0, 0)))
    row, column = jax.random.randint(crop_key, (2,), 0, 2 * padding + 1)
    return jax.lax.dynamic_slice(padded, (row, column, 0), image.shape)

  return jax.vmap(vary)(images, start + jnp.arange(len(images)))
