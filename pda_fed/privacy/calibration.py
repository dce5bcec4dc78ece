"""Finds the noise, or the number of rounds, for a target epsilon.

`accounting` computes the epsilon; this module only searches.
"""

from collections.abc import Callable
import dataclasses
import functools
import math

from pda_fed.common import validate
from pda_fed.privacy import accounting
from pda_fed.privacy import plan as plan_lib

_MAX_ROUNDS = 1 << 40


def calibrate(
  plan: plan_lib.PrivacyPlan,
  target_epsilon: float,
  accountant: accounting.Accountant = 'pld',
) -> plan_lib.PrivacyPlan:
  """Returns the plan with the smallest noise that meets a target epsilon.

  Example:

    >>> from pda_fed import privacy
    >>> plan = privacy.PrivacyPlan(
    ...   population=10_000, expected_cohort=100, rounds=500, delta=1e-5,
    ...   noise_multiplier=1.0, clip_norm=0.3,
    ... )
    >>> round(calibrate(plan, target_epsilon=4.0).noise_multiplier, 2)
    0.68

  Args:
    plan: The plan; its noise multiplier is ignored.
    target_epsilon: The largest epsilon that all rounds of the plan may spend.
    accountant: See `epsilon`.

  Returns:
    A plan whose epsilon is at most the target, and within 0.5 % of it.

  Raises:
    ValueError: If the target is not positive, or no noise multiplier between
      1e-3 and 1e6 meets it.
  """
  validate.positive(target_epsilon=target_epsilon)
  accounting.check_accountant(plan, accountant, plan.delta)
  if plan.adaptive_clipping is not None:
    # A fixed clipping norm costs the same, and allows any noise during the
    # search.
    fixed = dataclasses.replace(plan, adaptive_clipping=None)
    found = calibrate(fixed, target_epsilon, accountant)
    return _with_noise(plan, found.noise_multiplier)
  guess = 1.0
  if accountant == 'pld':
    # RDP is fast and never allows less noise than PLD.
    guess = calibrate(plan, target_epsilon, 'rdp').noise_multiplier
  function = accounting.epsilon_function(
    _with_noise(plan, guess), plan.rounds, accountant
  )

  @functools.cache
  def spent(noise_multiplier: float) -> float:
    return function(_with_noise(plan, noise_multiplier), plan.rounds)

  safe, unsafe = _bracket(spent, target_epsilon, guess)
  # `safe` meets the target at every step, so the search may stop at any step.
  while spent(safe) < 0.997 * target_epsilon and safe / unsafe > 1 + 1e-6:
    middle = math.sqrt(safe * unsafe)
    if spent(middle) <= target_epsilon:
      safe = middle
    else:
      unsafe = middle
  # `epsilon` chooses its own grid, which may be slightly coarser.
  while (
    accounting.epsilon(_with_noise(plan, safe), accountant=accountant)
    > target_epsilon
  ):
    safe *= 1.0005
  return _with_noise(plan, safe)


def _bracket(
  spent: Callable[[float], float], target: float, guess: float
) -> tuple[float, float]:
  """Returns a noise that meets the target and a smaller one that does not."""
  safe = guess
  while spent(safe) > target:
    safe *= 1.5
    if safe > 1e6:
      raise ValueError(
        'target_epsilon must be reachable with a noise multiplier of at most'
        f' 1e6. Found {target!r}.'
      )
  unsafe = safe / 1.3
  while spent(unsafe) <= target:
    safe, unsafe = unsafe, unsafe / 1.3
    if unsafe < 1e-3:
      raise ValueError(
        'target_epsilon must be smaller: it allows a noise multiplier below'
        f' 1e-3. Found {target!r}.'
      )
  return safe, unsafe


def _with_noise(
  plan: plan_lib.PrivacyPlan, noise_multiplier: float
) -> plan_lib.PrivacyPlan:
  return dataclasses.replace(plan, noise_multiplier=noise_multiplier)


def max_rounds(
  plan: plan_lib.PrivacyPlan,
  target_epsilon: float,
  accountant: accounting.Accountant = 'pld',
) -> int:
  """Returns the largest number of rounds that meets a target epsilon.

  Example:

    >>> from pda_fed import privacy
    >>> plan = privacy.PrivacyPlan(
    ...   population=1000, expected_cohort=10, rounds=1, delta=1e-4,
    ...   noise_multiplier=1.0, clip_norm=1.0,
    ... )
    >>> max_rounds(plan, target_epsilon=2.0, accountant='rdp')
    1322

  Args:
    plan: The plan; its number of rounds is ignored.
    target_epsilon: The largest epsilon that the rounds may spend.
    accountant: See `epsilon`.

  Returns:
    The number of rounds; 0 if one round already exceeds the target.

  Raises:
    ValueError: If the target is not positive, or 2^40 rounds do not spend it.
  """
  validate.positive(target_epsilon=target_epsilon)
  accounting.check_accountant(plan, accountant, plan.delta)
  if plan.noise_multiplier == 0:
    return 0
  good = 0
  if accountant == 'pld':
    good = max_rounds(plan, target_epsilon, 'rdp')  # Fast, and never too many.
  spent = accounting.epsilon_function(plan, max(good, 1), accountant)
  bad = 2 * good + 1
  while spent(plan, bad) <= target_epsilon:
    good, bad = bad, 2 * bad
    if bad > _MAX_ROUNDS:
      raise ValueError(
        'target_epsilon must be small enough to be spent by 2^40 rounds. Found'
        f' {target_epsilon!r}.'
      )
  while bad - good > 1:
    middle = (good + bad) // 2
    if spent(plan, middle) <= target_epsilon:
      good = middle
    else:
      bad = middle
  # `epsilon` chooses its own grid, which may be slightly coarser.
  while accounting.epsilon(plan, good, accountant=accountant) > target_epsilon:
    good -= max(1, good // 1000)
  return good


def tight_noise_stddev(
  *,
  lipschitz: float,
  rounds: int,
  epsilon: float,
  delta: float,
  population: int,
) -> float:
  """Returns the smallest noise by PLD, for adding or removing an example.

  Compare `algorithm_1_noise_stddev`, the formula of the paper.

  Example:

    >>> stddev = tight_noise_stddev(
    ...   lipschitz=1.0, rounds=10, epsilon=1.0, delta=1e-5, population=10_000
    ... )
    >>> round(stddev, 5)
    0.00118

  Args:
    lipschitz: L, the largest norm of a gradient.
    rounds: T, the number of rounds.
    epsilon: The target epsilon.
    delta: The target delta.
    population: n, the number of private examples.

  Returns:
    The standard deviation of the noise on each coordinate of the mean.

  Raises:
    ValueError: If an argument is out of range.
  """
  validate.positive(lipschitz=lipschitz)
  plan = plan_lib.PrivacyPlan(
    population=population,
    expected_cohort=population,
    rounds=rounds,
    delta=delta,
    noise_multiplier=1.0,
    clip_norm=lipschitz,
    unit='example',
  )
  noise_multiplier = calibrate(plan, epsilon).noise_multiplier
  return noise_multiplier * lipschitz / population
