"""Training rounds in JAX, with clients or examples as a batch dimension."""

from pda_fed.jax.aggregation import clipped_sum
from pda_fed.jax.aggregation import ClippedSum
from pda_fed.jax.aggregation import noised_mean
from pda_fed.jax.canaries import CanaryInputs
from pda_fed.jax.canaries import CanarySettings
from pda_fed.jax.canaries import stack_cohorts
from pda_fed.jax.clipping import clip_by_norm
from pda_fed.jax.clipping import ClippedUpdates
from pda_fed.jax.devices import DeviceError
from pda_fed.jax.federated.chunks import chunk_clients
from pda_fed.jax.federated.chunks import chunk_rounds
from pda_fed.jax.federated.chunks import chunk_users
from pda_fed.jax.federated.chunks import ClientChunks
from pda_fed.jax.federated.chunks import RoundInputs
from pda_fed.jax.federated.evaluation import evaluate
from pda_fed.jax.federated.pretraining import pretrain
from pda_fed.jax.federated.training import Federated
from pda_fed.jax.optimizers import build_optimizer
from pda_fed.jax.rounds import draw_rows
from pda_fed.jax.rounds import draw_users
from pda_fed.jax.rounds import noise_key
from pda_fed.jax.rounds import stack_rounds
from pda_fed.jax.sample_level.batches import draw_batches
from pda_fed.jax.sample_level.batches import ExampleArrays
from pda_fed.jax.sample_level.batches import StepInputs
from pda_fed.jax.sample_level.batches import TrainingArrays
from pda_fed.jax.sample_level.settings import SampleLevelSettings
from pda_fed.jax.sample_level.training import SampleTrainer
from pda_fed.jax.server_round import ServerState

__all__ = [
  'CanaryInputs',
  'CanarySettings',
  'ClientChunks',
  'ClippedSum',
  'ClippedUpdates',
  'DeviceError',
  'ExampleArrays',
  'Federated',
  'RoundInputs',
  'SampleLevelSettings',
  'SampleTrainer',
  'ServerState',
  'StepInputs',
  'TrainingArrays',
  'build_optimizer',
  'chunk_clients',
  'chunk_rounds',
  'chunk_users',
  'clip_by_norm',
  'clipped_sum',
  'draw_batches',
  'draw_rows',
  'draw_users',
  'evaluate',
  'noise_key',
  'noised_mean',
  'pretrain',
  'stack_cohorts',
  'stack_rounds',
]
