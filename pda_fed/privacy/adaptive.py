"""Adaptive clipping: a clipping norm that follows the users' updates."""

import dataclasses
from typing import Optional

from pda_fed.common import validate


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
  """A clipping norm that follows a quantile of the updates' norms.

  "Differentially Private Learning with Adaptive Clipping" (Andrew et al.,
  NeurIPS 2021, arXiv:1905.03871): the clipping norm moves geometrically, driven
  by a noised count of the updates below it. The count is a second query on
  private data; the plan's noise multiplier covers the cost of both queries.

  Example:

    >>> from pda_fed import privacy
    >>> plan = privacy.PrivacyPlan(
    ...   population=10_000, expected_cohort=100, rounds=500, delta=1e-5,
    ...   noise_multiplier=1.0, clip_norm=0.1,
    ...   adaptive_clipping=AdaptiveClipping(target_quantile=0.5),
    ... )
    >>> round(plan.update_noise_multiplier, 3)  # A little more, for the count.
    1.005

  Attributes:
    target_quantile: The fraction of updates that should not be clipped.
    learning_rate: How fast the clipping norm moves. If all or none of the
      updates are clipped, it changes by a factor of about exp(+-rate / 2).
    count_stddev: Standard deviation of the noise on the count; by default a
      twentieth of the expected cohort.
  """

  target_quantile: float = 0.5
  learning_rate: float = 0.2
  count_stddev: Optional[float] = None

  def __post_init__(self):
    validate.in_range(0, 1, target_quantile=self.target_quantile)
    validate.positive(learning_rate=self.learning_rate)
    if self.count_stddev is not None:
      validate.positive(count_stddev=self.count_stddev)
