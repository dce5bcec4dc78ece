"""The exact mirror step where the public loss is a least-squares loss.

Algorithm 1 of "Public Data-Assisted Mirror Descent for Private Model Training"
(Amid et al., ICML 2022, arXiv:2112.00193) takes the public loss Psi as its
mirror map:

  theta_0     = argmin Psi(theta),
  theta_{t+1} = argmin eta <g_t + b_t, theta> + B_Psi(theta, theta_t),

where B_Psi(theta, theta_t) = Psi(theta) - Psi(theta_t) -
<grad Psi(theta_t), theta - theta_t>. For linear regression (section "Case
Study: Linear Regression") the Hessian H of Psi is the same everywhere. Without
constraints both lines then have closed forms; the second one is

  theta_{t+1} = theta_t - eta H^{-1} (g_t + b_t).
"""

from typing import Union

import numpy as np
from numpy import typing as npt
from pda_fed import _validate
from scipy import linalg
from scipy import sparse
from scipy.sparse import linalg as sparse_linalg

# Below it a dense eigensolver takes no time and has no special cases.
_MIN_SIZE_FOR_LANCZOS = 64


class QuadraticMirrorMap:
  """The mirror map Psi of public least squares, factorised once.

  With n public samples (x_i, y_i) and the regularisation r,

    Psi(theta) = c (1/(2n) sum_i (<x_i, theta> - y_i)^2 + r/2 |theta|^2),
    H = c (X^T X / n + r I),

  where c > 0 is such that the largest eigenvalue of H^{-1} is 1. The paper
  scales it so in order that plain gradient descent and mirror descent coincide,
  for the same learning rate, where X^T X is a multiple of the identity.

  The constructor takes O(n p^2 + p^3) time for dense features, a step O(p^2).
  Everything is computed in float64.

  Attributes:
    num_coefficients: p, the length of theta.
    scale: c.
  """

  def __init__(
    self,
    features: Union[npt.ArrayLike, sparse.spmatrix],
    responses: npt.ArrayLike,
    *,
    regularization: float = 0.0,
  ):
    """Factorises the Hessian.

    Args:
      features: The public features X, an (n, p) array or SciPy sparse matrix.
      responses: The n public responses y.
      regularization: r, what is added to the diagonal of X^T X / n; at least 0.
        The paper calls it "a small constant", without a value.

    Raises:
      TypeError: If the features or the responses are not real numbers.
      ValueError: If the shapes do not match, if a number is not finite, if
        `regularization` is negative, or if the Hessian is singular.
    """
    _validate.non_negative(regularization=regularization)
    self._features = _check_features(features)
    num_samples, self.num_coefficients = self._features.shape
    self._responses = _check_vector('responses', responses, num_samples).copy()
    self._regularization = float(regularization)

    hessian = self._unscaled_hessian()
    # Its largest eigenvalue is at most this, and nearly this where no entry is
    # negative, as in the paper's simulation.
    largest = np.abs(hessian).sum(axis=0).max()
    try:
      self._factor = linalg.cho_factor(hessian, lower=True, check_finite=False)
      smallest = _smallest_eigenvalue(hessian, self._factor)
    except linalg.LinAlgError:
      smallest = 0.0
    # Rounding may let the factorisation of a singular matrix pass.
    threshold = self.num_coefficients * np.finfo(np.float64).eps * largest
    if not smallest > threshold:
      raise ValueError(
        'The Hessian of the public loss is singular: its smallest eigenvalue '
        f'is at most {threshold:.3g}, where its largest is about '
        f'{largest:.3g}. Regularise it: regularization must be larger. Found '
        f'{regularization!r}.'
      )
    self.scale = 1.0 / smallest

  def value(self, theta: npt.ArrayLike) -> float:
    """Returns Psi(theta).

    Args:
      theta: A vector of p coefficients.

    Raises:
      ValueError: If `theta` has another shape or is not finite.
    """
    theta = self._check('theta', theta)
    residuals = self._features @ theta - self._responses
    loss = residuals @ residuals / (2 * residuals.size)
    penalty = self._regularization * (theta @ theta) / 2
    return float(self.scale * (loss + penalty))

  def gradient(self, theta: npt.ArrayLike) -> np.ndarray:
    """Returns the gradient of Psi at theta.

    Args:
      theta: A vector of p coefficients.

    Raises:
      ValueError: If `theta` has another shape or is not finite.
    """
    theta = self._check('theta', theta)
    residuals = self._features @ theta - self._responses
    loss_gradient = self._features.T @ residuals / residuals.size
    return self.scale * (loss_gradient + self._regularization * theta)

  def hessian(self) -> np.ndarray:
    """Returns H, computed anew: steps need only its factors."""
    return self.scale * self._unscaled_hessian()

  def minimizer(self) -> np.ndarray:
    """Returns argmin Psi: exact pre-training on the public samples."""
    moments = self._features.T @ self._responses / self._responses.size
    return self._solve(moments)

  def precondition(self, vector: npt.ArrayLike) -> np.ndarray:
    """Returns H^{-1} times the vector, which is never longer than the vector.

    Args:
      vector: A vector of p numbers.

    Raises:
      ValueError: If `vector` has another shape or is not finite.
    """
    return self._solve(self._check('vector', vector)) / self.scale

  def step(
    self,
    theta: npt.ArrayLike,
    noisy_gradient: npt.ArrayLike,
    learning_rate: float,
  ) -> np.ndarray:
    """Returns argmin eta <g + b, .> + B_Psi(., theta), without constraints.

    Args:
      theta: The coefficients theta_t.
      noisy_gradient: g_t + b_t, the private gradient, clipped and noised.
      learning_rate: eta, positive.

    Returns:
      theta_{t+1}.

    Raises:
      ValueError: If a vector does not have p finite numbers, or if
        `learning_rate` is not positive and finite.
    """
    _validate.positive(learning_rate=learning_rate)
    theta = self._check('theta', theta)
    noisy_gradient = self._check('noisy_gradient', noisy_gradient)
    return theta - learning_rate * self.precondition(noisy_gradient)

  def _check(self, name: str, vector: npt.ArrayLike) -> np.ndarray:
    return _check_vector(name, vector, self.num_coefficients)

  def _unscaled_hessian(self) -> np.ndarray:
    gram = self._features.T @ self._features
    if sparse.issparse(gram):
      gram = gram.toarray()
    gram /= self._responses.size
    gram[np.diag_indices_from(gram)] += self._regularization
    return gram

  def _solve(self, vector: np.ndarray) -> np.ndarray:
    # The check would read the whole factor at every step.
    return linalg.cho_solve(self._factor, vector, check_finite=False)


