"""One frozen plan for sampling, clipping, noise and the epsilon they cost.

`PrivacyPlan` needs numpy alone. `epsilon` and `dp_event` need dp_accounting,
which is imported when they are first used, so that an engine can hold a plan
on a machine without it.
"""

from typing import TYPE_CHECKING

from pda_fed.privacy.plan import PrivacyPlan

if TYPE_CHECKING:
  from pda_fed.privacy.accounting import dp_event
  from pda_fed.privacy.accounting import epsilon

__all__ = ['PrivacyPlan', 'dp_event', 'epsilon']


def __getattr__(name: str):
  if name in ('dp_event', 'epsilon'):
    from pda_fed.privacy import accounting

    return getattr(accounting, name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
