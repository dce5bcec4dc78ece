"""Mean and scale of inputs, by channel or feature."""

import numpy as np


def mean_and_scale(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns what brings inputs to mean 0 and variance 1.

  Measure public inputs alone: epsilon does not cover what these numbers reveal.

  Args:
    inputs: [examples, ..., channels or features], at least one example.

  Returns:
    The mean and the standard deviation of each channel or feature, in float32.
    A constant one has the scale 1.
  """
  values = inputs.reshape(-1, inputs.shape[-1]).astype(np.float64)
  scale = values.std(axis=0).astype(np.float32)
  # Rounding gives a constant a tiny deviation; dividing by it would blow up
  # other values. XLA flushes numbers below the smallest normal one to 0.
  is_constant = values.min(axis=0) == values.max(axis=0)
  is_constant |= scale < np.finfo(np.float32).tiny
  scale[is_constant] = 1
  return values.mean(axis=0).astype(np.float32), scale
