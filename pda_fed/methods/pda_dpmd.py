"""PDA-DPMD: the mirror step, a public update mixed into the noised mean.

"Public Data-Assisted Mirror Descent for Private Model Training" (Amid et al.,
ICML 2022, arXiv:2112.00193), equation (3), its first-order mirror step:

    theta_{t+1} = theta_t - eta (alpha_t (g_t + b_t)
                                 + (1 - alpha_t) grad Psi(theta_t)).
"""

import dataclasses

from pda_fed import schedules
from pda_fed.common import validate
from pda_fed.methods import arrays
from pda_fed.methods import base


@dataclasses.dataclass(frozen=True, kw_only=True)
class PdaDpmd(base.Method):
  """Mixes updates with a private weight alpha_t that falls from 1 towards 0.

  Example:

    >>> method = PdaDpmd(alpha=schedules.constant(0.25))
    >>> import numpy as np
    >>> mean, public = (np.array([4.0]),), (np.array([8.0]),)
    >>> method.after_noise(mean, public, t=0)[0][0].tolist()
    [7.0]

  Attributes:
    alpha: alpha_t, the weight of the noised private mean: any function of t.
  """

  name = 'pda'
  title = 'PDA-DPMD'
  public = 'update'

  alpha: schedules.Schedule

  def __post_init__(self):
    validate.instances(schedules.Schedule, alpha=self.alpha)

  def after_noise(self, mean, public, t):
    """Takes the mirror step of equation (3); see the base class."""
    alpha = self.alpha(t)
    return arrays.mix(mean, public, alpha), {'alpha': alpha}
