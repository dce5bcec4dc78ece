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
  features: Union[npt.ArrayLike, sparse.spmatrix], responses: npt.ArrayLike
) -> tuple[Union[np.ndarray, sparse.csr_matrix], np.ndarray]:
  """Returns samples in float64, as new arrays or a CSR matrix, or raises.

  A response of a wrong shape, or a NaN, would affect the whole noised sum:
  clipping does not bound it.

  Args:
    features: X, an (n, p) array or SciPy sparse matrix.
    responses: The n responses y.

  Raises:
    TypeError: If the features or the responses are not real numbers.
    ValueError: If there are no samples, if the shapes do not match or if a
      number is not finite.
  """
  matrix: Any = features
  is_sparse = sparse.issparse(matrix)
  matrix = sparse.csr_matrix(matrix) if is_sparse else np.asarray(matrix)
  if matrix.ndim != 2 or 0 in matrix.shape:
    raise ValueError(
      'features must be a matrix with at least one row and one column. Found'
      f' shape {matrix.shape}.'
    )
  check_numbers('features', matrix.data if is_sparse else matrix)
  responses = np.asarray(responses)
  if responses.shape != matrix.shape[:1]:
    raise ValueError(
      f'responses must have the shape ({matrix.shape[0]},). Found'
      f' {responses.shape}.'
    )
  check_numbers('responses', responses)
  return matrix.astype(np.float64), responses.astype(np.float64)


def check_numbers(name: str, values: np.ndarray) -> None:
  """Raises unless an array has finite real numbers."""
  if values.dtype.kind not in 'iuf':
    raise TypeError(f'{name} must be real numbers. Found dtype {values.dtype}.')
  if not np.isfinite(values).all():
    raise ValueError(f'{name} must be finite. Found NaN or infinity.')


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
    checked, responses = check_samples(features, responses)
    self._features = sparse.csr_matrix(checked, dtype=dtype)
    self._responses = responses.astype(dtype)
    check_numbers('features', self._features.data)  # In float32, too.
    check_numbers('responses', self._responses)
    self.num_samples, self.num_coefficients = checked.shape
    # Always in float64: squares of small float32 values lose digits, and a norm
    # that is too small would clip too little.
    doubled = self._features.astype(np.float64)
    squares = np.asarray(doubled.multiply(doubled).sum(axis=1)).ravel()
    # A row of zeros has no gradient, whatever its residual. A row that is
    # nearly zero counts as zero: its norm is imprecise, or its bound would be
    # infinite.
    least = float(np.finfo(dtype).tiny)
    known = squares >= max(np.finfo(np.float64).tiny, least**2)
    norms = np.sqrt(np.where(known, squares, 1.0))
    self._bounds = np.where(known, 1.0 / norms, 0.0).astype(dtype)
    if self._features.nnz > _DENSE_FROM * np.prod(checked.shape):
      self._features = self._features.toarray()

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
    return lambda thetas, step, clip_norms: (
      self.clipped_gradient(thetas, clip_norms) / self.num_samples
    )

  def mean_squared_error(self, thetas: np.ndarray) -> np.ndarray:
    """Returns the mean squared error of each column; it is not private."""
    residuals = self._features @ thetas.astype(self._features.dtype, copy=False)
    residuals -= self._responses[:, None]
    return np.mean(np.square(residuals, dtype=np.float64), axis=0)
