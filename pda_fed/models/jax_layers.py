"""Layers in JAX that record the factors of per-example gradients.

The gradient of one example by a layer's kernel is a product of the layer's
input and of the derivative by its output (its delta). A layer here records its
input and adds a *tap*, an array of zeros, to its output. One ordinary backward
pass by the taps then gives the deltas of all examples of a batch. See
`pda_jax.sample_level.per_example`.
"""

import abc
from collections.abc import Sequence
import dataclasses
from typing import Any, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.models import jax_model
from pda_fed.models import jax_ops

Params = tuple[jax.Array, ...]

# For images with fewer channels, such as the first layer's, a GPU multiplies
# patches faster than it convolves.
_LEAST_CHANNELS = 8

# Avoids division by 0 in a group without variance.
_NORM_EPSILON = 1e-5


@dataclasses.dataclass(frozen=True)
class Dense:
  """A dense layer for examples, or for every step of a sequence.

  Attributes:
    kernel: The index of its kernel among the model's arrays; its bias follows.
  """

  kernel: int
  num_arrays = 2


@dataclasses.dataclass(frozen=True)
class Convolution:
  """A convolution of images, [batch, height, width, channels].

  Attributes:
    kernel: The index of its kernel; its bias follows.
    size: Height and width of the filters.
    stride: Stride in both directions.
    padding: 'SAME' or 'VALID'.
  """

  kernel: int
  size: int
  stride: int
  padding: str
  num_arrays = 2


@dataclasses.dataclass(frozen=True)
class Embedding:
  """A table of vectors, one for each token.

  Attributes:
    kernel: The index of the table.
  """

  kernel: int
  num_arrays = 1


@dataclasses.dataclass(frozen=True)
class Lstm:
  """An LSTM layer over sequences, [batch, time, features].

  Attributes:
    kernel: The index of its kernel; recurrent kernel and bias follow.
  """

  kernel: int
  num_arrays = 3


@dataclasses.dataclass(frozen=True)
class GroupNorm:
  """A group normalization of images, [batch, height, width, channels].

  Attributes:
    kernel: The index of its scale; its bias follows.
    groups: Number of groups of channels; each has a mean and a variance.
  """

  kernel: int
  groups: int
  num_arrays = 2


Layer = Union[Dense, Convolution, Embedding, GroupNorm, Lstm]


class Trace(NamedTuple):
  """A forward pass of a batch.

  Attributes:
    losses: The loss of each example.
    inputs: The input of each layer.
    outputs: The output of each layer before its activation; for an LSTM, the
      input's part of the gates.
    hits: Number of correctly predicted targets of each example.
    token_losses: The mean loss of each example's targets.
  """

  losses: jax.Array
  inputs: tuple[jax.Array, ...]
  outputs: tuple[jax.Array, ...]
  hits: jax.Array
  token_losses: jax.Array


class Model(jax_model.Model):
  """A model of layers, which allows clipping without per-example gradients.

  Attributes:
    layers: The layers with weights, in the order of the arrays.
  """

  layers: tuple[Any, ...]

  @abc.abstractmethod
  def run(
    self,
    params: Params,
    inputs: jax.Array,
    targets: jax.Array,
    *,
    taps: Optional[Sequence[jax.Array]] = None,
    dropout: float = 0.0,
    key: Optional[jax.Array] = None,
  ) -> Trace:
    """Runs a batch forward.

    Args:
      params: The weights, in the dtype of the computation.
      inputs: [batch, ...].
      targets: [batch, ...].
      taps: For each layer, an array that is added to its output; None adds
        nothing.
      dropout: Fraction of activations that are dropped.
      key: The random key of the dropout.
    """

  def losses(self, params: Params, inputs: jax.Array, targets: jax.Array):
    """See the base class."""
    return self.metric_sums(params, inputs, targets)['loss']

  def metric_sums(self, params: Params, inputs: jax.Array, targets: jax.Array):
    """See the base class: `loss` and `accuracy` of targets."""
    trace = self.run(params, inputs, targets)
    per_example = targets.size / len(targets)
    counts = jnp.full(len(targets), per_example, jnp.float32)
    return {
      'loss': (trace.token_losses * per_example, counts),
      'accuracy': (trace.hits, counts),
    }


