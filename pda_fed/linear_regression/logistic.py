"""Multinomial logistic regression: a mirror map without a closed form.

This goes beyond the paper (arXiv:2112.00193), whose exact mirror step is only
for quadratic public losses. Coefficients are a vector of d k numbers, a
flattened (d, k) matrix for d features and k classes.

The gradient of a sample is the outer product of its features x and its error
e = softmax(x theta) - onehot(y). Its norm is |x| |e|: as in `least_squares`,
clipping does not need per-sample gradients.
"""

import numpy as np
from numpy import typing as npt
from pda_fed.common import validate
from pda_fed.linear_regression import least_squares
from pda_fed.linear_regression import mirror_maps
from scipy import special


class LogisticRegression:
  """Samples with labels, their loss, gradients and clipped gradients.

  Example:

    >>> problem = LogisticRegression(np.eye(2), [0, 1], num_classes=2)
    >>> round(problem.loss(np.zeros(4)), 3)  # log 2
    0.693

  Attributes:
    num_samples: n, the number of samples.
    num_coefficients: d k, the number of coefficients.
  """

  def __init__(
    self, features: npt.ArrayLike, labels: npt.ArrayLike, num_classes: int
  ):
    """Initializes the samples.

    Args:
      features: An (n, d) array.
      labels: n integers from 0 to k - 1.
      num_classes: k, at least 2.

    Raises:
      ValueError: If shapes do not match or a number is out of range.
    """
    validate.integers(2, num_classes=num_classes)
    self._features = np.array(features, np.float64)
    self._labels = np.array(labels)
    shape = self._features.shape
    if len(shape) != 2 or self._labels.shape != shape[:1]:
      raise ValueError(
        'features must be a matrix with a row for each label. Found shapes'
        f' {shape} and {self._labels.shape}.'
      )
    if not np.isfinite(self._features).all():
      raise ValueError('features must be finite. Found NaN or infinity.')
    low, high = self._labels.min(), self._labels.max()
    if self._labels.dtype.kind not in 'iu' or low < 0 or high >= num_classes:
      raise ValueError(
        f'labels must be integers from 0 to {num_classes - 1}. Found'
        f' {self._labels.dtype} from {low} to {high}.'
      )
    self.num_samples, num_features = self._features.shape
    self._shape = num_features, num_classes
    self.num_coefficients = num_features * num_classes
    self._onehot = np.eye(num_classes)[self._labels]
    self._norms = np.linalg.norm(self._features, axis=1)

  def loss(self, theta: np.ndarray) -> float:
    """Returns the mean cross-entropy."""
    logits = self._features @ theta.reshape(self._shape)
    chosen = np.einsum('ij,ij->i', logits, self._onehot)
    return float(np.mean(special.logsumexp(logits, axis=1) - chosen))

  def gradient(self, theta: np.ndarray) -> np.ndarray:
    """Returns the gradient of `loss`."""
    return (self._features.T @ self._errors(theta)).ravel() / self.num_samples

  def accuracy(self, theta: np.ndarray) -> float:
    """Returns the fraction of samples that are classified correctly."""
    logits = self._features @ theta.reshape(self._shape)
    return float(np.mean(logits.argmax(axis=1) == self._labels))

  def clipped_gradient(
    self, thetas: np.ndarray, clip_norms: npt.ArrayLike
  ) -> np.ndarray:
    """Returns the sum of the samples' clipped gradients.

    Args:
      thetas: A block of shape (d k, columns).
      clip_norms: L, positive: one for all columns, or one for each.

    Returns:
      A block of the shape of `thetas`. Adding or removing one sample changes a
      column by at most its L.
    """
    clip_norms = np.broadcast_to(clip_norms, thetas.shape[1])
    return np.stack(
      [
        self._clipped(theta, clip_norm)
        for theta, clip_norm in zip(thetas.T, clip_norms, strict=True)
      ],
      axis=1,
    )

  def full_batch(self) -> least_squares.GradientFn:
    """Returns the gradients of Algorithm 1: means over all samples."""

    def gradient(
      thetas: np.ndarray, step: int, clip_norms: np.ndarray
    ) -> np.ndarray:
      del step  # Always all samples.
      return self.clipped_gradient(thetas, clip_norms) / self.num_samples

    return gradient

  def mirror_map(
    self, regularization: float, **settings
  ) -> mirror_maps.SmoothMirrorMap:
    """Returns the loss plus r/2 |theta|^2 as Psi.

    Args:
      regularization: r, positive, because the loss alone is not strictly
        convex.
      **settings: Options of `SmoothMirrorMap`.

    Raises:
      ValueError: If `regularization` is not positive.
    """
    validate.positive(regularization=regularization)
    return mirror_maps.SmoothMirrorMap(
      lambda theta: self.loss(theta) + regularization * (theta @ theta) / 2,
      lambda theta: self.gradient(theta) + regularization * theta,
      num_coefficients=self.num_coefficients,
      **settings,
    )

  def _errors(self, theta: np.ndarray) -> np.ndarray:
    logits = self._features @ theta.reshape(self._shape)
    return special.softmax(logits, axis=1) - self._onehot

  def _clipped(self, theta: np.ndarray, clip_norm: float) -> np.ndarray:
    errors = self._errors(theta)
    norms = self._norms * np.linalg.norm(errors, axis=1)
    errors *= (clip_norm / np.maximum(norms, clip_norm))[:, None]
    return (self._features.T @ errors).ravel()
