"""Experiments: settings, the training loop, engines, outputs.

This package imports TensorFlow, TFF, JAX and dp_accounting only when it opens
an engine or computes an epsilon.
"""

from pda_fed.runs.config import FederatedConfig
from pda_fed.runs.config import Pretraining
from pda_fed.runs.config import RunConfig
from pda_fed.runs.engines import Engine
from pda_fed.runs.engines import ENGINES
from pda_fed.runs.engines import open_engine
from pda_fed.runs.engines.stores import data_hash
from pda_fed.runs.errors import AuditError
from pda_fed.runs.errors import CheckpointError
from pda_fed.runs.errors import EngineError
from pda_fed.runs.errors import OutputError
from pda_fed.runs.loading import load_model
from pda_fed.runs.outputs import RunFolder
from pda_fed.runs.progress import create_progress
from pda_fed.runs.released_model import ReleasedModel
from pda_fed.runs.sample_level_config import SampleLevelConfig
from pda_fed.runs.sample_level_config import SampleLevelPretraining
from pda_fed.runs.sample_level_config import TaskDefaults
from pda_fed.runs.sample_level_config import TASKS
from pda_fed.runs.training import train

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