class Recorder:
  """Applies layers, adds taps, and records inputs and outputs."""

  def __init__(self, params: Params, taps: Optional[Sequence[jax.Array]]):
    self._params = params
    self._taps = taps
    # On a CPU, XLA's code for the derivative of a convolution in a loop is 30
    # times slower than for that of a product.
    self._convolves = jax.default_backend() != 'cpu'
    self.inputs: list[jax.Array] = []
    self.outputs: list[jax.Array] = []

  def _record(self, inputs: Any, output: jax.Array) -> jax.Array:
    if self._taps is not None:
      output = output + self._taps[len(self.outputs)]
    self.inputs.append(inputs)
    self.outputs.append(output)
    return output

  def dense(self, layer: Dense, x: jax.Array) -> jax.Array:
    """Applies a dense layer to the last axis."""
    kernel, bias = self._params[layer.kernel : layer.kernel + 2]
    return self._record(x, jnp.dot(x, kernel) + bias)

  def convolution(self, layer: Convolution, x: jax.Array) -> jax.Array:
    """Applies a convolution; if it is a product, the input is patches."""
    kernel, bias = self._params[layer.kernel : layer.kernel + 2]
    if self._convolves and x.shape[-1] >= _LEAST_CHANNELS:
      output = jax.lax.conv_general_dilated(
        x,
        kernel,
        (layer.stride, layer.stride),
        layer.padding,
        dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
      )
      return self._record(x, output + bias)
    seen = patches(layer, x)
    output = jnp.dot(seen, kernel.reshape(-1, kernel.shape[-1]))
    height, width = (output_size(layer, n) for n in x.shape[1:3])
    output = output.reshape(len(x), height, width, -1)
    return self._record(seen, output + bias)

  def group_norm(self, layer: GroupNorm, x: jax.Array) -> jax.Array:
    """Normalizes groups of channels, then scales and shifts each channel."""
    scale, bias = self._params[layer.kernel : layer.kernel + 2]
    normalized = normalize_groups(x, layer.groups)
    return self._record(normalized, normalized * scale + bias)

  def embedding(self, layer: Embedding, tokens: jax.Array) -> jax.Array:
    """Looks up tokens."""
    return self._record(tokens, self._params[layer.kernel][tokens])

  def lstm(self, layer: Lstm, x: jax.Array) -> jax.Array:
    """Runs an LSTM; returns hidden states [batch, time, units]."""
    kernel, recurrent, bias = self._params[layer.kernel : layer.kernel + 3]
    place = len(self.inputs)
    gates = self._record(x, jnp.dot(x, kernel) + bias)
    hidden = jax_ops.lstm(gates.transpose(1, 0, 2), recurrent)
    hidden = hidden.transpose(1, 0, 2)
    before = jnp.pad(hidden[:, :-1], ((0, 0), (1, 0), (0, 0)))
    # Kernel and recurrent kernel share the gates' deltas.
    self.inputs[place] = jnp.concatenate([x, before], axis=-1)
    return hidden

  def classified(self, logits: jax.Array, targets: jax.Array) -> Trace:
    """Returns the trace of a batch with one class for each example.

    Args:
      logits: Logits of the last layer, [batch, classes].
      targets: The classes, [batch].
    """
    losses = cross_entropy(logits, targets)
    return Trace(
      losses=losses,
      inputs=tuple(self.inputs),
      outputs=tuple(self.outputs),
      hits=is_hit(logits, targets),
      token_losses=losses,
    )


