"""Rounds with clients as a batch dimension, in JAX."""

from pda_fed.vectorized.aggregation import clip_by_norm
from pda_fed.vectorized.aggregation import clipped_sum
from pda_fed.vectorized.aggregation import ClippedSum
from pda_fed.vectorized.aggregation import ClippedUpdates
from pda_fed.vectorized.aggregation import noised_mean
from pda_fed.vectorized.aggregation import private_mean
from pda_fed.vectorized.chunks import chunk_clients
from pda_fed.vectorized.chunks import ClientChunks
from pda_fed.vectorized.federated import build_rounds
from pda_fed.vectorized.federated import FederatedSettings
from pda_fed.vectorized.federated import initial_state
from pda_fed.vectorized.federated import noise_key
from pda_fed.vectorized.federated import RoundInputs
from pda_fed.vectorized.federated import ServerState
from pda_fed.vectorized.federated import stack_rounds

__all__ = [
  'ClientChunks',
  'ClippedSum',
  'ClippedUpdates',
  'FederatedSettings',
  'RoundInputs',
  'ServerState',
  'build_rounds',
  'chunk_clients',
  'clip_by_norm',
  'clipped_sum',
  'initial_state',
  'noise_key',
  'noised_mean',
  'private_mean',
  'stack_rounds',
]
