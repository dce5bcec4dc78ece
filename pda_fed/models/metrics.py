"""Metrics that engines share."""

import math

# exp of more than this overflows float64.
_MAX_LOSS = 709.0


def perplexity(loss: float) -> float:
  """Returns exp(loss), or infinity if that overflows.

  Args:
    loss: Cross-entropy per token, in nats.
  """
  return math.inf if loss > _MAX_LOSS else math.exp(loss)
