"""Comparisons of hand-made runs: means, deviations, pairs, what is refused."""

import math

from pda_fed import errors
from pda_fed.compare import comparison
from pda_fed.compare import findings
from pda_fed.compare import names
import pytest

from tests.compare import hand_made_runs


def test_means_and_deviations_by_hand():
  runs = [
    hand_made_runs.create(method, seed, accuracy, 90.0)
    for method, values in {'pda': (0.22, 0.24), 'warm': (0.2, 0.2)}.items()
    for seed, accuracy in enumerate(values)
  ]
  found = comparison.compare(runs)
  assert list(found.scores) == ['warm', 'pda']
  assert found.metrics == ('perplexity', 'accuracy')
  assert found.known == ('accuracy', 'loss', 'perplexity')
  assert (found.select_by, found.selected) == ('loss', 'perplexity')
  pda = found.scores['pda']['accuracy']
  assert pda.mean == pytest.approx(0.23)
  assert pda.std == pytest.approx(0.01 * math.sqrt(2))
  assert found.scores['warm']['accuracy'].std == 0.0


def test_what_wins_is_marked_metric_by_metric():
  runs = hand_made_runs.three_seeds(noise=0.03, warm=(0.21, 95.0))
  found = comparison.compare(runs)
  # Perplexities differ by 5 with every seed, accuracies by 1, 4 and 7 points.
  won = {
    metric: [m for m, of in found.scores.items() if of[metric].wins]
    for metric in found.metrics
  }
  assert won == {'perplexity': ['pda'], 'accuracy': []}
  assert findings.headline(found) == (
    'PDA-DPMD is better than warm start in perplexity, by 5.00 (95 % interval'
    ' 5.00 to 5.00).'
  )
  assert findings.others(found) == [
    'PDA-DPMD is better in perplexity than cold start by 60.00 (95 % interval'
    ' 60.00 to 60.00).'
  ]
  (other,) = findings.by_other_metrics(found)
  assert other.startswith('No clear winner between PDA-DPMD and warm start in')


def test_what_is_clearly_worse_is_named_beside_a_tie():
  runs = hand_made_runs.three_seeds(noise=0.03, warm=(0.21, 95.0))
  found = comparison.compare(runs, select_by='accuracy')
  assert findings.headline(found).startswith('No clear winner between')
  # 12, 15 and 18 points more: the t quantile of two degrees is 4.30.
  assert findings.others(found) == [
    'PDA-DPMD is better in accuracy than cold start by 15.00 points (95 %'
    ' interval 7.55 to 22.45).'
  ]


def test_public_data_alone_is_a_line_like_any_other():
  made = hand_made_runs.with_public([(0.26, 96.0), (0.3, 96.5)])
  cold = hand_made_runs.create('cold', 0, 0.1, 150)
  found = comparison.compare([cold, *made])
  assert list(found.scores) == [names.PUBLIC, 'cold', 'warm', 'pda']
  public = found.scores[names.PUBLIC]['accuracy']
  assert public.mean == pytest.approx(0.28)
  assert public.std == pytest.approx(0.02 * math.sqrt(2))
  assert found.epsilon_of(names.PUBLIC) == 0
  # It takes part in the verdict, seed by seed: 99 less 96 and 96.5.
  verdict = found.verdicts['perplexity']
  assert (verdict.best, list(verdict.leads)[0]) == (names.PUBLIC, 'pda')
  assert verdict.leads['pda'].mean == pytest.approx(2.75)
  assert verdict.leads['pda'].paired
  # Runs that do not say: no line.
  del made[0].result['warm_start']['test']
  assert names.PUBLIC not in comparison.compare(made).scores


def test_a_warm_start_that_seeds_share_has_no_deviation():
  runs = hand_made_runs.with_public([(0.26, 96.0), (0.26, 96.0)])
  found = comparison.compare(runs)
  assert found.scores[names.PUBLIC]['accuracy'].std is None
  assert found.verdicts['perplexity'].leads['pda'].num_seeds == 2
  assert found.verdicts['perplexity'].is_clear


def test_one_seed_gives_no_verdict_and_one_method_nothing():
  one = comparison.compare(hand_made_runs.three_seeds()[::3])
  assert findings.headline(one).startswith('One seed: no verdict. PDA-DPMD has')
  assert not any(s.wins for of in one.scores.values() for s in of.values())
  assert findings.note(one, 'Bold') == findings.others(one) == []
  alone = comparison.compare([hand_made_runs.create('cold', 0, 0.1, 5.0)])
  assert alone.scores['cold']['perplexity'].std is None
  assert findings.headline(alone).startswith('Nothing to compare')


def test_runs_without_seeds_are_not_paired_but_with_their_own_warm_starts():
  runs = hand_made_runs.three_seeds()
  for run in runs:
    run.result['seed'] = None
  found = comparison.compare(runs)
  leads = found.verdicts['accuracy'].leads.values()
  assert not any(lead.paired for lead in leads)
  assert 'share fewer than two seeds' in findings.headline(found)
  runs = hand_made_runs.with_public([(0.26, 96.0), (0.3, 97.0)])
  for run in runs:
    run.result['seed'] = None
  warm = comparison.compare(runs).verdicts['perplexity'].leads['warm']
  assert warm.paired and warm.num_seeds == 2
  assert warm.mean == pytest.approx(100 - 96.5)


def test_runs_on_different_data_are_refused():
  runs = hand_made_runs.three_seeds()
  runs[4].config.settings['data_hash'] = 'two'
  with pytest.raises(ValueError, match="'0' in cold_0 and 'two' in warm_1"):
    comparison.compare(runs)


def test_epsilon_of_no_noise_and_of_no_accountant():
  for plan, epsilon in (({'noise_multiplier': 0.0}, math.inf), ({}, None)):
    run = hand_made_runs.create('cold', 0, 0.1, 5.0, None, **plan)
    assert run.epsilon == comparison.compare([run]).epsilon == epsilon


def test_a_run_that_diverged_is_the_worst():
  # JSON has null for what is no number.
  runs = [
    hand_made_runs.create('cold', 0, 0.1, None),
    hand_made_runs.create('warm', 0, 0.1, 90.0),
    hand_made_runs.create('warm', 1, 0.1, None),
    hand_made_runs.create('pda', 0, 0.1, 100.0),
  ]
  found = comparison.compare(runs)
  warm = found.scores['warm']['perplexity']
  assert math.isnan(warm.mean) and math.isnan(warm.std)
  assert 'perplexity' not in found.verdicts  # One method is left.
  assert found.verdicts['accuracy'].left_out == ()


def test_a_curve_of_one_test_is_none():
  run = hand_made_runs.create('pda', 0, 0.2, 90.0)
  run.rows[-1]['test_accuracy'] = 0.2
  assert comparison.compare([run]).curve_part('accuracy') == 'validation'
  run.rows[0]['test_accuracy'] = 0.1
  assert comparison.compare([run]).curve_part('accuracy') == 'test'


def test_an_unfinished_run_is_refused(tmp_path):
  (tmp_path / 'config.json').write_text('{"format": "pda_fed run"}')
  with pytest.raises(errors.OutputError, match='must hold a finished run'):
    comparison.load_run(tmp_path)
