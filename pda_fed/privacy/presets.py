"""The privacy plans of the paper's experiments.

"Public Data-Assisted Mirror Descent for Private Model Training" (Amid et al.,
ICML 2022, arXiv:2112.00193), sections 5.1 to 5.4 and the appendix. With
q = batch / n and T = epochs * n / batch, where n is the 96 % of the examples
that are private, RDP gives the epsilons of the paper, except for StackOverflow;
see docs/sharp_edges.md. With WikiText-103 as public data, all n are private.
"""

import dataclasses
import types

from pda_fed.privacy import plan as plan_lib


@dataclasses.dataclass(frozen=True)
class Preset:
  """A privacy plan of the paper.

  Attributes:
    plan: The plan.
    paper_epsilon: The epsilon that the paper states.
  """

  plan: plan_lib.PrivacyPlan
  paper_epsilon: float


def _preset(n, batch, rounds, delta, sigma, paper_epsilon, clip, unit):
  plan = plan_lib.PrivacyPlan(
    population=n,
    expected_cohort=batch,
    rounds=rounds,
    delta=delta,
    noise_multiplier=sigma,
    clip_norm=clip,
    unit=unit,
  )
  return Preset(plan, paper_epsilon)


# n, batch, T, delta
_STACKOVERFLOW = 342_477, 100, 1600, 1e-6
_WIKITEXT_2 = 46_813, 250, 20 * 46_813 // 250, 1e-5
_WIKITEXT_103 = 48_764, 250, 20 * 48_764 // 250, 1e-5
_CIFAR_10 = 48_000, 500, 100 * 48_000 // 500, 1e-5
_EMNIST = 670_014, 500, 50 * 670_014 // 500, 1e-6

PRESETS = types.MappingProxyType(
  {
    'stackoverflow': _preset(*_STACKOVERFLOW, 0.4, 8.32, 0.3, 'user'),
    'wikitext2': _preset(*_WIKITEXT_2, 0.5, 15.7, 1.0, 'sequence'),
    'wikitext2_private': _preset(*_WIKITEXT_2, 1.08, 1.71, 1.0, 'sequence'),
    'cifar10': _preset(*_CIFAR_10, 1.51, 3.51, 1.0, 'example'),
    'cifar10_private': _preset(*_CIFAR_10, 20.0, 0.19, 1.0, 'example'),
    'emnist': _preset(*_EMNIST, 0.41, 25.80, 1.0, 'example'),
    'emnist_private': _preset(*_EMNIST, 1.89, 0.48, 1.0, 'example'),
    'wikitext103': _preset(*_WIKITEXT_103, 0.83, 3.0, 1.0, 'sequence'),
    'wikitext103_private': _preset(*_WIKITEXT_103, 1.49, 1.0, 1.0, 'sequence'),
  }
)
