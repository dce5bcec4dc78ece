"""Initial weights in numpy, from the distributions that Keras draws from."""

from collections.abc import Sequence
import math

import numpy as np


def uniform(
  rng: np.random.Generator, shape: Sequence[int], limit: float
) -> np.ndarray:
  """Draws from [-limit, limit]; float32."""
  return rng.uniform(-limit, limit, shape).astype(np.float32)


def glorot_uniform(
  rng: np.random.Generator, shape: Sequence[int]
) -> np.ndarray:
  """Draws a kernel whose last axes are inputs and outputs; float32.

  Args:
    rng: The generator.
    shape: (inputs, outputs), or with the axes of a filter before these.
  """
  field = math.prod(shape[:-2])
  return uniform(rng, shape, np.sqrt(6 / (field * (shape[-2] + shape[-1]))))


def he_normal(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
  """Draws a kernel for inputs that come from a ReLU; float32.

  Args:
    rng: The generator.
    shape: (inputs, outputs), or with the axes of a filter before these.
  """
  stddev = math.sqrt(2 / math.prod(shape[:-1]))
  return (stddev * rng.standard_normal(shape)).astype(np.float32)


def orthogonal(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
  """Draws orthonormal rows; float32.

  Args:
    rng: The generator.
    shape: (rows, columns), not more rows than columns.
  """
  rows, columns = shape
  q, r = np.linalg.qr(rng.standard_normal((columns, rows)))
  # The signs make it uniform over orthogonal matrices.
  return (q * np.sign(np.diag(r))).T.astype(np.float32)
