"""Engines compute the rounds of a run: TFF and JAX, federated and sample level.

See `base.Engine`.
"""

from pda_fed.runs.engines.base import Engine
from pda_fed.runs.engines.registry import open_engine

__all__ = ['Engine', 'open_engine']
