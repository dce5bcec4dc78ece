"""What computes the rounds of a run: TFF, JAX federated, JAX sample level."""

from pda_fed.experiments.engines.base import Engine
from pda_fed.experiments.engines.registry import ENGINES
from pda_fed.experiments.engines.registry import open_engine

__all__ = ['ENGINES', 'Engine', 'open_engine']
