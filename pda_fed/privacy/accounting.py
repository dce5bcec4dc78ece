"""Epsilon of a privacy plan, by dp_accounting.

This is the only module of the project that computes an epsilon.
"""

import math
from typing import Literal, Optional

import dp_accounting
from pda_fed import _validate
from pda_fed.privacy import plan as plan_lib

Accountant = Literal['pld', 'rdp']

# Estimates err on the safe side; after many rounds with much noise, this grid
# overstates epsilons below 1. Time grows with the inverse of the interval.
_PLD_INTERVAL = 1e-3


def dp_event(
  plan: plan_lib.PrivacyPlan, rounds: Optional[int] = None
) -> dp_accounting.DpEvent:
  """Returns what `rounds` rounds of the plan do, as a `DpEvent`.

  Args:
    plan: The plan.
    rounds: How many rounds; by default all of the plan's.

  Raises:
    ValueError: If `rounds` is negative.
  """
  rounds = plan.rounds if rounds is None else rounds
  _validate.integers(0, rounds=rounds)
  if rounds == 0:
    return dp_accounting.NoOpDpEvent()
  if plan.noise_multiplier == 0:
    return dp_accounting.NonPrivateDpEvent()
  return dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(
      plan.sampling_rate,
      dp_accounting.GaussianDpEvent(plan.noise_multiplier),
    ),
    rounds,
  )


def _make_accountant(name: Accountant) -> dp_accounting.PrivacyAccountant:
  relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
  if name == 'rdp':
    return dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
  return dp_accounting.pld.PLDAccountant(
    neighboring_relation=relation, value_discretization_interval=_PLD_INTERVAL
  )


def epsilon(
  plan: plan_lib.PrivacyPlan,
  rounds: Optional[int] = None,
  delta: Optional[float] = None,
  accountant: Accountant = 'pld',
) -> float:
  """Returns the epsilon that `rounds` rounds of the plan have spent.

  Args:
    plan: The plan.
    rounds: How many rounds were run; by default all of the plan's.
    delta: By default the plan's.
    accountant: 'pld' (tight) or 'rdp' (what the paper's figures use).

  Returns:
    Epsilon; infinity if the plan adds no noise, 0 before the first round.

  Raises:
    ValueError: If an argument is out of its range.
  """
  _validate.one_of(('pld', 'rdp'), accountant=accountant)
  delta = plan.delta if delta is None else delta
  _validate.between(0, 1, delta=delta)
  event = dp_event(plan, rounds)
  if isinstance(event, dp_accounting.NonPrivateDpEvent):
    return math.inf
  return float(_make_accountant(accountant).compose(event).get_epsilon(delta))
