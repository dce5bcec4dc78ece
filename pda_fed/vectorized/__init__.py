"""Rounds with clients, or examples, as a batch dimension, in JAX."""

from pda_fed.vectorized.aggregation import clipped_sum
from pda_fed.vectorized.aggregation import ClippedSum
from pda_fed.vectorized.aggregation import noised_mean
from pda_fed.vectorized.aggregation import private_mean
from pda_fed.vectorized.chunks import chunk_clients
from pda_fed.vectorized.chunks import chunk_rounds
from pda_fed.vectorized.chunks import ClientChunks
from pda_fed.vectorized.chunks import one_batch
from pda_fed.vectorized.clipping import clip_by_norm
from pda_fed.vectorized.clipping import ClippedUpdates
from pda_fed.vectorized.errors import DeviceError
from pda_fed.vectorized.errors import DivergenceError
from pda_fed.vectorized.evaluation import evaluate
from pda_fed.vectorized.federated import build_rounds
from pda_fed.vectorized.federated import FederatedSettings
from pda_fed.vectorized.federated import initial_state
from pda_fed.vectorized.federated import noise_key
from pda_fed.vectorized.federated import RoundInputs
from pda_fed.vectorized.federated import ServerState
from pda_fed.vectorized.federated import stack_rounds
from pda_fed.vectorized.pretraining import pretrain
from pda_fed.vectorized.public_update import draw_rows
from pda_fed.vectorized.public_update import draw_users
from pda_fed.vectorized.sample_batches import draw_batches
from pda_fed.vectorized.sample_batches import ExampleArrays
from pda_fed.vectorized.sample_batches import StepInputs
from pda_fed.vectorized.sample_batches import TrainingArrays
from pda_fed.vectorized.sample_level import SampleState
from pda_fed.vectorized.sample_level import SampleTrainer
from pda_fed.vectorized.sample_settings import SampleLevelSettings

__all__ = [
  'ClientChunks',
  'ClippedSum',
  'ClippedUpdates',
  'DeviceError',
  'DivergenceError',
  'ExampleArrays',
  'FederatedSettings',
  'RoundInputs',
  'SampleLevelSettings',
  'SampleState',
  'SampleTrainer',
  'ServerState',
  'StepInputs',
  'TrainingArrays',
  'build_rounds',
  'chunk_clients',
  'chunk_rounds',
  'clip_by_norm',
  'clipped_sum',
  'draw_batches',
  'draw_rows',
  'draw_users',
  'evaluate',
  'initial_state',
  'noise_key',
  'noised_mean',
  'one_batch',
  'pretrain',
  'private_mean',
  'stack_rounds',
]
