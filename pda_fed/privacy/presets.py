"""The privacy plans of the paper's experiments.

"Public Data-Assisted Mirror Descent for Private Model Training" (Amid et al.,
ICML 2022, arXiv:2112.00193), sections 5.1 to 5.4 and the appendix. With
q = batch / n and T = epochs * n / batch, where n is the 96 % of the examples
that are private, RDP gives the epsilons of the paper, except for StackOverflow;
see docs/sharp_edges.md.
"""

import dataclasses
import types

from pda_fed.common import validate
from pda_fed.privacy import plan as plan_lib


@dataclasses.dataclass(frozen=True)
class Preset:
  """A privacy plan of the paper.

  Attributes:
    plan: The plan.
    paper_epsilon: The epsilon that the paper states.
    about: The experiment in the paper.
  """

  plan: plan_lib.PrivacyPlan
  paper_epsilon: float
  about: str


def _sample_level(
  *,
  examples: int,
  batch: int,
  epochs: int,
  sigma: float,
  delta: float,
  unit: str,
) -> plan_lib.PrivacyPlan:
  return plan_lib.PrivacyPlan(
    population=examples,
    expected_cohort=batch,
    rounds=epochs * examples // batch,
    delta=delta,
    noise_multiplier=sigma,
    clip_norm=1.0,
    unit=unit,
  )


def _wikitext(examples: int, sigma: float) -> plan_lib.PrivacyPlan:
  return _sample_level(
    examples=examples,
    batch=250,
    epochs=20,
    sigma=sigma,
    delta=1e-5,
    unit='sequence',
  )


def _cifar10(sigma: float) -> plan_lib.PrivacyPlan:
  return _sample_level(
    examples=48_000,
    batch=500,
    epochs=100,
    sigma=sigma,
    delta=1e-5,
    unit='example',
  )


def _emnist(sigma: float) -> plan_lib.PrivacyPlan:
  return _sample_level(
    examples=670_014,
    batch=500,
    epochs=50,
    sigma=sigma,
    delta=1e-6,
    unit='example',
  )


_WIKITEXT_2 = 46_813  # 96 % of 48,764 sequences.
_WIKITEXT_2_ALL = 48_764  # With WikiText-103 as public data, all are private.

PRESETS = types.MappingProxyType(
  {
    'stackoverflow': Preset(
      plan_lib.PrivacyPlan(
        population=342_477,
        expected_cohort=100,
        rounds=1600,
        delta=1e-6,
        noise_multiplier=0.4,
        clip_norm=0.3,
      ),
      8.32,
      'StackOverflow, Table 1',
    ),
    'wikitext2': Preset(_wikitext(_WIKITEXT_2, 0.5), 15.7, 'WikiText-2'),
    'wikitext2_private': Preset(
      _wikitext(_WIKITEXT_2, 1.08), 1.71, 'WikiText-2'
    ),
    'cifar10': Preset(_cifar10(1.51), 3.51, 'CIFAR-10'),
    'cifar10_private': Preset(_cifar10(20.0), 0.19, 'CIFAR-10'),
    'emnist': Preset(_emnist(0.41), 25.80, 'EMNIST'),
    'emnist_private': Preset(_emnist(1.89), 0.48, 'EMNIST'),
    'wikitext103': Preset(
      _wikitext(_WIKITEXT_2_ALL, 0.83), 3.0, 'WikiText-103 as public data'
    ),
    'wikitext103_private': Preset(
      _wikitext(_WIKITEXT_2_ALL, 1.49), 1.0, 'WikiText-103 as public data'
    ),
  }
)


def get_preset(name: str) -> Preset:
  """Returns a plan of the paper by name.

  Args:
    name: A key of `PRESETS`.

  Raises:
    ValueError: If there is no preset with that name. The message lists them.
  """
  validate.one_of(tuple(PRESETS), preset=name)
  return PRESETS[name]
