"""A privacy guarantee in words."""

import decimal
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from pda_fed.privacy import plan as plan_lib


def round_up(value: float, digits: int = 4) -> str:
  """Formats a number, rounded up to some significant digits.

  Example:

    >>> round_up(6.05321)
    '6.054'
    >>> round_up(0.00012345)
    '0.0001235'

  Args:
    value: An epsilon, or a noise multiplier.
    digits: Number of significant digits.

  Returns:
    The rounded number, never below `value`.
  """
  if not math.isfinite(value) or value == 0:
    return f'{value:g}'
  exact = decimal.Decimal(repr(float(value)))
  unit = decimal.Decimal(1).scaleb(exact.adjusted() - digits + 1)
  return f'{float(exact.quantize(unit, decimal.ROUND_CEILING)):.{digits}g}'


def statement(plan: 'plan_lib.PrivacyPlan', epsilon: float) -> str:
  """Returns `plan.statement(epsilon)`."""
  cohorts = {
    'poisson': f'Poisson cohorts of {plan.expected_cohort:g} out of',
    'epochs': f'cohorts of {plan.expected_cohort:g}, once an epoch, out of',
  }.get(plan.sampling, f'fixed cohorts of {plan.expected_cohort:g} out of')
  if math.isinf(epsilon):
    return (
      f'No {plan.unit}-level DP: epsilon is infinite with noise multiplier'
      f' {plan.noise_multiplier:g}; {cohorts} {plan.population:,}'
      f' {plan.unit}s.'
    )
  caution = ' (approximate: accounted as Poisson)' if plan.approximate else ''
  return (
    f'{plan.unit.capitalize()}-level DP, {plan.neighbouring}: (epsilon, delta)'
    f' = ({round_up(epsilon)}, {plan.delta:g}) by {plan.accountant.upper()};'
    f' {cohorts} {plan.population:,} {plan.unit}s{caution}, noise multiplier'
    f' {round_up(plan.noise_multiplier, 6)}.'
  )
