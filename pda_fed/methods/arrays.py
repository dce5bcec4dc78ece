"""Arrays of numpy, JAX and TensorFlow, by one set of names.

A method is written once, with + - * / and functions of `xp = namespace(array)`,
and runs on arrays of all three libraries: `xp.where`, `xp.sqrt`, `xp.sum`. An
*update* is a tuple of arrays, one for each weight of a model.
"""

import math
import sys
from typing import Any

import numpy as np

Array = Any
Update = tuple[Array, ...]


def namespace(*arrays: Array) -> Any:
  """Returns the module with numpy's functions for these arrays.

  It is numpy, jax.numpy or TensorFlow's tf.experimental.numpy.

  Example:

    >>> namespace(np.ones(2), 0.5) is np
    True

  Args:
    *arrays: Arrays of one library, and numbers.
  """
  for array in arrays:
    name = type(array).__module__.partition('.')[0]
    if name in ('jax', 'jaxlib'):
      return sys.modules['jax.numpy']
    if name == 'tensorflow':
      return sys.modules['tensorflow'].experimental.numpy
  return np


def size(update: Update) -> int:
  """Returns the number of entries of all arrays together."""
  return sum(math.prod(int(n) for n in leaf.shape) for leaf in update)


def dot(a: Update, b: Update) -> Array:
  """Returns the inner product of two updates."""
  # Not a matrix product, which may round to TF32 on GPUs.
  xp = namespace(*a)
  return sum(xp.sum(x * y) for x, y in zip(a, b, strict=True))


def norm(update: Update) -> Array:
  """Returns the L2 norm of all arrays together."""
  return namespace(*update).sqrt(dot(update, update))


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
  xp = namespace(weight, *a)

  def mixed(x: Array, y: Array) -> Array:
    both = weight * x + (1 - weight) * y
    return xp.where(weight >= 1, x, xp.where(weight <= 0, y, both))

  return tuple(mixed(x, y) for x, y in zip(a, b, strict=True))
