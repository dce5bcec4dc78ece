"""Epsilon of a privacy plan, computed by dp_accounting.

Methods of `PrivacyPlan` call it; they say what arguments and results mean.
"""

from collections.abc import Callable, Sequence
import functools
import math
from typing import Optional, TYPE_CHECKING

import dp_accounting
from dp_accounting.pld import privacy_loss_distribution
import numpy as np
from pda_fed.common import validate

if TYPE_CHECKING:
  from pda_fed.privacy import plan as plan_lib


# The grid error of a PLD epsilon falls with the square of the interval and is
# on the safe side. The interval is divided by 3 until epsilon changes by less
# than this fraction. The remaining error is an eighth of it: less than one unit
# of the third digit.
_PLD_CHANGE = 4e-3
_PLD_COARSEST = 1e-2
_PLD_FINEST = 1e-6
# Composition by FFT rounds in either direction: compared with the exact
# Gaussian mechanism, the delta of T rounds was off by up to 2e-17 T. We allow
# five times as much. If delta is at most twice that allowance, RDP is used.
_FFT_ERROR_PER_ROUND = 1e-16
_FFT_ERROR_LEAST = 1e-15
# Above this epsilon a tight bound is of no use.
_PLD_LARGEST_EPSILON = 1e3
# Number of points at which a curve is exact.
CURVE_POINTS = 32


def dp_event(
  plan: 'plan_lib.PrivacyPlan', rounds: Optional[int] = None
) -> dp_accounting.DpEvent:
  """Returns the `DpEvent` of `rounds` rounds of the plan.

  Example:

    >>> from pda_fed import privacy
    >>> plan = privacy.PrivacyPlan(
    ...   population=1000, expected_cohort=10, rounds=5, delta=1e-4,
    ...   noise_multiplier=1.0, clip_norm=1.0,
    ... )
    >>> dp_event(plan).count, dp_event(plan).event.sampling_probability
    (5, 0.01)

  Args:
    plan: The plan.
    rounds: Number of rounds; by default the plan's.

  Raises:
    ValueError: If `rounds` is negative.
  """
  rounds = plan.rounds if rounds is None else rounds
  validate.integers(0, rounds=rounds)
  if rounds == 0:
    return dp_accounting.NoOpDpEvent()
  if plan.noise_multiplier == 0:
    return dp_accounting.NonPrivateDpEvent()
  if plan.mechanism == 'tree':
    return _tree_event(plan, rounds)
  return dp_accounting.SelfComposedDpEvent(_round_event(plan), rounds)


def _round_event(plan: 'plan_lib.PrivacyPlan') -> dp_accounting.DpEvent:
  if plan.sampling == 'fixed_size':
    # Replacing a user by another changes the sum by up to 2S, not S.
    return dp_accounting.SampledWithoutReplacementDpEvent(
      plan.population,
      int(plan.expected_cohort),
      dp_accounting.GaussianDpEvent(plan.noise_multiplier / 2),
    )
  return dp_accounting.PoissonSampledDpEvent(
    plan.sampling_rate, dp_accounting.GaussianDpEvent(plan.noise_multiplier)
  )


def _tree_event(
  plan: 'plan_lib.PrivacyPlan', rounds: int
) -> dp_accounting.DpEvent:
  """Returns one tree per epoch; a user is in each tree at most once."""

  def tree(steps: int) -> dp_accounting.DpEvent:
    return dp_accounting.SingleEpochTreeAggregationDpEvent(
      plan.noise_multiplier, steps
    )

  epochs, rest = divmod(rounds, plan.rounds_per_epoch)
  events = []
  if epochs:
    events.append(
      dp_accounting.SelfComposedDpEvent(tree(plan.rounds_per_epoch), epochs)
    )
  if rest:
    events.append(tree(rest))
  return dp_accounting.ComposedDpEvent(events)


def _rdp_accountant(
  plan: 'plan_lib.PrivacyPlan',
) -> dp_accounting.PrivacyAccountant:
  relations = dp_accounting.NeighboringRelation
  relation = {
    'fixed_size': relations.REPLACE_ONE,
    'epochs': relations.REPLACE_SPECIAL,
  }.get(plan.sampling, relations.ADD_OR_REMOVE_ONE)
  return dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)


@functools.lru_cache(maxsize=16)
def _composed_rdp(
  plan: 'plan_lib.PrivacyPlan', rounds: int
) -> tuple[np.ndarray, np.ndarray]:
  accountant = _rdp_accountant(plan).compose(dp_event(plan, rounds))
  # The accountant has no public access to them.
  return np.asarray(accountant._orders), np.asarray(accountant._rdp)


