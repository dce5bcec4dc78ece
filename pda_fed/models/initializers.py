"""Initial weights in numpy, from the same distributions as in Keras."""

from collections.abc import Sequence
import math

import numpy as np


def uniform(
  rng: np.random.Generator, shape: Sequence[int], limit: float
) -> np.ndarray:
  """Draws float32 values from [-limit, limit]."""
  return rng.uniform(-limit, limit, shape).astype(np.float32)


def glorot_uniform(
  rng: np.random.Generator, shape: Sequence[int]
) -> np.ndarray:
  """Draws a float32 kernel whose last axes are inputs and outputs.

  Args:
    rng: The generator.
    shape: (inputs, outputs), optionally preceded by the filter's axes.
  """
  field = math.prod(shape[:-2])
  return uniform(rng, shape, np.sqrt(6 / (field * (shape[-2] + shape[-1]))))


def he_normal(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
  """Draws a float32 kernel for inputs that come from a ReLU.

  Args:
    rng: The generator.
    shape: (inputs, outputs), optionally preceded by the filter's axes.
  """
  stddev = math.sqrt(2 / math.prod(shape[:-1]))
  return (stddev * rng.standard_normal(shape)).astype(np.float32)


def orthogonal(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
  """Draws a float32 matrix with orthonormal rows.

  Args:
    rng: The generator.
    shape: (rows, columns), with at most as many rows as columns.
  """
  rows, columns = shape
  q, r = np.linalg.qr(rng.standard_normal((columns, rows)))
  # With these signs, the matrix is uniform over orthogonal matrices.
  return (q * np.sign(np.diag(r))).T.astype(np.float32)
