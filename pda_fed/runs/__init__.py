"""Experiments: settings, the training loop, engines, outputs.

This package imports TensorFlow, TFF, JAX and dp_accounting only when it opens
an engine or computes an epsilon.
"""

from pda_fed.errors import AuditError
from pda_fed.errors import CheckpointError
from pda_fed.errors import EngineError
from pda_fed.errors import OutputError
from pda_fed.runs.callbacks.progress import Progress
from pda_fed.runs.engines import Engine
from pda_fed.runs.engines import open_engine
from pda_fed.runs.model_files import load_model
from pda_fed.runs.outputs import RunFolder
from pda_fed.runs.records import Recorded
from pda_fed.runs.released_model import ReleasedModel
from pda_fed.runs.resolving import resolve
from pda_fed.runs.resolving import Run
from pda_fed.runs.spec import RunSpec
from pda_fed.runs.training import train

__all__ = [
  'AuditError',
  'CheckpointError',
  'Engine',
  'EngineError',
  'OutputError',
  'Progress',
  'Recorded',
  'ReleasedModel',
  'Run',
  'RunFolder',
  'RunSpec',
  'load_model',
  'open_engine',
  'resolve',
  'train',
]
