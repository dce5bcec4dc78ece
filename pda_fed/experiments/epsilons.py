"""Epsilon of the rounds of a run, where it can be computed."""

from collections.abc import Sequence
from typing import Optional

from pda_fed import privacy


def spent(
  plan: privacy.PrivacyPlan, rounds: Sequence[int]
) -> Optional[dict[int, float]]:
  """Returns epsilon after each of some numbers of rounds.

  Args:
    plan: The plan.
    rounds: Numbers of rounds.

  Returns:
    By number of rounds; None where dp_accounting is not installed, as on a
    machine for JAX alone. `scripts/privacy --fill` adds it elsewhere.
  """
  try:
    accountant = privacy.tightest_accountant(plan)
  except ModuleNotFoundError:
    return None
  curve = privacy.epsilon_curve(plan, rounds, accountant)
  return dict(zip(rounds, curve.tolist(), strict=True))


def plan_from_settings(settings: dict) -> privacy.PrivacyPlan:
  """Returns the plan of a config.json.

  Args:
    settings: Its `settings`.

  Raises:
    KeyError: If there is no plan.
    TypeError: If it has not the fields of a plan.
    ValueError: If a field is out of range.
  """
  fields = dict(settings['plan'])
  if fields.get('adaptive_clipping') is not None:
    fields['adaptive_clipping'] = privacy.AdaptiveClipping(
      **fields['adaptive_clipping']
    )
  return privacy.PrivacyPlan(**fields)
