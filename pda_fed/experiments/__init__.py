"""Experiments: settings, one training loop, comparison, sweep, report.

Nothing here imports TensorFlow, TFF, JAX or dp_accounting until an engine is
opened or an epsilon is asked for.
"""

from pda_fed.experiments.central_config import CentralConfig
from pda_fed.experiments.central_config import CentralPretraining
from pda_fed.experiments.central_config import TaskDefaults
from pda_fed.experiments.central_config import TASKS
from pda_fed.experiments.config import FederatedConfig
from pda_fed.experiments.config import Method
from pda_fed.experiments.config import METHODS
from pda_fed.experiments.config import Pretraining
from pda_fed.experiments.config import RunConfig
from pda_fed.experiments.engine import Engine
from pda_fed.experiments.engines import ENGINES
from pda_fed.experiments.engines import open_engine
from pda_fed.experiments.errors import CheckpointError
from pda_fed.experiments.errors import EngineError
from pda_fed.experiments.errors import OutputError
from pda_fed.experiments.loop import train
from pda_fed.experiments.outputs import RunFolder
from pda_fed.experiments.progress import create_progress

__all__ = [
  'ENGINES',
  'METHODS',
  'TASKS',
  'CentralConfig',
  'CentralPretraining',
  'CheckpointError',
  'Engine',
  'EngineError',
  'FederatedConfig',
  'Method',
  'OutputError',
  'Pretraining',
  'RunConfig',
  'RunFolder',
  'TaskDefaults',
  'create_progress',
  'open_engine',
  'train',
]
