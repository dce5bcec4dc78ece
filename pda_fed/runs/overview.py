"""The overview of a run, and epsilon of its rounds."""

from collections.abc import Sequence
import math
from typing import Optional

from pda_fed import privacy
from pda_fed.runs import resolving

# A larger epsilon gives little protection.
_LARGE_EPSILON = 10.0
# Largest ratio of the noise's norm in the mean to the clip norm without a
# warning. It is 8 in the paper's StackOverflow runs.
_LARGE_NOISE = 10.0


def noise_over_clip(plan: privacy.PrivacyPlan, num_weights: int) -> float:
  """Returns the expected norm of the noise in the mean, over the clip norm.

  Args:
    plan: The privacy plan.
    num_weights: The number of the model's weights.
  """
  noise = plan.update_noise_multiplier * math.sqrt(num_weights)
  return noise / plan.expected_cohort


def _privacy(plan: privacy.PrivacyPlan, epsilon: Optional[float]) -> str:
  if not plan.noise_multiplier:
    return 'none: epsilon is infinite without noise'
  if epsilon is None:
    return 'epsilon unknown: dp_accounting is not installed'
  return (
    f'epsilon {privacy.round_up(epsilon)}, delta {plan.delta:g} for the whole'
    f' run ({plan.unit}-level, {plan.neighbouring})'
  )


def describe(
  run: resolving.Run, epsilon: Optional[float], num_weights: int
) -> list[str]:
  """Returns lines that describe a run.

  Args:
    run: The run.
    epsilon: Epsilon of the whole run; None if it cannot be computed.
    num_weights: The number of the model's weights.
  """
  plan, about = run.plan, run.data.about
  sizes = about.get('users') or about['examples']
  share = noise_over_clip(plan, num_weights)
  found = {
    f'{plan.unit}s': ', '.join(f'{n:,} {group}' for group, n in sizes.items()),
    'rounds': (
      f'{plan.rounds:,}, each with about {plan.expected_cohort:g} of'
      f' {plan.population:,} private {plan.unit}s'
    ),
    'noise': (
      f'sigma {privacy.round_up(plan.noise_multiplier)}, clip'
      f' {plan.clip_norm:g}; norm of the noise in the mean: {share:.2g} times'
      ' the clip'
    ),
    'privacy': _privacy(plan, epsilon),
  }
  return [
    f'{run.method.title} on {run.data.name}, engine {run.engine}',
    *(f'  {name:<9} {text}' for name, text in found.items()),
  ]


def cautions(
  plan: privacy.PrivacyPlan, epsilon: Optional[float], num_weights: int
) -> list[str]:
  """Returns warnings about settings that look wrong.

  Args:
    plan: The privacy plan.
    epsilon: Epsilon of the whole run; None if it cannot be computed.
    num_weights: The number of the model's weights.
  """
  found = []
  if not plan.noise_multiplier:
    found.append('noise_multiplier is 0: this run has no differential privacy.')
  elif epsilon is not None and epsilon > _LARGE_EPSILON:
    found.append(
      f'epsilon is {privacy.round_up(epsilon)}, above {_LARGE_EPSILON:g}: it'
      ' gives little protection. More noise, fewer rounds or more users lower'
      ' it; --target_epsilon finds the noise.'
    )
  share = noise_over_clip(plan, num_weights)
  if share > _LARGE_NOISE:
    found.append(
      f'The noise in the mean has {share:.3g} times the norm of a clipped'
      ' update, so the model may not learn. Larger cohorts or a smaller'
      ' model reduce it.'
    )
  return found


def spent(
  plan: privacy.PrivacyPlan, rounds: Sequence[int]
) -> Optional[dict[int, float]]:
  """Returns epsilon by number of rounds; None without dp_accounting.

  Args:
    plan: The privacy plan.
    rounds: Numbers of rounds.
  """
  try:
    return dict(zip(rounds, plan.epsilon_curve(rounds).tolist(), strict=True))
  except ModuleNotFoundError:
    return None
