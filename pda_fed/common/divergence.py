"""When the local training of a client counts as diverged.

A learning rate that is too high for a client's data makes its loss grow from
batch to batch. Its update is then clipped garbage, which takes part in the sum
like any other: only a count shows it. The rule is the same in all engines.
"""

from typing import Any

# Mean loss of a client's batches over the loss of its first batch, or over 1.
_LOSS_GROWTH = 2.0
# Norm of a client's update over that of the weights, or over the clip.
_NORM_GROWTH = 10.0


def has_diverged(
  first_loss: Any, mean_loss: Any, norm: Any, weights_norm: Any, clip_norm: Any
) -> Any:
  """Returns whether local training left what is reasonable.

  A client has diverged if its mean loss is above twice the loss of its first
  batch (and above 2), if its update is ten times as long as all weights of the
  model (and as the clip), or if either is not a number.

  Example:

    >>> import numpy as np
    >>> losses = np.array([4.0, 40.0, np.nan])
    >>> has_diverged(np.full(3, 5.0), losses, np.ones(3), 9.0, 0.3).tolist()
    [False, True, True]

  Args:
    first_loss: The loss of the first batch, an array of numpy, JAX or TF.
    mean_loss: The mean loss of all batches, each at the weights it met.
    norm: The norm of the update.
    weights_norm: The norm of the weights that training started from.
    clip_norm: The clip of private updates.
  """
  # Not `>`: a comparison with NaN is false.
  in_bounds = mean_loss <= _LOSS_GROWTH * first_loss
  in_bounds |= mean_loss <= _LOSS_GROWTH
  is_short = norm <= _NORM_GROWTH * weights_norm
  is_short |= norm <= _NORM_GROWTH * clip_norm
  return ~(in_bounds & is_short)
