"""A DP-SGD step with Opacus, for the same networks as ours.

Opacus ("Opacus: User-Friendly Differential Privacy Library in PyTorch",
Yousefpour et al. 2021, arXiv:2109.12298) stores the gradients of all examples
of a batch with hooks, its default. Batches have a fixed size, and convolutions
may use TF32, as ours do.
"""

from collections.abc import Callable
import time
from typing import Any

import numpy as np
from pda_fed.models import batches
from pda_fed.models import convolutional
from pda_fed.models import residual
import torch
from torch import nn

_ACTIVATIONS = {'tanh': nn.Tanh, 'relu': nn.ReLU}


class _ResidualBlock(nn.Module):
  """See `residual.Block`."""

  def __init__(self, block: residual.Block, groups: int):
    super().__init__()
    inputs, outputs, stride = block.inputs, block.outputs, block.stride
    self.norms = nn.ModuleList(
      nn.GroupNorm(groups, n) for n in (inputs, outputs)
    )
    self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
    self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
    self.projection = None
    if block.has_projection:
      self.projection = nn.Conv2d(inputs, outputs, 1, stride)

  def forward(self, x):
    start = torch.relu(self.norms[0](x))
    shortcut = x if self.projection is None else self.projection(start)
    inner = torch.relu(self.norms[1](self.first(start)))
    return shortcut + self.second(inner)


def _residual_net(spec: residual.ResidualSpec) -> nn.Module:
  channels = spec.blocks[-1].outputs
  return nn.Sequential(
    nn.Conv2d(spec.image_shape[-1], spec.first_channels, 3, padding=1),
    *(_ResidualBlock(block, spec.norm_groups) for block in spec.blocks),
    nn.GroupNorm(spec.norm_groups, channels),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(channels, spec.num_classes),
  )


def _convolutional_net(spec: convolutional.ConvolutionalSpec) -> nn.Module:
  activation = _ACTIVATIONS[spec.activation]
  stack: list[nn.Module] = []
  channels = spec.image_shape[-1]
  for c in spec.convolutions:
    if c.stride > 1 and c.padding == 'SAME':
      raise ValueError(
        'The peer must not have SAME padding with a stride: use cifar10 or a'
        f' residual network. Found {c!r}.'
      )
    padding = c.size // 2 if c.padding == 'SAME' else 0
    stack += [
      nn.Conv2d(channels, c.filters, c.size, c.stride, padding),
      activation(),
    ]
    if c.pool_size is not None:
      stack.append(nn.MaxPool2d(c.pool_size, c.pool_stride))
    channels = c.filters
  stack.append(nn.Flatten())
  found = batches.named_shapes(spec.jax_model()).values()
  shapes = [shape for shape in found if len(shape) == 2]
  for place, (units, size) in enumerate(shapes):
    stack.append(nn.Linear(units, size))
    if place + 1 < len(shapes):
      stack.append(activation())
  return nn.Sequential(*stack)


def build_net(spec: Any) -> nn.Module:
  """Returns the torch network of a spec.

  Args:
    spec: A `ConvolutionalSpec` or a `ResidualSpec`.

  Raises:
    ValueError: If the spec is of another kind.
  """
  if isinstance(spec, residual.ResidualSpec):
    return _residual_net(spec)
  if isinstance(spec, convolutional.ConvolutionalSpec):
    return _convolutional_net(spec)
  raise ValueError(f'The peer must have a network for images. Found {spec!r}.')


def build_step(
  spec: Any, images: np.ndarray, labels: np.ndarray, steps: int
) -> Callable[[], float]:
  """Returns a function that measures the seconds of a step.

  Args:
    spec: The model; see `build_net`.
    images: A batch, uint8 [batch, height, width, channels].
    labels: Labels of the batch, [batch].
    steps: Number of steps of a measurement.
  """
  from opacus import grad_sample
  from opacus import optimizers

  torch.backends.cuda.matmul.allow_tf32 = True
  torch.backends.cudnn.allow_tf32 = True
  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  net = grad_sample.GradSampleModule(build_net(spec).to(device))
  optimizer = optimizers.DPOptimizer(
    torch.optim.SGD(net.parameters(), 0.1),
    noise_multiplier=1.0,
    max_grad_norm=1.0,
    expected_batch_size=len(images),
  )
  inputs = torch.as_tensor(images.transpose(0, 3, 1, 2), device=device)
  inputs = inputs.float() / 255
  targets = torch.as_tensor(labels.astype(np.int64), device=device)
  criterion = nn.CrossEntropyLoss()

  def measure() -> float:
    started = time.perf_counter()
    for _ in range(steps):
      optimizer.zero_grad()
      loss = criterion(net(inputs), targets)
      loss.backward()
      optimizer.step()
    loss.item()
    return (time.perf_counter() - started) / steps

  return measure
