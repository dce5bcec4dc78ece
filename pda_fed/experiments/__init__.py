"""Experiments: settings, loops, tables."""

from pda_fed.experiments.federated import Evaluation
from pda_fed.experiments.federated import FederatedConfig
from pda_fed.experiments.federated import FederatedResult
from pda_fed.experiments.federated import run_federated
from pda_fed.tables import format_table

__all__ = [
  'Evaluation',
  'FederatedConfig',
  'FederatedResult',
  'format_table',
  'run_federated',
]
