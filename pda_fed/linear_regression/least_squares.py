"""Clipped mean gradients of least squares, for many runs at once.

The gradient of the loss 1/2 (<x, theta> - y)^2 of one sample is r x with the
residual r = <x, theta> - y. Its norm is |r| |x|, so clipping it to L (Algorithm
1 of the paper, arXiv:2112.00193) means clipping r to L / |x|. Per-sample
gradients are never formed: the mean of the clipped ones needs two products with
the sparse feature matrix, for a whole block of runs.
"""

from collections.abc import Callable
from typing import Any, Union

import numpy as np
from numpy import typing as npt
from scipy import sparse

# With a larger fraction of non-zeros, dense products are faster.
_DENSE_FROM = 0.08

# A function of thetas (p, columns), the step and clipping norms (columns,).
GradientFn = Callable[[np.ndarray, int, np.ndarray], np.ndarray]


def check_samples(
  features: Union[npt.ArrayLike, sparse.spmatrix],
  responses: npt.ArrayLike,
  dtype: npt.DTypeLike = np.float64,
) -> tuple[sparse.csr_matrix, np.ndarray]:
  """Checks samples and returns them as a CSR matrix and a vector.

  A response of a wrong shape, or a NaN, would affect the whole noised sum:
  clipping does not bound it.

  Args:
    features: X, an (n, p) array or SciPy sparse matrix.
    responses: The n responses y.
    dtype: Dtype of the result.

  Raises:
    ValueError: If there are no samples, if the shapes do not match or if a
      number is not finite.
  """
  matrix: Any = features
  if not sparse.issparse(matrix):
    matrix = np.asarray(matrix)
  if matrix.ndim != 2 or 0 in matrix.shape:
    raise ValueError(
      'features must be a matrix with at least one row and one column. Found'
      f' shape {matrix.shape}.'
    )
  features = sparse.csr_matrix(matrix, dtype=dtype)
  responses = np.asarray(responses, dtype)
  if responses.shape != features.shape[:1]:
    raise ValueError(
      f'responses must have the shape ({features.shape[0]},). Found'
      f' {responses.shape}.'
    )
  for name, values in (('features', features.data), ('responses', responses)):
    if not np.isfinite(values).all():
      raise ValueError(f'{name} must be finite. Found NaN or infinity.')
  return features, responses


class LeastSquares:
  """Private samples, with their clipped gradients and their loss.

  Example:

    >>> private = LeastSquares(np.eye(2), np.array([1.0, 3.0]))
    >>> private.mean_squared_error(np.zeros([2, 1]))
    array([5.])

  Attributes:
    num_samples: n, the number of samples.
    num_coefficients: p, the number of coefficients.
  """

  def __init__(
    self,
    features: Union[npt.ArrayLike, sparse.spmatrix],
    responses: npt.ArrayLike,
    *,
    dtype: npt.DTypeLike = np.float64,
  ):
    """Initializes the samples.

    Args:
      features: X, an (n, p) array or SciPy sparse matrix.
      responses: The n responses y.
      dtype: Dtype of products with the features. float32 takes half the time;
        its rounding error is far below any noise that gives privacy.

    Raises:
      ValueError: If there are no samples, if the shapes do not match or if a
        number is not finite.
    """
    features, self._responses = check_samples(features, responses, dtype)
    self._features = features
    self.num_samples, self.num_coefficients = features.shape
    # Always in float64: squares of small float32 values lose digits, and a norm
    # that is too small would clip too little.
    doubled = features.astype(np.float64)
    squares = np.asarray(doubled.multiply(doubled).sum(axis=1)).ravel()
    # A row of zeros has no gradient, whatever its residual. A row that is
    # nearly zero counts as zero: its norm is imprecise, or its bound would be
    # infinite.
    least = float(np.finfo(dtype).tiny)
    known = squares >= max(np.finfo(np.float64).tiny, least**2)
    norms = np.sqrt(np.where(known, squares, 1.0))
    self._bounds = np.where(known, 1.0 / norms, 0.0).astype(dtype)
    if features.nnz > _DENSE_FROM * np.prod(features.shape):
      self._features = features.toarray()

  def clipped_gradient(
    self, thetas: np.ndarray, clip_norms: npt.ArrayLike
  ) -> np.ndarray:
    """Returns the sum of the samples' clipped gradients.

    Args:
      thetas: A block of shape (p, columns).
      clip_norms: L, positive: one for all columns, or one for each.

    Returns:
      A block of the shape of `thetas`. Adding or removing one sample changes a
      column by at most its L.
    """
    features = self._features
    with np.errstate(over='ignore', invalid='ignore'):
      residuals = features @ thetas.astype(features.dtype, copy=False)
      residuals -= self._responses[:, None]
    bounds = self._bounds[:, None] * np.asarray(clip_norms, features.dtype)
    # Products of very large numbers may be infinite, and their differences NaN,
    # which clipping does not bound.
    residuals[np.isnan(residuals)] = 0
    np.clip(residuals, -bounds, bounds, out=residuals)
    return (features.T @ residuals).astype(np.float64, copy=False)

  def full_batch(self) -> GradientFn:
    """Returns the gradients of Algorithm 1: means over all samples."""

    def gradient(
      thetas: np.ndarray, step: int, clip_norms: np.ndarray
    ) -> np.ndarray:
      del step  # Always all samples.
      return self.clipped_gradient(thetas, clip_norms) / self.num_samples

    return gradient

  def mean_squared_error(self, thetas: np.ndarray) -> np.ndarray:
    """Returns the mean squared error of each column; it is not private."""
    residuals = self._features @ thetas.astype(self._features.dtype, copy=False)
    residuals -= self._responses[:, None]
    return np.mean(np.square(residuals, dtype=np.float64), axis=0)
