"""Federated learning processes in TFF, and the runtime that executes them.

Importing this package makes TFF importable, so import it before
`tensorflow_federated`.
"""

from pda_fed.tff import _imports

_imports.install()

# isort: split

from pda_fed.tff.aggregators import build_dp_aggregator
from pda_fed.tff.evaluation import FederatedEvaluator
from pda_fed.tff.model_fns import build_model_fn
from pda_fed.tff.model_fns import make_dataset
from pda_fed.tff.optimizers import build_optimizer
from pda_fed.tff.pretraining import pretrain
from pda_fed.tff.pretraining import Pretrained
from pda_fed.tff.pretraining import PretrainingConfig
from pda_fed.tff.processes import build_dp_fedavg
from pda_fed.tff.processes import build_learning_process
from pda_fed.tff.processes import build_pda_dpmd
from pda_fed.tff.public_update import PublicData
from pda_fed.tff.public_update import PublicUpdate
from pda_fed.tff.synthetic_stackoverflow import load_synthetic_stackoverflow
from pda_fed.tff.synthetic_stackoverflow import SyntheticUsers

__all__ = [
  'FederatedEvaluator',
  'Pretrained',
  'PretrainingConfig',
  'PublicData',
  'PublicUpdate',
  'SyntheticUsers',
  'build_dp_aggregator',
  'build_dp_fedavg',
  'build_learning_process',
  'build_model_fn',
  'build_optimizer',
  'build_pda_dpmd',
  'load_synthetic_stackoverflow',
  'make_dataset',
  'pretrain',
]
