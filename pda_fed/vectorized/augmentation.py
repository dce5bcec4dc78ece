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
  images: jax.Array, key: jax.Array, padding: int = 4
) -> jax.Array:
  """Mirrors half of the images and shifts each by up to `padding` pixels.

  Args:
    images: Standardised, [images, height, width, channels].
    key: Of the draws.
    padding: Pixels of 0 around an image, of which a crop is taken.
  """
  count, height, width, channels = images.shape
  flip_key, crop_key = jax.random.split(key)
  flips = jax.random.bernoulli(flip_key, 0.5, (count,))
  images = jnp.where(flips[:, None, None, None], images[:, :, ::-1], images)
  margin = (padding, padding)
  padded = jnp.pad(images, ((0, 0), margin, margin, (0, 0)))
  corners = jax.random.randint(crop_key, (count, 2), 0, 2 * padding + 1)

  def crop(image, corner):
    return jax.lax.dynamic_slice(
      image, (corner[0], corner[1], 0), (height, width, channels)
    )

  return jax.vmap(crop)(padded, corners)
