"""One frozen plan for sampling, clipping, noise and the epsilon they cost.

`PrivacyPlan` and `SeedStreams` need numpy alone. Everything that accounts
needs dp_accounting, which is imported when it is first used, so that an engine
can hold a plan on a machine without it.
"""

from typing import TYPE_CHECKING

from pda_fed.privacy.plan import AdaptiveClipping
from pda_fed.privacy.plan import PrivacyPlan
from pda_fed.privacy.plan import round_up
from pda_fed.privacy.seeds import SeedStreams

if TYPE_CHECKING:
  from pda_fed.privacy.accounting import algorithm_1_noise_stddev
  from pda_fed.privacy.accounting import calibrate
  from pda_fed.privacy.accounting import dp_event
  from pda_fed.privacy.accounting import epsilon
  from pda_fed.privacy.accounting import epsilon_curve
  from pda_fed.privacy.accounting import max_rounds
  from pda_fed.privacy.accounting import tight_noise_stddev

_ACCOUNTING = (
  'algorithm_1_noise_stddev',
  'calibrate',
  'dp_event',
  'epsilon',
  'epsilon_curve',
  'max_rounds',
  'tight_noise_stddev',
)

__all__ = [
  'AdaptiveClipping',
  'PrivacyPlan',
  'SeedStreams',
  'algorithm_1_noise_stddev',
  'calibrate',
  'dp_event',
  'epsilon',
  'epsilon_curve',
  'max_rounds',
  'round_up',
  'tight_noise_stddev',
]


def __getattr__(name: str):
  if name in _ACCOUNTING:
    from pda_fed.privacy import accounting

    return getattr(accounting, name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
