"""Federated learning processes in TFF."""

from pda_fed.learning.aggregators import build_dp_aggregator
from pda_fed.learning.evaluation import FederatedEvaluator
from pda_fed.learning.model_fns import build_model_fn
from pda_fed.learning.model_fns import make_dataset
from pda_fed.learning.pretraining import pretrain
from pda_fed.learning.pretraining import Pretrained
from pda_fed.learning.pretraining import PretrainingConfig
from pda_fed.learning.processes import build_dp_fedavg
from pda_fed.learning.processes import build_learning_process
from pda_fed.learning.processes import build_pda_dpmd
from pda_fed.learning.public_update import PublicData
from pda_fed.learning.public_update import PublicUpdate
from pda_fed.learning.synthetic_stackoverflow import (
  load_synthetic_stackoverflow,
)
from pda_fed.learning.synthetic_stackoverflow import SyntheticUsers

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
  'build_pda_dpmd',
  'load_synthetic_stackoverflow',
  'make_dataset',
  'pretrain',
]
