"""The exact mirror step for a public least-squares loss.

Algorithm 1 of "Public Data-Assisted Mirror Descent for Private Model Training"
(Amid et al., ICML 2022, arXiv:2112.00193) takes the public loss Psi as its
mirror map:

  theta_0     = argmin Psi(theta),
  theta_{t+1} = argmin eta <g_t + b_t, theta> + B_Psi(theta, theta_t),

where B_Psi(theta, theta_t) = Psi(theta) - Psi(theta_t) -
<grad Psi(theta_t), theta - theta_t>. For linear regression (section "Case
Study: Linear Regression") the Hessian H of Psi is constant. Without
constraints, both lines then have closed forms; the second is

  theta_{t+1} = theta_t - eta H^{-1} (g_t + b_t).

With a constraint set C, `constraints` projects the result onto C.
"""

import contextlib
import functools
from typing import Optional, Union

import numpy as np
from numpy import typing as npt
from pda_fed.common import validate
from pda_fed.linear_regression import constraints
from pda_fed.linear_regression import least_squares
from scipy import linalg
from scipy import sparse
from scipy.sparse import linalg as sparse_linalg

# Below this size a dense eigensolver is fast and has no special cases.
_MIN_SIZE_FOR_LANCZOS = 64


class QuadraticMirrorMap:
  """The mirror map Psi of public least squares, factorised once.

  With n public samples (x_i, y_i) and the regularisation r,

    Psi(theta) = c (1/(2n) sum_i (<x_i, theta> - y_i)^2 + r/2 |theta|^2),
    H = c (X^T X / n + r I),

  where c > 0 is such that the largest eigenvalue of H^{-1} is 1. This is the
  paper's scaling: if X^T X is a multiple of the identity, gradient descent and
  mirror descent coincide for the same learning rate.

  The constructor takes O(n p^2 + p^3) time for dense features, a step O(p^2). A
  step with a constraint needs all eigenvectors, which are computed on first
  use. Everything is computed in float64.

  Example:

    >>> psi = QuadraticMirrorMap([[1.0, 0.0], [0.0, 2.0]], [1.0, 2.0])
    >>> psi.minimizer(), psi.precondition([1.0, 1.0])
    (array([1., 1.]), array([1.  , 0.25]))

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
      regularization: r, which is added to the diagonal of X^T X / n; at least
        0. The paper calls it "a small constant", without a value.

    Raises:
      TypeError: If the features or the responses are not real numbers.
      ValueError: If the shapes do not match, if a number is not finite, if
        `regularization` is negative, or if the Hessian is singular.
    """
    validate.non_negative(regularization=regularization)
    self._features, self._responses = least_squares.check_samples(
      features, responses
    )
    self.num_coefficients = self._features.shape[1]
    self._regularization = float(regularization)
    hessian = self._unscaled_hessian()
    # An upper bound on the largest eigenvalue. It is nearly tight if no entry
    # is negative, as in the paper's simulation.
    largest = np.abs(hessian).sum(axis=0).max()
    smallest = 0.0
    with contextlib.suppress(linalg.LinAlgError):
      # The matrix is symmetric, so its transpose is the same matrix in LAPACK's
      # memory order, and nothing is copied.
      self._factor = linalg.cho_factor(
        hessian.T, lower=True, overwrite_a=True, check_finite=False
      )
      smallest = self._smallest_eigenvalue()
    # Due to rounding, factorising a singular matrix may succeed.
    threshold = self.num_coefficients * np.finfo(np.float64).eps * largest
    if not smallest > threshold:
      raise ValueError(
        'The Hessian of the public loss is singular: its smallest eigenvalue '
        f'is at most {threshold:.3g}, and its largest is about '
        f'{largest:.3g}. regularization must be larger. Found '
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
    """Returns H, computed again: only its factors are stored."""
    return self.scale * self._unscaled_hessian()

  def minimizer(
    self, constraint: Optional[constraints.ConstraintSet] = None
  ) -> np.ndarray:
    """Returns argmin Psi over C: exact pre-training on the public samples.

    Args:
      constraint: C; by default there is none.

    Raises:
      ValueError: If C is empty.
    """
    # Up to a constant, Psi(theta) is B_Psi(theta, m) with its minimizer m.
    return self._project(self._minimizer, constraint)

  def precondition(self, vector: npt.ArrayLike) -> np.ndarray:
    """Returns H^{-1} times the vector, whose norm is at most the vector's.

    Args:
      vector: A vector of p numbers, or a block of shape (p, columns).

    Raises:
      ValueError: If `vector` has another shape or is not finite.
    """
    return self._solve(self._check('vector', vector)) / self.scale

  def step(
    self,
    theta: npt.ArrayLike,
    noisy_gradient: npt.ArrayLike,
    learning_rate: npt.ArrayLike,
    constraint: Optional[constraints.ConstraintSet] = None,
  ) -> np.ndarray:
    """Returns argmin over C of eta <g + b, .> + B_Psi(., theta).

    Args:
      theta: The coefficients theta_t, or a block of shape (p, columns).
      noisy_gradient: g_t + b_t, the private gradient, clipped and noised.
      learning_rate: eta, positive; for a block, optionally one for each column.
      constraint: C; by default there is none.

    Returns:
      theta_{t+1}.

    Raises:
      ValueError: If a vector does not have p finite numbers, if `learning_rate`
        is not positive and finite, or if C is empty.
    """
    for rate in np.ravel(learning_rate).tolist():
      validate.positive(learning_rate=rate)
    theta = self._check('theta', theta)
    noisy_gradient = self._check('noisy_gradient', noisy_gradient)
    if theta.shape != noisy_gradient.shape:
      raise ValueError(
        f'noisy_gradient must have the shape {theta.shape} of theta. Found '
        f'{noisy_gradient.shape}.'
      )
    moved = theta - learning_rate * self.precondition(noisy_gradient)
    return self._project(moved, constraint)

  def condition_number(self) -> float:
    """Returns the ratio of the largest to the smallest non-zero eigenvalue.

    The eigenvalues are those of X^T X. In the paper's simulation one of them is
    0 for every p (see `problem`). No sample depends on its direction, so it
    does not affect the loss.
    """
    hessian = sparse_linalg.LinearOperator(
      (self.num_coefficients, self.num_coefficients),
      matvec=lambda v: self._features.T @ (self._features @ v),
      dtype=np.float64,
    )
    (largest,) = sparse_linalg.eigsh(
      hessian,
      k=1,
      tol=1e-6,
      v0=np.ones(self.num_coefficients),
      return_eigenvectors=False,
    )
    largest /= self._responses.size
    threshold = 1e-9 * largest
    # Lanczos fails if more than one eigenvalue is 0.
    with contextlib.suppress(sparse_linalg.ArpackError):
      if self.num_coefficients > 2:
        inverse = self._lanczos(2, tol=1e-4)
        eigenvalues = np.sort(1.0 / inverse) - self._regularization
        if eigenvalues[-1] > threshold:
          return float(largest / eigenvalues[eigenvalues > threshold][0])
    eigenvalues = linalg.eigvalsh(self._gram())
    return float(largest / eigenvalues[eigenvalues > threshold].min())

  def _check(self, name: str, vector: npt.ArrayLike) -> np.ndarray:
    """Returns a vector, or a block of columns, as float64, or raises."""
    vector, size = np.asarray(vector), self.num_coefficients
    if vector.shape[:1] != (size,) or vector.ndim > 2:
      raise ValueError(
        f'{name} must have the shape ({size},) or ({size}, columns). Found'
        f' {vector.shape}.'
      )
    least_squares.check_numbers(name, vector)
    return vector.astype(np.float64, copy=False)

  def _gram(self) -> np.ndarray:
    """Returns X^T X / n as a dense array."""
    gram = self._features.T @ self._features
    if sparse.issparse(gram):
      gram = gram.toarray()
    gram /= self._responses.size
    return gram

  def _unscaled_hessian(self) -> np.ndarray:
    hessian = self._gram()
    hessian[np.diag_indices_from(hessian)] += self._regularization
    return hessian

  @functools.cached_property
  def _minimizer(self) -> np.ndarray:
    moments = self._features.T @ self._responses / self._responses.size
    return self._solve(moments)

  @functools.cached_property
  def _eigenbasis(self) -> tuple[np.ndarray, np.ndarray]:
    return linalg.eigh(self._unscaled_hessian(), check_finite=False)

  def _project(
    self, theta: np.ndarray, constraint: Optional[constraints.ConstraintSet]
  ) -> np.ndarray:
    if constraint is None:
      return theta.copy()
    if theta.ndim == 2:
      return np.stack([self._project(t, constraint) for t in theta.T], axis=1)
    eigenvalues, basis = self._eigenbasis
    projected = constraints.project_quadratic(
      basis.T @ theta, basis.T @ self._minimizer, eigenvalues, constraint
    )
    return basis @ projected

  def _solve(self, vector: np.ndarray) -> np.ndarray:
    # A finiteness check would read the whole factor at every step.
    return linalg.cho_solve(self._factor, vector, check_finite=False)

  def _lanczos(self, k: int, tol: float) -> np.ndarray:
    """Returns the k largest eigenvalues of the inverse unscaled Hessian."""
    size = self.num_coefficients
    return sparse_linalg.eigsh(
      sparse_linalg.LinearOperator(
        (size, size), matvec=self._solve, dtype=np.float64
      ),
      k=k,
      which='LA',
      v0=np.random.default_rng(0).standard_normal(size),
      tol=tol,
      maxiter=100,
      return_eigenvectors=False,
    )

  def _smallest_eigenvalue(self) -> float:
    """Returns the smallest eigenvalue of the factorised unscaled Hessian."""
    if self.num_coefficients >= _MIN_SIZE_FOR_LANCZOS:
      # Lanczos on the inverse takes a second for p = 6000, a dense solver
      # twenty. `tol` bounds the relative error. With 0, an eigenvalue of
      # multiplicity 2 or more, as with duplicated features, never converges.
      with contextlib.suppress(sparse_linalg.ArpackError):
        return float(1.0 / self._lanczos(1, tol=1e-10)[0])
    (smallest,) = linalg.eigh(
      self._unscaled_hessian(),
      eigvals_only=True,
      subset_by_index=[0, 0],
      check_finite=False,
    )
    return float(smallest)