def _smallest_eigenvalue(hessian: np.ndarray, factor: tuple) -> float:
  """Returns the smallest eigenvalue of a factorised positive matrix."""
  size = hessian.shape[0]
  if size >= _MIN_SIZE_FOR_LANCZOS:
    # Lanczos on the inverse takes a second for p = 6000, a dense solver twenty.
    inverse = sparse_linalg.LinearOperator(
      (size, size),
      matvec=lambda v: linalg.cho_solve(factor, v, check_finite=False),
      dtype=np.float64,
    )
    try:
      (largest,) = sparse_linalg.eigsh(
        inverse,
        k=1,
        which='LA',
        v0=np.random.default_rng(0).standard_normal(size),
        # Bounds the relative error. With 0, an eigenvalue of multiplicity
        # 2 or more, as duplicated features make them, never converges.
        tol=1e-10,
        maxiter=100,
        return_eigenvectors=False,
      )
      return 1.0 / largest
    except sparse_linalg.ArpackError:
      pass  # The dense solver below always converges.
  (smallest,) = linalg.eigh(
    hessian, eigvals_only=True, subset_by_index=[0, 0], check_finite=False
  )
  return smallest


def _check_features(
  features: Union[npt.ArrayLike, sparse.spmatrix],
) -> Union[np.ndarray, sparse.csr_matrix]:
  """Returns the features as a float64 array or CSR matrix, or raises."""
  if sparse.issparse(features):
    checked = sparse.csr_matrix(features)
    values = checked.data
  else:
    checked = values = np.asarray(features)
  if values.dtype.kind not in 'iuf':
    raise TypeError(
      f'features must be real numbers. Found the dtype {values.dtype}.'
    )
  if checked.ndim != 2 or 0 in checked.shape:
    raise ValueError(
      'features must be a matrix with at least one row and one column. Found '
      f'the shape {checked.shape}.'
    )
  if not np.isfinite(values).all():
    raise ValueError('features must be finite. Found NaN or infinity.')
  return checked.astype(np.float64)


def _check_vector(name: str, vector: npt.ArrayLike, size: int) -> np.ndarray:
  """Returns the vector as float64, or raises."""
  vector = np.asarray(vector)
  if vector.dtype.kind not in 'iuf':
    raise TypeError(
      f'{name} must be real numbers. Found the dtype {vector.dtype}.'
    )
  if vector.shape != (size,):
    raise ValueError(
      f'{name} must have the shape ({size},). Found {vector.shape}.'
    )
  if not np.isfinite(vector).all():
    raise ValueError(f'{name} must be finite. Found NaN or infinity.')
  return vector.astype(np.float64, copy=False)
