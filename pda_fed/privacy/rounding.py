"""Rounds noised sums to a grid that does not depend on the data.

Floating-point normal samples are multiples of a tiny step. If the true sum is
exactly zero, as for the embedding of a word that nobody used, the released
value stays on that grid. Any contribution moves it off the grid, so the low
bits reveal whether somebody contributed. After rounding to a power of two near
2^-12 sigma S, every release lies on one grid. In exact arithmetic, this is
post-processing and does not change epsilon. See docs/sharp_edges.md.

`pda_jax.aggregation` and `pda_tff.aggregators` implement the same rule in
JAX and TensorFlow.
"""

import numpy as np
import numpy.typing as npt

# Largest step of the grid, relative to the noise's standard deviation. The
# actual step is more than half of it.
GRID_STEP = 2.0**-12


def grid_step(stddev: npt.ArrayLike) -> np.ndarray:
  """Returns the step of the grid for noise of a standard deviation.

  Example:

    >>> grid_step(1.5) == 2.0**-12
    True

  Args:
    stddev: Standard deviations of noise, at least 0.

  Returns:
    Powers of two; 0 where there is no noise.
  """
  stddev = np.asarray(stddev, np.float64)
  _, exponent = np.frexp(stddev)
  return np.where(stddev > 0, np.ldexp(GRID_STEP, exponent - 1), 0.0)


def round_noised(values: np.ndarray, stddev: npt.ArrayLike) -> np.ndarray:
  """Rounds noised values to the grid of their noise.

  Example:

    >>> round_noised(np.array([0.30004, -1.0]), stddev=1.0) * 2**12
    array([ 1229., -4096.])

  Args:
    values: Values with noise.
    stddev: Standard deviation of the noise, or one for each value. If 0, values
      are not rounded.

  Returns:
    Multiples of `grid_step(stddev)`.
  """
  step = grid_step(stddev)
  rounded = np.round(values / np.where(step > 0, step, 1)) * step
  return np.where(step > 0, rounded, values)
