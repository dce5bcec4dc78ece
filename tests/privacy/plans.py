"""The plan that the tests of privacy start from."""

from pda_fed import privacy

PLAN = privacy.PrivacyPlan(
  population=1000,
  expected_cohort=50,
  rounds=100,
  delta=1e-5,
  noise_multiplier=1.0,
  clip_norm=0.3,
)
