"""Images, standardised and varied."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Standardization(NamedTuple):
  """Brings pixels to mean 0 and variance 1, channel by channel.

  Attributes:
    mean: [channels], of pixels from 0 to 255.
    stddev: [channels].
  """

  mean: np.ndarray
  stddev: np.ndarray

  @classmethod
  def of(cls, images: np.ndarray) -> 'Standardization':
    """Measures images: public ones, or epsilon does not cover it.

    Args:
      images: uint8 [images, height, width, channels].
    """
    pixels = images.reshape(-1, images.shape[-1]).astype(np.float64)
    # A channel that never changes stays as it is, but for its mean.
    stddev = np.where(pixels.std(axis=0) == 0, 1, pixels.std(axis=0))
    return cls(
      pixels.mean(axis=0).astype(np.float32), stddev.astype(np.float32)
    )

  def apply(self, images: jax.Array) -> jax.Array:
    """Returns standardised images, float32."""
    return (images.astype(jnp.float32) - self.mean) / self.stddev


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