def output_size(layer: Convolution, size: int) -> int:
  """Returns the height, or width, of a convolution's output."""
  room = size if layer.padding == 'SAME' else size - layer.size + 1
  return -(-room // layer.stride)


def pad_images(layer: Convolution, x: jax.Array) -> jax.Array:
  """Pads images with zeros, as a convolution does.

  Args:
    layer: The convolution.
    x: [batch, height, width, channels].
  """
  if layer.padding == 'VALID':
    return x
  margins = []
  for size in x.shape[1:3]:
    seen = (output_size(layer, size) - 1) * layer.stride + layer.size
    missing = max(seen - size, 0)
    margins.append((missing // 2, missing - missing // 2))
  return jnp.pad(x, ((0, 0), *margins, (0, 0)))


def patches(layer: Convolution, x: jax.Array) -> jax.Array:
  """Returns the input patch of each output pixel of a convolution.

  Args:
    layer: The convolution.
    x: [batch, height, width, channels].

  Returns:
    [batch, pixels, size * size * channels], in the order of the kernel's axes.
  """
  size, stride = layer.size, layer.stride
  rows, columns = (output_size(layer, n) for n in x.shape[1:3])
  x = pad_images(layer, x)
  batch, _, width, channels = x.shape
  # XLA's operation for patches is a convolution, which is slow.
  if jax.default_backend() != 'cpu':
    first = stride * (np.arange(rows)[:, None] * width + np.arange(columns))
    shifts = np.arange(size)[:, None] * width + np.arange(size)
    seen = first.reshape(-1, 1) + shifts.reshape(1, -1)
    pixels = x.reshape(batch, -1, channels)
    taken = jnp.take(pixels, seen, axis=1, mode='clip')
    return taken.reshape(batch, rows * columns, -1)
  # On CPUs, XLA's gather is several times slower than shifted slices. On GPUs,
  # shifted slices are half as fast as a gather.
  shifted = [
    x[
      :,
      row : row + (rows - 1) * stride + 1 : stride,
      column : column + (columns - 1) * stride + 1 : stride,
    ]
    for row in range(size)
    for column in range(size)
  ]
  stacked = jnp.stack(shifted, axis=3)
  return stacked.reshape(batch, rows * columns, -1)


def normalize_groups(x: jax.Array, groups: int) -> jax.Array:
  """Scales each group of channels of each image to mean 0 and variance 1.

  Args:
    x: [batch, height, width, channels].
    groups: Number of groups; must divide the number of channels.

  Returns:
    The same shape and dtype; means and variances are computed in float32.
  """
  split = x.reshape(*x.shape[:3], groups, -1).astype(jnp.float32)
  mean = split.mean(axis=(1, 2, 4), keepdims=True)
  variance = split.var(axis=(1, 2, 4), keepdims=True)
  normalized = (split - mean) * jax.lax.rsqrt(variance + _NORM_EPSILON)
  return normalized.reshape(x.shape).astype(x.dtype)


def max_pool(x: jax.Array, size: int, stride: int) -> jax.Array:
  """Applies max-pooling without padding.

  If several pixels are the largest, they share the derivative.

  Args:
    x: Images, [batch, height, width, channels].
    size: Height and width of the windows.
    stride: Stride of the windows.
  """
  batch, height, width, channels = x.shape
  if size == stride and height % size == 0 and width % size == 0:
    # The derivative of a reduction over axes needs no scatter.
    split = batch, height // size, size, width // size, size, channels
    return x.reshape(split).max(axis=(2, 4))
  rows = (height - size) // stride + 1
  columns = (width - size) // stride + 1
  result = None
  for row in range(size):
    for column in range(size):
      shifted = x[
        :,
        row : row + (rows - 1) * stride + 1 : stride,
        column : column + (columns - 1) * stride + 1 : stride,
      ]
      result = shifted if result is None else jnp.maximum(result, shifted)
  return result


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
  """Returns the cross-entropy of each target, in float32.

  Args:
    logits: [..., classes].
    targets: Classes, [...].
  """
  logits = logits.astype(jnp.float32)
  classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
  # Compare instead of gathering: the derivative of a gather is a scatter.
  is_target = classes == targets[..., None].astype(jnp.int32)
  chosen = jnp.where(is_target, logits, 0).sum(axis=-1)
  return jax.nn.logsumexp(logits, axis=-1) - chosen


def is_hit(logits: jax.Array, targets: jax.Array) -> jax.Array:
  """Returns whether each target is the most likely class, as float32."""
  best = jnp.argmax(logits, axis=-1)
  return (best == targets.astype(best.dtype)).astype(jnp.float32)


def drop(
  x: jax.Array, rate: float, key: Optional[jax.Array], place: int
) -> jax.Array:
  """Drops activations and scales up the rest.

  Args:
    x: The activations.
    rate: Fraction of activations that are dropped.
    key: The random key; None for no dropout.
    place: Index of the layer; different layers drop independently.
  """
  if key is None or not rate:
    return x
  kept = jax.random.bernoulli(jax.random.fold_in(key, place), 1 - rate, x.shape)
  return jnp.where(kept, x / (1 - rate), 0).astype(x.dtype)
