"""Cold start: DP-FedAvg or DP-SGD on private data only.

"Learning Differentially Private Recurrent Language Models" (McMahan et al.,
ICLR 2018, arXiv:1710.06963); "Deep Learning with Differential Privacy" (Abadi
et al., CCS 2016, arXiv:1607.00133).
"""

import dataclasses

from pda_fed.methods import base


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColdStart(base.Method):
  """Starts from random weights and uses no public data.

  Example:

    >>> ColdStart().warm_start
    False
  """

  name = 'cold'
  title = 'cold start'
  warm_start = False
