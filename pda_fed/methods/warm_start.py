"""Warm start: private training from a model pre-trained on public data.

The baseline of "Public Data-Assisted Mirror Descent for Private Model Training"
(Amid et al., ICML 2022, arXiv:2112.00193), section 5.
"""

import dataclasses

from pda_fed.methods import base


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStart(base.Method):
  """Starts from a pre-trained model, then uses only private data.

  Example:

    >>> WarmStart().uses_public
    False
  """

  name = 'warm'
  title = 'warm start'
