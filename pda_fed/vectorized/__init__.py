"""Rounds with clients as a batch dimension, in JAX."""

from pda_fed.vectorized.aggregation import clip_by_norm
from pda_fed.vectorized.aggregation import ClippedUpdates
from pda_fed.vectorized.aggregation import private_mean

__all__ = [
  'ClippedUpdates',
  'clip_by_norm',
  'private_mean',
]
