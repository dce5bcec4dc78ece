"""Experiments: settings, the training loop, engines, outputs.

This package imports TensorFlow, TFF, JAX and dp_accounting only when it opens
an engine or computes an epsilon.
"""

from pda_fed.experiments.config import FederatedConfig
from pda_fed.experiments.config import Pretraining
from pda_fed.experiments.config import RunConfig
from pda_fed.experiments.engines import Engine
from pda_fed.experiments.engines import ENGINES
from pda_fed.experiments.engines import open_engine
from pda_fed.experiments.engines.stores import data_hash
from pda_fed.experiments.errors import AuditError
from pda_fed.experiments.errors import CheckpointError
from pda_fed.experiments.errors import EngineError
from pda_fed.experiments.errors import OutputError
from pda_fed.experiments.loading import load_model
from pda_fed.experiments.outputs import RunFolder
from pda_fed.experiments.progress import create_progress
from pda_fed.experiments.released_model import ReleasedModel
from pda_fed.experiments.sample_level_config import SampleLevelConfig
from pda_fed.experiments.sample_level_config import SampleLevelPretraining
from pda_fed.experiments.sample_level_config import TaskDefaults
from pda_fed.experiments.sample_level_config import TASKS
from pda_fed.experiments.training import train

__all__ = [
  'ENGINES',
  'TASKS',
  'SampleLevelConfig',
  'SampleLevelPretraining',
  'AuditError',
  'CheckpointError',
  'Engine',
  'EngineError',
  'FederatedConfig',
  'OutputError',
  'Pretraining',
  'ReleasedModel',
  'RunConfig',
  'RunFolder',
  'TaskDefaults',
  'create_progress',
  'data_hash',
  'load_model',
  'open_engine',
  'train',
]
