"""DOPE-SGD: clip around the public update instead of around zero.

"Effectively Using Public Data in Privacy Preserving Machine Learning" (Nasr et
al., ICML 2023): the difference between a user's update and the public update is
clipped, and the public update is added back after the noise,

    g_pub + (sum_i clip(g_i - g_pub) + b) / qN.

Users whose updates agree with public data then lose less to clipping. The
sensitivity is still the clipping norm. The paper's augmentation and ensembles
are not included.
"""

import dataclasses

from pda_fed.methods import base


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dope(base.Method):
  """Clips the difference to the public update.

  Example:

    >>> import numpy as np
    >>> Dope().before_clip((np.array([5.0]),), (np.array([3.0]),))[0].tolist()
    [2.0]
  """

  name = 'dope'
  title = 'DOPE-SGD'
  public = 'update'

  def before_clip(self, update, public):
    """See the base class."""
    return tuple(u - p for u, p in zip(update, public, strict=True))

  def after_noise(self, mean, public, t):
    """See the base class."""
    del t
    return tuple(m + p for m, p in zip(mean, public, strict=True)), {}
