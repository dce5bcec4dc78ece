"""Privacy plans: sampling, clipping, noise, and the epsilon they cost.

Only what computes an epsilon needs dp_accounting, which is imported on first
use, so that an engine can hold a plan on a machine without it.
"""

import importlib
from typing import TYPE_CHECKING

from pda_fed.privacy.adaptive import AdaptiveClipping
from pda_fed.privacy.closed_form import algorithm_1_noise_stddev
from pda_fed.privacy.cohorts import Cohort
from pda_fed.privacy.plan import PrivacyPlan
from pda_fed.privacy.seeds import ReusedNoiseError
from pda_fed.privacy.seeds import SeedStreams
from pda_fed.privacy.words import round_up

if TYPE_CHECKING:
  from pda_fed.privacy.accounting import dp_event
  from pda_fed.privacy.search import PrivateSearch
  from pda_fed.privacy.search import search_epsilon

# Names that need dp_accounting, and the modules they come from.
_LAZY = {
  'PrivateSearch': 'search',
  'dp_event': 'accounting',
  'search_epsilon': 'search',
}

__all__ = [
  'AdaptiveClipping',
  'Cohort',
  'PrivacyPlan',
  'PrivateSearch',
  'ReusedNoiseError',
  'SeedStreams',
  'algorithm_1_noise_stddev',
  'dp_event',
  'round_up',
  'search_epsilon',
]


def __getattr__(name: str):
  if name not in _LAZY:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module = importlib.import_module(f'pda_fed.privacy.{_LAZY[name]}')
  return getattr(module, name)
