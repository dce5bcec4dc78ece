"""Federated learning processes in TFF."""

from pda_fed.learning.aggregators import build_dp_aggregator
from pda_fed.learning.dp_fedavg import build_dp_fedavg
from pda_fed.learning.next_word import build_model_fn
from pda_fed.learning.next_word import make_dataset
from pda_fed.learning.synthetic_stackoverflow import (
  load_synthetic_stackoverflow,
)
from pda_fed.learning.synthetic_stackoverflow import SyntheticUsers

__all__ = [
  'SyntheticUsers',
  'build_dp_aggregator',
  'build_dp_fedavg',
  'build_model_fn',
  'load_synthetic_stackoverflow',
  'make_dataset',
]
