"""Searches the noise, or the number of rounds, for an epsilon."""

from collections.abc import Callable
import dataclasses
import functools
import math
from typing import Optional, TYPE_CHECKING

from pda_fed.common import validate
from pda_fed.privacy import accounting

if TYPE_CHECKING:
  from pda_fed.privacy import plan as plan_lib

_MAX_ROUNDS = 1 << 40


def least_noise(
  plan: 'plan_lib.PrivacyPlan',
  epsilon: float,
  accountant: 'Optional[plan_lib.Accountant]' = None,
) -> float:
  """Returns the noise multiplier of `PrivacyPlan.for_epsilon`.

  Args:
    plan: The plan; its noise multiplier is ignored.
    epsilon: The largest epsilon that all rounds may spend.
    accountant: See `PrivacyPlan.epsilon`.
  """
  validate.positive(epsilon=epsilon)
  accountant = accounting.accountant_of(plan, accountant)
  guess = 1.0
  if accountant == 'pld':
    # RDP is fast and never allows less noise than PLD.
    guess = least_noise(plan, epsilon, 'rdp')
  function = accounting.epsilon_function(
    _with_noise(plan, guess), plan.rounds, accountant
  )

  @functools.cache
  def spent(noise_multiplier: float) -> float:
    return function(_with_noise(plan, noise_multiplier), plan.rounds)

  safe, unsafe = _bracket(spent, epsilon, guess)
  # `safe` meets the target at every step, so the search may stop at any step.
  while spent(safe) < 0.997 * epsilon and safe / unsafe > 1 + 1e-6:
    middle = math.sqrt(safe * unsafe)
    if spent(middle) <= epsilon:
      safe = middle
    else:
      unsafe = middle
  # `plan.epsilon` chooses its own grid, which may be slightly coarser.
  while _with_noise(plan, safe).epsilon(accountant=accountant) > epsilon:
    safe *= 1.0005
  return safe


def _bracket(
  spent: Callable[[float], float], target: float, guess: float
) -> tuple[float, float]:
  """Returns a noise that meets the target and a smaller one that does not."""
  safe = guess
  while spent(safe) > target:
    safe *= 1.5
    if safe > 1e6:
      raise ValueError(
        'epsilon must be reachable with a noise multiplier of at most'
        f' 1e6. Found {target!r}.'
      )
  unsafe = safe / 1.3
  while spent(unsafe) <= target:
    safe, unsafe = unsafe, unsafe / 1.3
    if unsafe < 1e-3:
      raise ValueError(
        'epsilon must be smaller: it allows a noise multiplier below'
        f' 1e-3. Found {target!r}.'
      )
  return safe, unsafe


def _with_noise(
  plan: 'plan_lib.PrivacyPlan', noise_multiplier: float
) -> 'plan_lib.PrivacyPlan':
  return dataclasses.replace(plan, noise_multiplier=noise_multiplier)


def most_rounds(
  plan: 'plan_lib.PrivacyPlan',
  epsilon: float,
  accountant: 'Optional[plan_lib.Accountant]' = None,
) -> int:
  """Returns `plan.max_rounds(epsilon, accountant)`."""
  validate.positive(epsilon=epsilon)
  accountant = accounting.accountant_of(plan, accountant)
  if plan.noise_multiplier == 0:
    return 0
  good = 0
  if accountant == 'pld':
    good = most_rounds(plan, epsilon, 'rdp')  # Fast, and never too many.
  spent = accounting.epsilon_function(plan, max(good, 1), accountant)
  bad = 2 * good + 1
  while spent(plan, bad) <= epsilon:
    good, bad = bad, 2 * bad
    if bad > _MAX_ROUNDS:
      raise ValueError(
        'epsilon must be small enough to be spent by 2^40 rounds. Found'
        f' {epsilon!r}.'
      )
  while bad - good > 1:
    middle = (good + bad) // 2
    if spent(plan, middle) <= epsilon:
      good = middle
    else:
      bad = middle
  # `plan.epsilon` chooses its own grid, which may be slightly coarser.
  while plan.epsilon(good, accountant=accountant) > epsilon:
    good -= max(1, good // 1000)
  return good
