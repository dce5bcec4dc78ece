"""Semi-DP: public updates treated like private ones, with a constant weight.

"Optimal Differentially Private Model Training with Public Data" (Lowy et al.,
ICML 2024, arXiv:2306.15056): beta times the noised private mean plus 1 - beta
times the mean of public gradients, each clipped like a private one.
"""

import dataclasses

from pda_fed.common import validate
from pda_fed.methods import arrays
from pda_fed.methods import base


@dataclasses.dataclass(frozen=True, kw_only=True)
class SemiDp(base.Method):
  """Mixes in clipped public updates with a constant weight.

  Example:

    >>> import numpy as np
    >>> mean, public = (np.array([4.0]),), (np.array([8.0]),)
    >>> SemiDp(weight=0.75).after_noise(mean, public, t=0)[0][0].tolist()
    [5.0]

  Attributes:
    weight: beta, the weight of the noised private mean; 1 is a warm start.
  """

  name = 'semi_dp'
  title = 'Semi-DP'
  public = 'clipped_update'

  weight: float = base.setting(
    0.5, 'Weight of the noised private mean, in [0, 1].'
  )

  def __post_init__(self):
    validate.in_range(0, 1, semi_dp_weight=self.weight)

  def after_noise(self, mean, public, t):
    """See the base class."""
    del t
    return arrays.mix(mean, public, self.weight), {}
