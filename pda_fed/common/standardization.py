"""Mean and standard deviation of inputs, per channel or feature."""

import numpy as np


def mean_and_scale(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the mean and scale that standardize inputs.

  Use public inputs only: epsilon does not cover what these numbers reveal.

  Args:
    inputs: [examples, ..., channels or features], at least one example.

  Returns:
    The mean and the standard deviation of each channel or feature, as float32.
    The scale of a constant channel or feature is 1.
  """
  values = inputs.reshape(-1, inputs.shape[-1]).astype(np.float64)
  scale = values.std(axis=0).astype(np.float32)
  # Rounding gives a constant a tiny deviation, and dividing by it would blow up
  # any other value. XLA flushes subnormal numbers to 0.
  is_constant = values.min(axis=0) == values.max(axis=0)
  is_constant |= scale < np.finfo(np.float32).tiny
  scale[is_constant] = 1
  return values.mean(axis=0).astype(np.float32), scale
