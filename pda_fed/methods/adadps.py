"""AdaDPS: precondition with public second moments before clipping.

"Private Adaptive Optimization with Side Information" (Li et al., ICML 2022,
arXiv:2202.05963): clip(g_i / A) plus noise, where A is the root of a running
mean of squared public updates. Coordinates with small gradients then count as
much in the norm as those with large ones.

A is scaled to a root mean square of 1, so that the clipping norm and the
learning rate keep their meaning. The paper absorbs the scale in the clipping
norm.
"""

import dataclasses

from pda_fed.common import validate
from pda_fed.methods import arrays
from pda_fed.methods import base


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaDps(base.Method):
  """Divides updates by the root of public second moments.

  Example:

    >>> import numpy as np
    >>> method = AdaDps(epsilon=0.0, decay=0.0)
    >>> public = (np.array([1.0, 7.0]),)
    >>> scales, _ = method.prepare_public(public, (np.zeros(2),))
    >>> scales[0].tolist()
    [0.2, 1.4]

  Attributes:
    decay: Decay of the running mean of squares, in [0, 1).
    epsilon: Constant added to A, relative to A's root mean square. A coordinate
      that is always 0 in public updates is divided by about this.
    multiply_back: Whether the noised mean is multiplied by A again. If not, it
      is the step of an adaptive optimizer, as in the paper.
  """

  name = 'adadps'
  title = 'AdaDPS'
  public = 'update'

  decay: float = base.setting(0.9, 'Decay of the mean of squares, in [0, 1).')
  epsilon: float = base.setting(
    0.3, 'Constant added to A, relative to its root mean square.'
  )
  multiply_back: bool = base.setting(
    False, 'Whether the noised mean is multiplied by A again.'
  )

  def __post_init__(self):
    validate.non_negative(adadps_decay=self.decay, adadps_epsilon=self.epsilon)
    if self.decay >= 1:
      raise ValueError(f'adadps_decay must be in [0, 1). Found {self.decay}.')

  def initial_memory(self, weights):
    """See the base class: the running mean of squares."""
    return tuple(0 * w for w in weights)

  def prepare_public(self, public, memory):
    """Returns A, and the new mean of squares."""
    squares = tuple(
      self.decay * m + (1 - self.decay) * p * p
      for m, p in zip(memory, public, strict=True)
    )
    xp = arrays.namespace(*squares)
    mean = sum(map(xp.sum, squares)) / arrays.size(squares)
    # Before the first public update, all coordinates have the same scale.
    safe = xp.where(mean > 0, mean, mean + 1)
    extra = self.epsilon**2

    def scale(square):
      relative = xp.where(mean > 0, square / safe, square + 1)
      return xp.sqrt((relative + extra) / (1 + extra))

    return tuple(map(scale, squares)), squares

  def before_clip(self, update, public):
    """See the base class; a coordinate with scale 0 becomes 0."""
    xp = arrays.namespace(*public)
    return tuple(
      xp.where(a > 0, u / xp.where(a > 0, a, a + 1), 0 * u)
      for u, a in zip(update, public, strict=True)
    )

  def after_noise(self, mean, public, t):
    """See the base class."""
    del t
    if not self.multiply_back:
      return mean, {}
    return tuple(m * a for m, a in zip(mean, public, strict=True)), {}
