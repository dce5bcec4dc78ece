"""The auditor on noise that is known, and on bugs that are planted."""

import math

import numpy as np
from pda_fed import audit
from pda_fed import privacy
import pytest

from bench import planted_bugs


def _auditor(rounds=1, seed=0, count=1000, noise=1.0, **plan):
  """An auditor of noise and canaries alone, and the model at the end."""
  fields = dict(
    population=1000,
    expected_cohort=1000,
    rounds=rounds,
    delta=1e-5,
    noise_multiplier=1.0,
    clip_norm=1.0,
  )
  plan = privacy.PrivacyPlan(**(fields | plan))
  canaries = audit.Canaries([(20_000,)], plan, seed=seed, count=count)
  auditor = audit.Auditor(canaries)
  model = np.ones(20_000, np.float32)
  auditor.start([model])
  rng = np.random.default_rng(seed)
  for round_num in range(rounds):
    sent = canaries.updates(canaries.cohort(round_num)) / canaries.norm
    stddev = noise * plan.noise_multiplier
    noised = sent.sum(axis=0) + stddev * rng.normal(size=20_000)
    auditor.add_round(canaries.scores([noised]))
    model = model - 0.1 * noised
  return auditor, model


@pytest.mark.slow
@pytest.mark.parametrize('rounds, sigma', [(1, 1.0), (4, 2.0), (9, 3.0)])
def test_the_gaussian_mechanism(rounds, sigma):
  # Rounds with everybody in them are one mechanism with sigma / sqrt(rounds).
  auditor, model = _auditor(rounds, count=2000, noise_multiplier=sigma)
  truth = float(audit.gaussian_epsilon(math.sqrt(rounds) / sigma, 1e-5))
  report = auditor.report([model], truth)
  for view in report.views.values():
    assert view.estimate == pytest.approx(truth, rel=0.15)
    assert 0 < view.lower_bound < truth
  assert not report.is_violated


def test_half_of_the_noise_is_found():
  auditor, model = _auditor(count=2000, noise=0.5, noise_multiplier=3.0)
  plan = auditor.canaries.plan
  report = auditor.report([model], plan.epsilon())
  assert report.is_violated
  words = audit.violation(report.as_dict())
  assert 'Do not release' in words and '\n' not in words


@pytest.mark.slow
def test_a_checkpoint_goes_on():
  whole, model = _auditor(rounds=3)
  again = audit.Auditor(whole.canaries)
  again.from_arrays(whole.to_arrays())
  noised = np.random.default_rng(5).normal(size=20_000)
  for auditor in (whole, again):
    auditor.add_round(auditor.canaries.scores([noised]))
  assert again.report([model], 1.0) == whole.report([model], 1.0)


def test_words_say_what_each_number_means():
  auditor, model = _auditor()
  report = auditor.report([model], 4.0).as_dict()
  text = ' '.join(audit.describe(report))
  for part in ('1,000 canaries', 'proven', 'about', 'at least', 'assumptions'):
    assert part in text
  unknown = ' '.join(audit.describe({**report, 'proven': None}))
  assert 'was not computed' in unknown
  copied = ' '.join(audit.describe({**report, 'copy': True}))
  assert 'only in a copy of the run' in copied


def test_too_few_canaries():
  with pytest.raises(ValueError, match='audit_canaries must be at least 100'):
    audit.check_count(audit_canaries=99)


@pytest.mark.slow
@pytest.mark.parametrize('bug', [b for b in planted_bugs.BUGS if b != 'none'])
def test_planted_bugs_are_found(bug):
  report = planted_bugs.audited(bug)
  assert report.is_violated, report


@pytest.mark.slow
@pytest.mark.parametrize('method', ['cold', 'pda', 'dope', 'adadps'])
def test_without_a_bug_the_bound_stays_below(method):
  alpha = {'method.alpha_constant': 0.5} if method == 'pda' else {}
  run = planted_bugs.make_run(method, **alpha)
  report = planted_bugs.audited('none', run)
  assert 0 < report.lower_bound < report.proven
  most = max(view.estimate for view in report.views.values())
  assert 0.3 * report.proven < most < 1.3 * report.proven


def test_many_small_arrays_do_not_hide_the_leak():
  # A spread of a few scores may be next to nothing.
  plan = privacy.PrivacyPlan(
    population=1000,
    expected_cohort=200,
    rounds=40,
    delta=1e-4,
    noise_multiplier=3.0,
    clip_norm=1.0,
  )
  shapes = [(3000,), *[(24,)] * 40]
  canaries = audit.Canaries(shapes, plan, seed=0, count=400)
  assert len(canaries.directions.groups) > 20
  auditor = audit.Auditor(canaries)
  size = canaries.directions.num_coordinates
  model, rng = np.zeros(size, np.float32), np.random.default_rng(0)
  auditor.start([model])
  for round_num in range(plan.rounds):
    sent = canaries.updates(canaries.cohort(round_num)) / canaries.norm
    noised = sent.sum(axis=0) + 3 * rng.normal(size=size)
    auditor.add_round(canaries.scores([noised]))
    model = model - noised
  proven = plan.epsilon()
  first, second = auditor.report([model], proven).views.values()
  assert first.estimate > 0.6 * proven
  assert first.estimate > 0.8 * second.estimate


def test_a_model_gets_as_many_canaries_as_fit():
  assert audit.usual_count([(100, 100)]) == 1000
  assert audit.usual_count([(64, 50), (50,)]) == 406
  with pytest.raises(ValueError, match='audit must be off.*needs 100'):
    audit.usual_count([(10, 10)])


def test_estimates_below_the_resolution_are_said_to_be():
  auditor, model = _auditor(noise_multiplier=50.0)
  text = ' '.join(audit.describe(auditor.report([model], 0.05).as_dict()))
  assert 'cannot distinguish estimates below' in text