def run_rdp(
  plan: 'plan_lib.PrivacyPlan', rounds: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns RDP orders and values of `rounds` rounds."""
  try:
    if plan.mechanism == 'tree':
      return _composed_rdp(plan, rounds)
    # T rounds cost T times one round, and composing for each T is slow.
    orders, rdp = _composed_rdp(plan, 1)
    return orders, rounds * rdp
  except (OverflowError, ZeroDivisionError) as e:
    raise ValueError(
      'noise_multiplier must be in the range that accounting can handle, about'
      f' 1e-2 to 1e6. Found {plan.noise_multiplier!r}.'
    ) from e


def _rdp_epsilon(
  plan: 'plan_lib.PrivacyPlan', rounds: int, delta: float
) -> float:
  orders, rdp = run_rdp(plan, rounds)
  return float(dp_accounting.rdp.compute_epsilon(orders, rdp, delta)[0])


@functools.lru_cache(maxsize=16)
def _round_pld(
  noise_multiplier: float, sampling_rate: float, interval: float
) -> privacy_loss_distribution.PrivacyLossDistribution:
  """Returns the privacy loss of a Poisson round, which is slow to build."""
  return privacy_loss_distribution.from_gaussian_mechanism(
    noise_multiplier,
    value_discretization_interval=interval,
    sampling_prob=sampling_rate,
  )


def _pld_epsilon_on_grid(
  plan: 'plan_lib.PrivacyPlan', rounds: int, delta: float, interval: float
) -> float:
  """Returns an upper bound by PLD or, where PLD fails, by RDP."""
  error = max(_FFT_ERROR_LEAST, rounds * _FFT_ERROR_PER_ROUND)
  by_rdp = _rdp_epsilon(plan, rounds, delta)
  if delta <= 2 * error or by_rdp > _PLD_LARGEST_EPSILON:
    return by_rdp
  pld = _round_pld(plan.noise_multiplier, plan.sampling_rate, interval)
  by_pld = pld.self_compose(rounds).get_epsilon_for_delta(delta - error)
  # Far from its centre, composition returns infinity.
  return min(float(by_pld), by_rdp)


def _pld_epsilon_and_interval(
  plan: 'plan_lib.PrivacyPlan', rounds: int, delta: float
) -> tuple[float, float]:
  """Refines the grid until epsilon converges."""
  # The number of grid points grows with the privacy loss, so a large epsilon
  # must not be computed to a hundredth.
  rough = _rdp_epsilon(plan, rounds, delta)
  interval = _PLD_COARSEST * max(1.0, rough / 10)
  epsilon = _pld_epsilon_on_grid(plan, rounds, delta, interval)
  while 0 < epsilon and interval > _PLD_FINEST:
    finer = _pld_epsilon_on_grid(plan, rounds, delta, interval / 3)
    settled = epsilon - finer < _PLD_CHANGE * finer
    epsilon, interval = finer, interval / 3
    # If both grids return the RDP bound, try finer grids, which may get below
    # it.
    if settled and (finer < rough or interval < _PLD_COARSEST / 100):
      break
  return epsilon, interval


def accountant_of(
  plan: 'plan_lib.PrivacyPlan',
  accountant: 'Optional[plan_lib.Accountant]',
) -> 'plan_lib.Accountant':
  """Returns an accountant that can handle the plan, by default its own."""
  if accountant is None:
    return plan.accountant
  validate.one_of(('pld', 'rdp'), accountant=accountant)
  if accountant == 'pld' and plan.accountant != 'pld':
    raise ValueError(
      f"accountant must be 'rdp' for sampling={plan.sampling!r}: its privacy"
      " loss distribution is unknown. Found 'pld'."
    )
  return accountant


def epsilon(
  plan: 'plan_lib.PrivacyPlan',
  rounds: int,
  delta: float,
  accountant: 'Optional[plan_lib.Accountant]',
) -> float:
  """Returns `plan.epsilon(rounds, delta, accountant)`."""
  validate.integers(0, rounds=rounds)
  validate.between(0, 1, delta=delta)
  accountant = accountant_of(plan, accountant)
  if rounds == 0:
    return 0.0
  if plan.noise_multiplier == 0:
    return math.inf
  if accountant == 'rdp':
    return _rdp_epsilon(plan, rounds, delta)
  return _pld_epsilon_and_interval(plan, rounds, delta)[0]


def epsilon_curve(
  plan: 'plan_lib.PrivacyPlan',
  rounds: Sequence[int],
  accountant: 'Optional[plan_lib.Accountant]',
) -> np.ndarray:
  """Returns `plan.epsilon_curve(rounds, accountant)`."""
  rounds = np.asarray(rounds)
  if (
    rounds.ndim != 1
    or (rounds.size and rounds.dtype.kind not in 'iu')
    or (rounds < 0).any()
  ):
    raise ValueError(
      f'rounds must be a list of non-negative integers. Found {rounds!r}.'
    )
  accountant = accountant_of(plan, accountant)
  steps = np.unique(rounds[rounds > 0])
  if plan.noise_multiplier == 0 or not steps.size:
    return np.where(rounds > 0, math.inf, 0.0)
  exact = steps
  if len(steps) > CURVE_POINTS:
    # Evenly spaced in the square root, as epsilon grows roughly like it.
    places = np.linspace(0, math.sqrt(len(steps) - 1), CURVE_POINTS) ** 2
    exact = steps[np.unique(np.ceil(places - 1e-9).astype(np.int64))]
  spent = epsilon_function(plan, int(exact[-1]), accountant)
  # Index 0 is for no rounds.
  values = np.array([0.0, *(spent(plan, int(t)) for t in exact)])
  return values[np.searchsorted([0, *exact], rounds)]


def epsilon_function(
  plan: 'plan_lib.PrivacyPlan', rounds: int, accountant: 'plan_lib.Accountant'
) -> Callable[['plan_lib.PrivacyPlan', int], float]:
  """Returns an epsilon function of (plan, rounds) near the given ones.

  With PLD, the grid is chosen once, for the given arguments. For other
  arguments it may be coarser than needed, but epsilons are always upper bounds.

  Args:
    plan: The plan.
    rounds: The number of rounds.
    accountant: See `epsilon`.

  Returns:
    The function; it uses the plan's delta.
  """
  if accountant == 'rdp':
    return lambda p, t: _rdp_epsilon(p, t, p.delta)
  _, interval = _pld_epsilon_and_interval(plan, rounds, plan.delta)
  return lambda p, t: _pld_epsilon_on_grid(p, t, p.delta, interval)
