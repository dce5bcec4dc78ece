import dataclasses
import math
import subprocess
import sys

from pda_fed import privacy
import pytest
from scipy import optimize
from scipy import stats

_PLAN = privacy.PrivacyPlan(
  population=1000,
  expected_cohort=50,
  rounds=100,
  delta=1e-5,
  noise_multiplier=1.0,
  clip_norm=0.3,
)


def test_no_noise_is_infinite_and_no_round_is_free():
  assert (
    privacy.epsilon(dataclasses.replace(_PLAN, noise_multiplier=0)) == math.inf
  )
  assert privacy.epsilon(_PLAN, rounds=0) == 0


def test_one_full_round_is_the_gaussian_mechanism():
  # Balle and Wang (2018): delta of the Gaussian mechanism in closed form.
  plan = dataclasses.replace(
    _PLAN, expected_cohort=1000, rounds=1, noise_multiplier=2.0
  )

  def delta(epsilon):
    a, b = 1 / 4, 2 * epsilon
    return stats.norm.cdf(a - b) - math.exp(epsilon) * stats.norm.cdf(-a - b)

  exact = optimize.brentq(lambda e: delta(e) - plan.delta, 0.1, 10)
  assert exact <= privacy.epsilon(plan) <= exact + 2e-3


@pytest.mark.parametrize(
  'population, batch, epochs, sigma, delta, expected',
  [
    # CIFAR-10 of the paper: 96 % of 50,000 examples are private.
    (48_000, 500, 100, 1.51, 1e-5, 3.51),
    # WikiText-2: 96 % of 48,764 sequences.
    (46_813, 250, 20, 0.5, 1e-5, 15.7),
  ],
)
def test_rdp_gives_the_papers_epsilons(
  population, batch, epochs, sigma, delta, expected
):
  plan = privacy.PrivacyPlan(
    population=population,
    expected_cohort=batch,
    rounds=epochs * population // batch,
    delta=delta,
    noise_multiplier=sigma,
    clip_norm=1.0,
  )
  epsilon = privacy.epsilon(plan, accountant='rdp')
  assert epsilon == pytest.approx(expected, rel=0.01)
  assert privacy.epsilon(plan) < epsilon


@pytest.mark.parametrize(
  'worse',
  [
    dict(rounds=200),
    dict(expected_cohort=100),
    dict(noise_multiplier=0.8),
    dict(delta=1e-6),
  ],
)
@pytest.mark.parametrize('accountant', ['pld', 'rdp'])
def test_epsilon_is_monotone(worse, accountant):
  changed = dataclasses.replace(_PLAN, **worse)
  assert privacy.epsilon(changed, accountant=accountant) > privacy.epsilon(
    _PLAN, accountant=accountant
  )


def test_bad_input():
  with pytest.raises(
    ValueError, match="accountant must be one of 'pld', 'rdp'"
  ):
    privacy.epsilon(_PLAN, accountant='gdp')
  with pytest.raises(ValueError, match='delta'):
    privacy.epsilon(_PLAN, delta=0.0)
  with pytest.raises(ValueError, match='rounds'):
    privacy.epsilon(_PLAN, rounds=-1)


def test_a_plan_needs_neither_tensorflow_nor_dp_accounting():
  code = (
    'import sys\n'
    'from pda_fed import privacy, schedules, models\n'
    'from pda_fed import vectorized, linear_regression\n'
    "bad = {'tensorflow', 'tensorflow_federated', 'dp_accounting'}\n"
    'sys.exit(str(bad & set(sys.modules)) if bad & set(sys.modules) else 0)\n'
  )
  subprocess.run([sys.executable, '-c', code], check=True)
