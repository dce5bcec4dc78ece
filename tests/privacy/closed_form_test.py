"""Tests for pda_fed.privacy.closed_form."""

import math
import subprocess
import sys

from pda_fed import privacy
import pytest

_SETTINGS = dict(
  lipschitz=2.0, rounds=10, epsilon=1.0, delta=1e-5, population=1000
)


def test_noise_of_algorithm_1():
  stddev = privacy.algorithm_1_noise_stddev(**_SETTINGS)
  assert stddev**2 == pytest.approx(8 * 4 * 10 * math.log(1e5) / 1000**2)


@pytest.mark.parametrize('epsilon', [0.1, 1.0, 8 * math.log(1e5)])
def test_noise_of_algorithm_1_keeps_its_promise(epsilon):
  settings = {**_SETTINGS, 'epsilon': epsilon}
  stddev = privacy.algorithm_1_noise_stddev(**settings)
  plan = privacy.PrivacyPlan(
    population=1000,
    expected_cohort=1000,
    rounds=10,
    delta=1e-5,
    noise_multiplier=stddev * 1000 / 2.0,
    clip_norm=2.0,
    unit='example',
  )
  assert plan.epsilon(accountant='rdp') <= epsilon


def test_needs_no_dp_accounting():
  program = (
    "import sys; sys.modules['dp_accounting'] = None\n"
    'from pda_fed import privacy\n'
    f'privacy.algorithm_1_noise_stddev(**{_SETTINGS!r})'
  )
  subprocess.run([sys.executable, '-c', program], check=True, timeout=300)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'lipschitz': 0}, 'lipschitz must be positive'),
    ({'epsilon': 0.0}, 'epsilon must be positive'),
    # The formula would give too little noise.
    ({'epsilon': 93.0}, r'epsilon must be in \[0, 92.1.*Found 93.0'),
    ({'delta': 1.0}, r'delta must be in \(0, 1\)'),
    ({'rounds': 0}, 'rounds must be at least 1'),
  ],
)
def test_bad_arguments(change, message):
  with pytest.raises(ValueError, match=message):
    privacy.algorithm_1_noise_stddev(**{**_SETTINGS, **change})
