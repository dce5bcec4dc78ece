"""Standardization of images and tables, and augmentation of images."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.common import standardization

# Limits of `vary_strongly`: radians, and fractions of an image's size or of its
# standard deviation.
_MAX_ANGLE = 0.25
_MAX_SHEAR = 0.15
_MAX_GROWTH = 0.15
_MAX_COLOUR = 0.4


class Standardization(NamedTuple):
  """Scales inputs to mean 0 and variance 1 per channel or feature.

  Attributes:
    mean: [channels], of pixels from 0 to 255, or [features].
    stddev: [channels] or [features].
  """

  mean: np.ndarray
  stddev: np.ndarray

  @classmethod
  def of(cls, inputs: np.ndarray) -> 'Standardization':
    """Measures public inputs. Epsilon does not cover measuring private ones.

    Args:
      inputs: Images, uint8 [images, height, width, channels], or rows of a
        table, float32 [examples, features].
    """
    return cls(*standardization.mean_and_scale(inputs))

  def apply(self, inputs: jax.Array) -> jax.Array:
    """Returns standardized inputs as float32."""
    return (inputs.astype(jnp.float32) - self.mean) / self.stddev


def flip_and_crop_one(image: jax.Array, key: jax.Array) -> jax.Array:
  """Mirrors an image or not, and shifts it by up to an eighth of its size.

  Pixels beyond the image are 0. For CIFAR-10 the shift is up to 4 pixels, the
  usual choice.

  Args:
    image: A standardized image, [height, width, channels].
    key: The random key of this image.
  """
  padding = round(min(image.shape[:2]) / 8)
  flip_key, crop_key = jax.random.split(key)
  image = jnp.where(jax.random.bernoulli(flip_key), image[:, ::-1], image)
  margin = (padding, padding)
  padded = jnp.pad(image, (margin, margin, (0, 0)))
  row, column = jax.random.randint(crop_key, (2,), 0, 2 * padding + 1)
  return jax.lax.dynamic_slice(padded, (row, column, 0), image.shape)


def flip_and_crop(images: jax.Array, key: jax.Array) -> jax.Array:
  """Applies `flip_and_crop_one`, with the key of each image's index.

  Args:
    images: Standardized images, [images, height, width, channels].
    key: The random key of the whole batch.
  """

  def vary(image, place):
    return flip_and_crop_one(image, jax.random.fold_in(key, place))

  return jax.vmap(vary)(images, jnp.arange(len(images)))


def _turn(image: jax.Array, key: jax.Array) -> jax.Array:
  """Rotates, scales and shears one image around its centre, filled with 0."""
  angle, shear, grow = jax.random.uniform(key, (3,), minval=-1, maxval=1)
  cosine, sine = jnp.cos(_MAX_ANGLE * angle), jnp.sin(_MAX_ANGLE * angle)
  turned = jnp.array([[cosine, -sine], [sine, cosine]])
  sheared = jnp.array([[1.0, 0.0], [0.0, 1.0]]).at[0, 1].set(_MAX_SHEAR * shear)
  matrix = turned @ sheared * (1 + _MAX_GROWTH * grow)
  height, width = image.shape[:2]
  centre = jnp.array([(height - 1) / 2, (width - 1) / 2])
  grid = jnp.stack(jnp.mgrid[:height, :width], axis=-1) - centre
  seen = jnp.moveaxis(grid @ matrix.T + centre, -1, 0)

  def sample(channel):
    return jax.scipy.ndimage.map_coordinates(channel, seen, order=1)

  return jax.vmap(sample, in_axes=-1, out_axes=-1)(image)


def _change_colours(image: jax.Array, key: jax.Array) -> jax.Array:
  """Changes brightness, contrast and saturation of one image."""
  bright, contrast, saturation = jax.random.uniform(
    key, (3,), minval=-_MAX_COLOUR, maxval=_MAX_COLOUR
  )
  grey = image.mean(axis=-1, keepdims=True)
  image = grey + (1 + saturation) * (image - grey)
  return (1 + contrast) * image + bright


def _cut_out(image: jax.Array, key: jax.Array) -> jax.Array:
  """Zeroes a random square of one image, half as wide as the image."""
  height, width = image.shape[:2]
  centre = jax.random.uniform(key, (2,)) * jnp.array([height, width])
  half = min(height, width) / 4
  rows = jnp.abs(jnp.arange(height) + 0.5 - centre[0]) < half
  columns = jnp.abs(jnp.arange(width) + 0.5 - centre[1]) < half
  return jnp.where((rows[:, None] & columns)[..., None], 0, image)


def vary_strongly(images: jax.Array, key: jax.Array) -> jax.Array:
  """Varies images in all ways that leave a class recognizable.

  It mirrors, shifts, rotates, scales and shears images, changes their colours,
  and cuts out a square ("Improved Regularization of Convolutional Neural
  Networks with Cutout", DeVries and Taylor 2017, arXiv:1708.04552).

  Args:
    images: Standardized images, [images, height, width, channels].
    key: The random key of the whole batch.
  """

  def vary(image, key):
    changes = flip_and_crop_one, _turn, _change_colours, _cut_out
    for change, own in zip(
      changes, jax.random.split(key, len(changes)), strict=True
    ):
      image = change(image, own)
    return image

  return jax.vmap(vary)(images, jax.random.split(key, len(images)))


def mix_up(
  images: jax.Array, key: jax.Array, concentration: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Blends pairs of images ("mixup", Zhang et al. 2018, arXiv:1710.09412).

  Args:
    images: [images, ...].
    key: The random key.
    concentration: Both parameters of the Beta distribution of the weight.

  Returns:
    The blends, the index of the second image of each, and the weight of the
    first image, which is the same for all blends.
  """
  pair_key, weight_key = jax.random.split(key)
  weight = jax.random.beta(weight_key, concentration, concentration)
  others = jax.random.permutation(pair_key, len(images))
  return weight * images + (1 - weight) * images[others], others, weight
