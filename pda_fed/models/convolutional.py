"""Specifications of the image classifiers in the sample-level experiments.

The appendix of "Public Data-Assisted Mirror Descent for Private Model Training"
(Amid et al., ICML 2022, arXiv:2112.00193) lists them. They come from "Tempered
Sigmoid Activations for Deep Learning with Differential Privacy" (Papernot et
al., AAAI 2021, arXiv:2007.14191), whose activation is tanh, and from "Practical
and Private (Deep) Learning Without Sampling or Shuffling" (Kairouz et al., ICML
2021, arXiv:2103.00039). For EMNIST, these have a 2 x 2 max-pooling with stride
1 after each convolution, which the appendix omits.
"""

import dataclasses
import functools
import math
from typing import Literal, Optional

from pda_fed.common import validate
from pda_fed.models import spec as spec_lib

Activation = Literal['tanh', 'relu']
ACTIVATIONS = ('tanh', 'relu')
_PADDINGS = ('SAME', 'VALID')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convolution:
  """A convolution, an activation, and an optional max-pooling.

  Attributes:
    filters: Number of output channels.
    size: Height and width of the filters.
    stride: Stride in both directions.
    padding: 'SAME' or 'VALID'.
    pool_size: Height and width of the pooling windows; None for no pooling.
    pool_stride: Stride of the pooling windows, which lie inside the image.
  """

  filters: int
  size: int
  stride: int = 1
  padding: str = 'SAME'
  pool_size: Optional[int] = None
  pool_stride: int = 1

  def __post_init__(self):
    validate.integers(
      1,
      filters=self.filters,
      size=self.size,
      stride=self.stride,
      pool_stride=self.pool_stride,
    )
    validate.one_of(_PADDINGS, padding=self.padding)
    if self.pool_size is not None:
      validate.integers(1, pool_size=self.pool_size)

  def output_size(self, size: int) -> int:
    """Returns the height, or width, of the output."""
    room = size if self.padding == 'SAME' else size - self.size + 1
    size = math.ceil(room / self.stride)
    if self.pool_size is not None:
      size = (size - self.pool_size) // self.pool_stride + 1
    return size


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvolutionalSpec(spec_lib.ModelSpec):
  """Convolutions, then dense layers, then logits.

  Without convolutions it is a multilayer perceptron; without dense layers
  either, a linear classifier. Both take tables or images.

  Example: see `for_images`.

  Attributes:
    image_shape: Height, width and channels; for a table, the number of
      features.
    convolutions: Convolutional layers, only for images; may be empty.
    dense_sizes: Units of the dense layers before the logits; may be empty.
    num_classes: Number of classes.
    activation: Activation of every layer but the logits.
  """

  image_shape: tuple[int, ...]
  convolutions: tuple[Convolution, ...]
  dense_sizes: tuple[int, ...]
  num_classes: int
  activation: Activation = 'tanh'

  def __post_init__(self):
    validate.one_of(ACTIVATIONS, activation=self.activation)
    validate.instances(
      tuple,
      image_shape=self.image_shape,
      convolutions=self.convolutions,
      dense_sizes=self.dense_sizes,
    )
    if len(self.image_shape) not in ((3,) if self.convolutions else (1, 3)):
      raise ValueError(
        'image_shape must be height, width and channels, or (without'
        f' convolutions) a number of features. Found {self.image_shape!r}.'
      )
    for layer in self.convolutions:
      validate.instances(Convolution, convolutions=layer)
    for name in ('image_shape', 'dense_sizes'):
      for size in getattr(self, name):
        validate.integers(1, **{name: size})
    validate.integers(1, num_classes=self.num_classes)
    if min(self._flat_shape) < 1:
      raise ValueError(
        'convolutions must leave at least one pixel of images of shape'
        f' {self.image_shape}. Found {self._flat_shape[:2]}.'
      )

  @property
  def _flat_shape(self) -> tuple[int, ...]:
    if not self.convolutions:
      return self.image_shape
    height, width, channels = self.image_shape
    for layer in self.convolutions:
      height, width = layer.output_size(height), layer.output_size(width)
      channels = layer.filters
    return height, width, channels

  @property
  def input_shape(self) -> tuple[int, ...]:
    return self.image_shape

  @functools.lru_cache(maxsize=8)  # noqa: B019 - a value, not an object.
  def jax_model(self):
    """See the base class."""
    from pda_fed.models import flax_convolutional

    return flax_convolutional.create(self)

  def keras_model(self, seed: int):
    """See the base class."""
    from pda_fed.models import keras_classifier

    return keras_classifier.create_keras_model(self, seed)


def _cifar10_block(filters: int) -> tuple[Convolution, Convolution]:
  return (
    Convolution(filters=filters, size=3),
    Convolution(filters=filters, size=3, pool_size=2, pool_stride=2),
  )


def for_images(
  image_shape: tuple[int, int, int], num_classes: int
) -> ConvolutionalSpec:
  """Returns a model for images of any size, built from CIFAR-10's blocks.

  For 8 x 8 pixels it has one block; each doubling of the size adds a block.

  Example:

    >>> for_images((28, 28, 1), 26).num_parameters
    469882

  Args:
    image_shape: Height, width and channels.
    num_classes: Number of classes.

  Raises:
    ValueError: If images have fewer than 2 x 2 pixels, or not three axes.
  """
  if len(image_shape) != 3 or min(image_shape[:2]) < 2:
    raise ValueError(
      'image_shape must be height, width and channels, with at least 2 x 2'
      ' pixels.'
      f' Found {image_shape!r}.'
    )
  # Each block halves the image, and leaves 4 x 4 pixels or more if it can.
  blocks = max(1, math.floor(math.log2(min(image_shape[:2]) / 4)))
  filters = [min(32 * 2**i, 128) for i in range(blocks)]
  return ConvolutionalSpec(
    image_shape=image_shape,
    convolutions=sum(map(_cifar10_block, filters), ()),
    dense_sizes=(128,),
    num_classes=num_classes,
  )


def linear(input_shape: tuple[int, ...], num_classes: int) -> ConvolutionalSpec:
  """Returns a linear classifier.

  Example:

    >>> linear((20,), 3).num_parameters
    63

  Args:
    input_shape: The number of features, or height, width and channels.
    num_classes: Number of classes.

  Raises:
    ValueError: If `input_shape` has neither one nor three numbers.
  """
  return ConvolutionalSpec(
    image_shape=input_shape,
    convolutions=(),
    dense_sizes=(),
    num_classes=num_classes,
  )


# 550,570 parameters.
CIFAR10 = for_images((32, 32, 3), 10)

# 27,231 parameters.
EMNIST = ConvolutionalSpec(
  image_shape=(28, 28, 1),
  convolutions=(
    Convolution(filters=16, size=8, stride=2, pool_size=2),
    Convolution(filters=32, size=4, stride=2, padding='VALID', pool_size=2),
  ),
  dense_sizes=(32,),
  num_classes=47,
)

# Our own model for scikit-learn's digits: 4,858 parameters.
DIGITS = ConvolutionalSpec(
  image_shape=(8, 8, 1),
  convolutions=(
    Convolution(filters=8, size=3, pool_size=2, pool_stride=2),
    Convolution(filters=16, size=3, pool_size=2, pool_stride=2),
  ),
  dense_sizes=(48,),
  num_classes=10,
)
