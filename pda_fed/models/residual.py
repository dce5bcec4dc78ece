"""Specifications of wide residual networks with group normalization.

"Wide Residual Networks" (Zagoruyko and Komodakis, BMVC 2016, arXiv:1605.07146),
with group normalization in place of batch normalization, as in "Unlocking
High-Accuracy Differentially Private Image Classification through Scale" (De et
al., 2022, arXiv:2204.13650): batch statistics would mix examples, so that their
gradients could not be clipped one by one.
"""

import dataclasses
import functools
import re

from pda_fed.common import validate
from pda_fed.models import spec as spec_lib

_NUM_STAGES = 3
_FIRST_CHANNELS = 16
_NAME = re.compile(r'wrn-(\d+)-(\d+)')


@dataclasses.dataclass(frozen=True)
class Block:
  """A residual block: two 3 x 3 convolutions and a shortcut.

  Attributes:
    inputs: Number of input channels.
    outputs: Number of output channels.
    stride: The stride of the first convolution and of the shortcut.
  """

  inputs: int
  outputs: int
  stride: int

  @property
  def has_projection(self) -> bool:
    """Whether the shortcut is a 1 x 1 convolution, not the identity."""
    return self.stride > 1 or self.inputs != self.outputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResidualSpec(spec_lib.ModelSpec):
  """A wide residual network, WRN-depth-width.

  Example:

    >>> spec = ResidualSpec(image_shape=(32, 32, 3), num_classes=10)
    >>> spec.num_parameters
    2751146

  Attributes:
    image_shape: The height, width and channels of an image.
    num_classes: Number of classes.
    depth: Number of convolutional layers, 6 n + 4.
    width: Factor by which the three stages, of 16, 32 and 64 channels, are
      widened.
    norm_groups: Number of groups of the group normalization.
  """

  image_shape: tuple[int, int, int]
  num_classes: int
  depth: int = 16
  width: int = 4
  norm_groups: int = 16

  def __post_init__(self):
    validate.instances(tuple, image_shape=self.image_shape)
    if len(self.image_shape) != 3:
      raise ValueError(
        'image_shape must be height, width and channels. Found'
        f' {self.image_shape!r}.'
      )
    for size in self.image_shape:
      validate.integers(1, image_shape=size)
    validate.integers(1, num_classes=self.num_classes, width=self.width)
    validate.integers(10, depth=self.depth)
    if (self.depth - 4) % 6:
      raise ValueError(
        f'depth must be 10, 16, 22, ... (6 n + 4). Found {self.depth}.'
      )
    validate.integers(1, norm_groups=self.norm_groups)
    if _FIRST_CHANNELS % self.norm_groups:
      raise ValueError(
        f'norm_groups must divide {_FIRST_CHANNELS}, the number of channels of'
        f' the first convolution. Found {self.norm_groups}.'
      )

  @property
  def first_channels(self) -> int:
    """Number of channels of the first convolution."""
    return _FIRST_CHANNELS

  @property
  def blocks(self) -> tuple[Block, ...]:
    """The residual blocks; the second and third stage halve the image size."""
    blocks = []
    channels = _FIRST_CHANNELS
    for stage in range(_NUM_STAGES):
      outputs = _FIRST_CHANNELS * 2**stage * self.width
      for place in range((self.depth - 4) // 6):
        stride = 2 if stage and not place else 1
        blocks.append(Block(channels, outputs, stride))
        channels = outputs
    return tuple(blocks)

  @property
  def input_shape(self) -> tuple[int, ...]:
    return self.image_shape

  @functools.lru_cache(maxsize=8)  # noqa: B019 - a value, not an object.
  def jax_model(self):
    """See the base class."""
    from pda_fed.models import flax_residual

    return flax_residual.create(self)


def wide_residual_net(
  name: str, image_shape: tuple[int, int, int], num_classes: int
) -> ResidualSpec:
  """Returns the network with a name such as wrn-16-4.

  Example:

    >>> wide_residual_net('wrn-16-4', (32, 32, 3), 10).depth
    16

  Args:
    name: wrn-DEPTH-WIDTH.
    image_shape: The height, width and channels of an image.
    num_classes: Number of classes.

  Raises:
    ValueError: If the name or the depth is invalid.
  """
  found = _NAME.fullmatch(name)
  if found is None:
    raise ValueError(
      f'model must be wrn-DEPTH-WIDTH, such as wrn-16-4. Found {name!r}.'
    )
  return ResidualSpec(
    image_shape=image_shape,
    num_classes=num_classes,
    depth=int(found[1]),
    width=int(found[2]),
  )
