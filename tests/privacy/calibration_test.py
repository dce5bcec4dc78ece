import dataclasses
import math

from pda_fed import privacy
from pda_fed.privacy import accounting
import pytest

from tests.privacy.plans import PLAN as _PLAN


@pytest.mark.slow
def test_calibration_with_adaptive_clipping_and_a_small_cohort():
  plan = privacy.PrivacyPlan(
    population=1000,
    expected_cohort=8,
    rounds=10,
    delta=1e-4,
    noise_multiplier=0.5,
    clip_norm=1.0,
    adaptive_clipping=privacy.AdaptiveClipping(),
  )
  found = privacy.calibrate(plan, 10.0)
  assert found.adaptive_clipping == plan.adaptive_clipping
  assert 9.95 <= privacy.epsilon(found) <= 10.0
  with pytest.raises(ValueError, match='noise_multiplier must be below twice'):
    privacy.calibrate(plan, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize('target', [0.3, 1.0, 8.0])
@pytest.mark.parametrize('accountant', ['pld', 'rdp'])
def test_calibration_keeps_the_target_and_wastes_little(target, accountant):
  plan = privacy.calibrate(_PLAN, target, accountant)
  epsilon = privacy.epsilon(plan, accountant=accountant)
  assert 0.995 * target <= epsilon <= target


@pytest.mark.slow
def test_calibration_of_other_plans():
  for change in (
    dict(sampling='fixed_size'),
    dict(sampling='epochs', mechanism='tree'),
  ):
    plan = privacy.calibrate(dataclasses.replace(_PLAN, **change), 4.0, 'rdp')
    epsilon = privacy.epsilon(plan, accountant='rdp')
    assert 0.995 * 4 <= epsilon <= 4


def test_max_rounds():
  rounds = privacy.max_rounds(_PLAN, 2.0)
  assert privacy.epsilon(_PLAN, rounds) <= 2.0
  assert privacy.epsilon(_PLAN, int(rounds * 1.01) + 1) > 2.0
  assert privacy.max_rounds(_PLAN, 1e-3) == 0
  silent = dataclasses.replace(_PLAN, noise_multiplier=0)
  assert privacy.max_rounds(silent, 2.0) == 0


def test_tight_noise_is_less_than_that_of_algorithm_1():
  settings = dict(
    lipschitz=2.0, rounds=10, epsilon=1.0, delta=1e-5, population=1000
  )
  tight = privacy.tight_noise_stddev(**settings)
  assert 0 < tight < privacy.algorithm_1_noise_stddev(**settings)


def test_bad_targets():
  with pytest.raises(ValueError, match='target_epsilon must be positive'):
    privacy.calibrate(_PLAN, 0)
  with pytest.raises(ValueError, match='target_epsilon must be positive'):
    privacy.max_rounds(_PLAN, math.inf)


@pytest.fixture(name='coarser')
def fixture_coarser(monkeypatch):
  """`epsilon` is a little above what the search goes by."""
  real = accounting.epsilon

  def epsilon(*args, **options):
    return 1.01 * real(*args, **options)

  monkeypatch.setattr(accounting, 'epsilon', epsilon)
  return epsilon


@pytest.mark.slow
def test_noise_keeps_the_target_by_epsilon_itself(coarser):
  found = privacy.calibrate(_PLAN, 2.0, 'rdp')
  assert coarser(found, accountant='rdp') <= 2.0
  less = dataclasses.replace(
    found, noise_multiplier=found.noise_multiplier / 1.001
  )
  assert coarser(less, accountant='rdp') > 2.0


def test_rounds_keep_the_target_by_epsilon_itself(coarser):
  found = privacy.max_rounds(_PLAN, 2.0, 'rdp')
  assert coarser(_PLAN, found, accountant='rdp') <= 2.0
  assert coarser(_PLAN, int(1.005 * found) + 1, accountant='rdp') > 2.0
