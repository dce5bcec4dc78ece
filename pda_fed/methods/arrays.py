"""Operations whose names differ between numpy, JAX and TensorFlow.

A method is written once, with + - * / and these functions, and runs on arrays
of all three libraries. An *update* is a tuple of arrays, one for each weight of
a model.
"""

import math
import sys
from typing import Any

import numpy as np

Array = Any
Update = tuple[Array, ...]


def _library(*arrays: Array) -> Any:
  """Returns the module whose functions take these arrays."""
  for array in arrays:
    name = type(array).__module__.partition('.')[0]
    if name in ('jax', 'jaxlib'):
      return sys.modules['jax.numpy']
    if name == 'tensorflow':
      return sys.modules['tensorflow']
  return np


def where(condition: Array, a: Array, b: Array) -> Array:
  """Returns `a` where the condition holds and `b` elsewhere."""
  return _library(condition, a, b).where(condition, a, b)


def sqrt(x: Array) -> Array:
  """Returns the square root of each entry."""
  return _library(x).sqrt(x)


def total(x: Array) -> Array:
  """Returns the sum of all entries."""
  library = _library(x)
  return library.reduce_sum(x) if library.__name__ == 'tensorflow' else x.sum()


def size(update: Update) -> int:
  """Returns the number of entries of all arrays together."""
  return sum(math.prod(int(n) for n in leaf.shape) for leaf in update)


def dot(a: Update, b: Update) -> Array:
  """Returns the inner product of two updates."""
  # Not a matrix product, which may round to TF32 on GPUs.
  return sum(total(x * y) for x, y in zip(a, b, strict=True))


def norm(update: Update) -> Array:
  """Returns the L2 norm of all arrays together."""
  return sqrt(dot(update, update))


def mix(a: Update, b: Update, weight: Array) -> Update:
  """Returns weight * a + (1 - weight) * b.

  The result is exactly `a` at weight 1 and exactly `b` at weight 0, even if the
  other update is not finite.

  Example:

    >>> a, b = (np.array([1.0, 2.0]),), (np.array([3.0, np.nan]),)
    >>> mix(a, b, 1.0)[0].tolist()
    [1.0, 2.0]

  Args:
    a: An update.
    b: An update of the same shapes.
    weight: A scalar in [0, 1].
  """

  def mixed(x: Array, y: Array) -> Array:
    both = weight * x + (1 - weight) * y
    return where(weight >= 1, x, where(weight <= 0, y, both))

  return tuple(mixed(x, y) for x, y in zip(a, b, strict=True))
