"""Decides whether a client's local training diverged.

If the learning rate is too high for a client's data, its loss grows from batch
to batch. Its clipped update is then garbage, but enters the sum like any other:
only a count of such clients reveals it. All engines use the same rule.
"""

from typing import Any

# Largest ratio of a client's mean loss to the loss of its first batch, or to 1.
_LOSS_GROWTH = 2.0
# Largest ratio of an update's norm to the weights' norm, or to the clip norm.
_NORM_GROWTH = 10.0


def has_diverged(
  first_loss: Any, mean_loss: Any, norm: Any, weights_norm: Any, clip_norm: Any
) -> Any:
  """Returns whether local training diverged, for each client.

  A client has diverged if its mean loss is more than twice the loss of its
  first batch (and more than 2), if the norm of its update is more than ten
  times that of the model's weights (and of the clip norm), or if either is NaN.

  Example:

    >>> import numpy as np
    >>> losses = np.array([4.0, 40.0, np.nan])
    >>> has_diverged(np.full(3, 5.0), losses, np.ones(3), 9.0, 0.3).tolist()
    [False, True, True]

  Args:
    first_loss: The loss of the first batch: a numpy, JAX or TF array.
    mean_loss: The mean loss of all batches, each before its own step.
    norm: The norm of the update.
    weights_norm: The norm of the weights at the start of local training.
    clip_norm: The clip norm of private updates.
  """
  # Not `>`: a comparison with NaN is false.
  in_bounds = mean_loss <= _LOSS_GROWTH * first_loss
  in_bounds |= mean_loss <= _LOSS_GROWTH
  is_short = norm <= _NORM_GROWTH * weights_norm
  is_short |= norm <= _NORM_GROWTH * clip_norm
  return ~(in_bounds & is_short)
