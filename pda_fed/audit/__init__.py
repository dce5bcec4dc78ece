"""Privacy audits: measures with canaries how much a run leaks.

`Canaries` defines the canaries and their updates, `Auditor` follows a run, and
`estimators` turns scores into an epsilon.
"""

from pda_fed.audit.auditor import Auditor
from pda_fed.audit.auditor import AuditReport
from pda_fed.audit.auditor import View
from pda_fed.audit.canaries import Canaries
from pda_fed.audit.canaries import check_count
from pda_fed.audit.canaries import Directions
from pda_fed.audit.canaries import usual_count
from pda_fed.audit.estimators import gaussian_epsilon
from pda_fed.audit.estimators import one_run_bound
from pda_fed.audit.estimators import one_shot_estimate
from pda_fed.audit.estimators import rates_bound
from pda_fed.audit.words import describe
from pda_fed.audit.words import is_violated
from pda_fed.audit.words import violation

__all__ = [
  'AuditReport',
  'Auditor',
  'Canaries',
  'Directions',
  'View',
  'check_count',
  'describe',
  'gaussian_epsilon',
  'is_violated',
  'one_run_bound',
  'one_shot_estimate',
  'rates_bound',
  'usual_count',
  'violation',
]
