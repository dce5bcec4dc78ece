"""Privacy plans: sampling, clipping, noise, and the epsilon they cost.

`PrivacyPlan`, `SeedStreams` and `algorithm_1_noise_stddev` need only numpy.
Accounting needs dp_accounting, which is imported on first use, so that an
engine can hold a plan on a machine without it.
"""

import importlib
from typing import TYPE_CHECKING

from pda_fed.privacy.closed_form import algorithm_1_noise_stddev
from pda_fed.privacy.plan import AdaptiveClipping
from pda_fed.privacy.plan import PrivacyPlan
from pda_fed.privacy.plan import round_up
from pda_fed.privacy.seeds import SeedStreams

if TYPE_CHECKING:
  from pda_fed.privacy.accounting import dp_event
  from pda_fed.privacy.accounting import epsilon
  from pda_fed.privacy.accounting import epsilon_curve
  from pda_fed.privacy.accounting import tightest_accountant
  from pda_fed.privacy.calibration import calibrate
  from pda_fed.privacy.calibration import max_rounds
  from pda_fed.privacy.calibration import tight_noise_stddev
  from pda_fed.privacy.search import PrivateSearch
  from pda_fed.privacy.search import search_epsilon

# Names that need dp_accounting, and the modules they come from.
_LAZY = {
  'PrivateSearch': 'search',
  'calibrate': 'calibration',
  'dp_event': 'accounting',
  'epsilon': 'accounting',
  'epsilon_curve': 'accounting',
  'max_rounds': 'calibration',
  'search_epsilon': 'search',
  'tight_noise_stddev': 'calibration',
  'tightest_accountant': 'accounting',
}

__all__ = [
  'AdaptiveClipping',
  'PrivacyPlan',
  'PrivateSearch',
  'SeedStreams',
  'algorithm_1_noise_stddev',
  'calibrate',
  'dp_event',
  'epsilon',
  'epsilon_curve',
  'max_rounds',
  'round_up',
  'search_epsilon',
  'tight_noise_stddev',
  'tightest_accountant',
]


def __getattr__(name: str):
  if name not in _LAZY:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module = importlib.import_module(f'pda_fed.privacy.{_LAZY[name]}')
  return getattr(module, name)
