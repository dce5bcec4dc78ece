"""Rounding of noised sums to a grid that does not depend on the data.

Normal numbers in floating point are multiples of a tiny step. Where the true
sum is exactly zero, such as the embedding of a word that nobody used, the
released number stays on that grid, and any contribution takes it off: whoever
looks at low bits tells "nobody" from "somebody". After rounding to a power of
two near 2^-12 sigma S, every release lies on one grid. For exact numbers this
is post-processing: it changes no epsilon. See docs/sharp_edges.md.

JAX and TensorFlow have the same rule in `vectorized.aggregation` and
`learning.aggregators`.
"""

import numpy as np

# The step of the grid, relative to the noise's standard deviation: at most
# this, and more than half of it.
GRID_STEP = 2.0**-12


def grid_step(stddev: np.ndarray) -> np.ndarray:
  """Returns the step of the grid for noise of a standard deviation.

  Example:

    >>> grid_step(1.5) == 2.0**-12
    True

  Args:
    stddev: Standard deviations of noise, at least 0.

  Returns:
    Powers of two; 0 without noise.
  """
  stddev = np.asarray(stddev, np.float64)
  _, exponent = np.frexp(stddev)
  return np.where(stddev > 0, np.ldexp(GRID_STEP, exponent - 1), 0.0)


def round_noised(values: np.ndarray, stddev: np.ndarray) -> np.ndarray:
  """Rounds noised values to the grid of their noise.

  Example:

    >>> round_noised(np.array([0.30004, -1.0]), stddev=1.0) * 2**12
    array([ 1229., -4096.])

  Args:
    values: Values with noise.
    stddev: The standard deviation of their noise, or one for each value; 0
      changes nothing.

  Returns:
    Multiples of `grid_step(stddev)`.
  """
  step = grid_step(stddev)
  rounded = np.round(values / np.where(step > 0, step, 1)) * step
  return np.where(step > 0, rounded, values)
