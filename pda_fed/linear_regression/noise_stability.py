"""The local stability theorem: how far a step's noise moves the iterate.

Section "Case Study: Linear Regression" of "Public Data-Assisted Mirror Descent
for Private Model Training" (Amid et al., ICML 2022, arXiv:2112.00193): with the
eigenvectors v_i and eigenvalues lambda_i of the Hessian of Psi, a unit vector
v = sum_i a_i v_i, and the iterates after a step with and without noise,

  E |<noisy - clean, v>| = eta sigma sqrt(2/pi sum_i (a_i / lambda_i)^2),

whereas DP-SGD moves by eta sigma sqrt(2/pi) in every direction.
"""

import math

import numpy as np
from numpy import typing as npt
from pda_fed.common import validate
from pda_fed.linear_regression import mirror_maps


def expected_displacement(
  eigenvalues: npt.ArrayLike,
  coordinates: npt.ArrayLike,
  *,
  learning_rate: float,
  noise_stddev: float,
) -> float:
  """Returns the right-hand side of the theorem.

  Args:
    eigenvalues: lambda_i, positive.
    coordinates: a_i, the direction in the basis of eigenvectors.
    learning_rate: eta.
    noise_stddev: sigma.

  Raises:
    ValueError: If a number is out of range.
  """
  validate.positive(learning_rate=learning_rate)
  validate.non_negative(noise_stddev=noise_stddev)
  eigenvalues = np.asarray(eigenvalues, np.float64)
  if not (eigenvalues > 0).all():
    raise ValueError(
      f'eigenvalues must be positive. Found {float(eigenvalues.min())!r}.'
    )
  norm = float(np.linalg.norm(np.asarray(coordinates) / eigenvalues))
  return learning_rate * noise_stddev * math.sqrt(2 / math.pi) * norm


def simulated_displacement(
  mirror_map: mirror_maps.MirrorMap,
  theta: npt.ArrayLike,
  gradient: npt.ArrayLike,
  directions: npt.ArrayLike,
  *,
  learning_rate: float,
  noise_stddev: float,
  num_samples: int,
  rng: np.random.Generator,
) -> np.ndarray:
  """Estimates the left-hand side from steps with and without noise.

  Args:
    mirror_map: Psi, any mirror map.
    theta: theta_t.
    gradient: g_t.
    directions: Unit vectors v, as columns.
    learning_rate: eta.
    noise_stddev: sigma.
    num_samples: Number of steps with noise.
    rng: The random generator of the noise.

  Returns:
    The mean of |<noisy - clean, v>| for each direction.
  """
  validate.integers(1, num_samples=num_samples)
  theta = np.asarray(theta, np.float64)
  gradient = np.asarray(gradient, np.float64)
  clean = mirror_map.step(theta, gradient, learning_rate)
  noise = noise_stddev * rng.standard_normal((theta.size, num_samples))
  thetas = np.repeat(theta[:, None], num_samples, axis=1)
  noisy = mirror_map.step(thetas, gradient[:, None] + noise, learning_rate)
  moved = np.asarray(directions).T @ (noisy - clean[:, None])
  return np.abs(moved).mean(axis=1)
