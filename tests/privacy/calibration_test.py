import dataclasses
import math

from pda_fed import privacy
from pda_fed.privacy import accounting
import pytest

from tests.privacy.plans import PLAN as _PLAN

_FIELDS = {f.name: getattr(_PLAN, f.name) for f in dataclasses.fields(_PLAN)}
del _FIELDS['noise_multiplier']


def _for_epsilon(epsilon, **changes):
  return privacy.PrivacyPlan.for_epsilon(epsilon, **(_FIELDS | changes))


@pytest.mark.slow
def test_adaptive_clipping_and_a_small_cohort():
  small = dict(expected_cohort=8, rounds=10, delta=1e-4)
  small |= dict(adaptive_clipping=privacy.AdaptiveClipping())
  found = _for_epsilon(10.0, **small)
  assert found.adaptive_clipping == privacy.AdaptiveClipping()
  assert 9.95 <= found.epsilon() <= 10.0
  with pytest.raises(ValueError, match='noise_multiplier must be below twice'):
    _for_epsilon(0.1, **small)


@pytest.mark.slow
@pytest.mark.parametrize('epsilon', [0.3, 1.0, 8.0])
@pytest.mark.parametrize('accountant', ['pld', 'rdp'])
def test_a_plan_keeps_epsilon_and_wastes_little(epsilon, accountant):
  plan = _for_epsilon(epsilon, accountant=accountant)
  assert 0.995 * epsilon <= plan.epsilon(accountant=accountant) <= epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
  'change',
  [dict(sampling='fixed_size'), dict(sampling='epochs', mechanism='tree')],
)
def test_other_plans_are_solved_by_their_own_accountant(change):
  plan = _for_epsilon(4.0, **change)
  assert 0.995 * 4 <= plan.epsilon() <= 4


def test_all_fields_are_kept():
  plan = _for_epsilon(2.0, unit='example', accountant='rdp')
  expected = dataclasses.replace(
    _PLAN, unit='example', noise_multiplier=plan.noise_multiplier
  )
  assert plan == expected


def test_a_large_delta_is_warned_of_once():
  with pytest.warns(UserWarning, match='above 1/population') as caught:
    _for_epsilon(2.0, delta=0.01, accountant='rdp')
  assert len(caught) == 1


def test_max_rounds():
  rounds = _PLAN.max_rounds(2.0)
  assert _PLAN.epsilon(rounds) <= 2.0
  assert _PLAN.epsilon(int(rounds * 1.01) + 1) > 2.0
  assert _PLAN.max_rounds(1e-3) == 0
  silent = dataclasses.replace(_PLAN, noise_multiplier=0)
  assert silent.max_rounds(2.0) == 0


def test_bad_targets():
  with pytest.raises(ValueError, match='epsilon must be positive'):
    _for_epsilon(0)
  with pytest.raises(ValueError, match='epsilon must be smaller'):
    _for_epsilon(1e9)
  with pytest.raises(ValueError, match='epsilon must be positive'):
    _PLAN.max_rounds(math.inf)


@pytest.fixture(name='coarser')
def fixture_coarser(monkeypatch):
  """`plan.epsilon` is a little above what the search goes by."""
  real = accounting.epsilon
  monkeypatch.setattr(accounting, 'epsilon', lambda *args: 1.01 * real(*args))


@pytest.mark.slow
def test_noise_keeps_the_target_by_epsilon_itself(coarser):
  found = _for_epsilon(2.0, accountant='rdp')
  assert found.epsilon(accountant='rdp') <= 2.0
  less = dataclasses.replace(
    found, noise_multiplier=found.noise_multiplier / 1.001
  )
  assert less.epsilon(accountant='rdp') > 2.0


def test_rounds_keep_the_target_by_epsilon_itself(coarser):
  found = _PLAN.max_rounds(2.0, 'rdp')
  assert _PLAN.epsilon(found, accountant='rdp') <= 2.0
  assert _PLAN.epsilon(int(1.005 * found) + 1, accountant='rdp') > 2.0
