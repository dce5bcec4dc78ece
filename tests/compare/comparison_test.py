"""Comparisons, their tables and pages, by hand-made runs."""

import math

from pda_fed import errors
from pda_fed.compare import choices
from pda_fed.compare import comparison
from pda_fed.compare import figures
from pda_fed.compare import findings
from pda_fed.compare import report
from pda_fed.compare import result_tables
import pytest

from tests.compare import hand_made_runs

_RUNS = [
  hand_made_runs.create('pda', 0, 0.22, 90.0),
  hand_made_runs.create('pda', 1, 0.24, 92.0),
  hand_made_runs.create('warm', 0, 0.20, 100.0),
  hand_made_runs.create('warm', 1, 0.20, 100.0),
  hand_made_runs.create('cold', 0, 0.10, 150.0),
  hand_made_runs.create('cold', 1, 0.12, 150.0),
]


def test_means_and_deviations_by_hand():
  found = comparison.compare(_RUNS)
  assert list(found.scores) == ['cold', 'warm', 'pda']
  assert found.metrics == ('perplexity', 'accuracy')
  assert (found.select_by, found.selected) == ('loss', 'perplexity')
  pda = found.scores['pda']
  assert pda['accuracy'].mean == pytest.approx(0.23)
  assert pda['accuracy'].std == pytest.approx(0.01 * math.sqrt(2))
  assert found.scores['warm']['accuracy'].std == 0.0


def _three_seeds(*, noise=0.001, warm=(0.2, 100.0)):
  """Of three methods; PDA-DPMD is the best by accuracy."""
  middles = {'cold': (0.1, 150.0), 'warm': warm, 'pda': (0.22, 90.0)}
  return [
    hand_made_runs.create(
      method,
      seed,
      accuracy + noise * (seed if method == 'pda' else 0),
      perplexity + seed,
    )
    for method, (accuracy, perplexity) in middles.items()
    for seed in range(3)
  ]


def test_what_wins_is_marked_metric_by_metric():
  found = comparison.compare(_three_seeds(noise=0.03, warm=(0.21, 95.0)))
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
  markdown = result_tables.as_markdown(found).splitlines()
  assert markdown[4].startswith(
    '| PDA-DPMD | **91.00 ± 1.00** | 25.00 ± 3.00 |'
  )
  assert '**' not in ''.join(markdown[:4])
  page = report.build_page(found, {}, 'command')
  assert (
    '<tr class="winner"><td class="">PDA-DPMD</td><td class="best">' in page
  )
  assert page.count('class="best"') == page.count('class="winner"') == 1


def test_what_is_clearly_worse_is_named_beside_a_tie():
  runs = _three_seeds(noise=0.03, warm=(0.21, 95.0))
  found = comparison.compare(runs, select_by='accuracy')
  assert findings.headline(found).startswith('No clear winner between')
  (line,) = findings.others(found)
  # 12, 15 and 18 points more: the t quantile of two degrees is 4.30.
  assert line == (
    'PDA-DPMD is better in accuracy than cold start by 15.00 points (95 %'
    ' interval 7.55 to 22.45).'
  )
  assert f'<p class="lead">{line}</p>' in report.build_page(found, {}, '')
  assert findings.others(comparison.compare(runs[::3])) == []  # One seed.


def test_the_headline_follows_the_metric_that_selects():
  runs = _three_seeds(warm=(0.24, 100.0))
  for select_by, best in (('loss', 'PDA-DPMD'), ('accuracy', 'Warm start')):
    found = comparison.compare(runs, select_by=select_by)
    assert findings.headline(found).startswith(f'{best} is better than')
    assert f'--select_by={select_by}' in findings.selection(found)
    page = report.build_page(found, {}, 'command')
    assert f'<h1>{findings.headline(found)}</h1>' in page
    disagreement = (
      'Metrics disagree: perplexity prefers PDA-DPMD, accuracy warm start.'
    )
    assert findings.disagree(found) == disagreement
    assert disagreement in page


def test_tables():
  found = comparison.compare(_RUNS)
  assert result_tables.as_text(found).splitlines() == [
    'method         perplexity  accuracy (%)  epsilon  runs',
    '----------  -------------  ------------  -------  ----',
    'cold start  150.00 ± 0.00  11.00 ± 1.41    1.235     2',
    'warm start  100.00 ± 0.00  20.00 ± 0.00    1.235     2',
    'PDA-DPMD     91.00 ± 1.41  23.00 ± 1.41    1.235     2',
  ]
  latex = result_tables.as_latex(comparison.compare(_three_seeds()))
  assert latex.splitlines()[6] == (
    r'PDA-DPMD & \textbf{91.00 $\pm$ 1.00} & \textbf{22.10 $\pm$ 0.10} \\'
  )


def test_accuracy_over_all_tokens_stands_beside_that_over_known_words():
  runs = _three_seeds()
  for run in runs:
    run.result['test']['accuracy_with_oov'] = 0.3
  header = result_tables.header(comparison.compare(runs))
  assert header[1:4] == [
    'perplexity',
    'accuracy, known words (%)',
    'accuracy, all tokens (%)',
  ]


def _with_warm_start(run, accuracy, perplexity):
  run.result['warm_start'] = {
    'epochs': 3,
    'test': {'accuracy': accuracy, 'perplexity': perplexity},
  }
  return run


def _with_public(starts):
  """One warm start of both methods for each seed."""
  return [
    _with_warm_start(
      hand_made_runs.create(method, seed, 0.2 + 0.02 * mirror, 100 - mirror),
      *start,
    )
    for method, mirror in (('warm', 0), ('pda', 1))
    for seed, start in enumerate(starts)
  ]


def test_public_data_alone_is_a_line_like_any_other():
  made = _with_public([(0.26, 96.0), (0.3, 96.5)])
  cold = hand_made_runs.create('cold', 0, 0.1, 150)
  found = comparison.compare([cold, *made])
  public = found.scores[comparison.PUBLIC]
  assert public['accuracy'].mean == pytest.approx(0.28)
  assert public['accuracy'].std == pytest.approx(0.02 * math.sqrt(2))
  assert found.epsilon_of(comparison.PUBLIC) == 0
  text = result_tables.as_text(found).splitlines()
  assert text[2].startswith('public data alone   96.25 ± 0.35  28.00 ± 2.83')
  assert text[2].split()[-1] == '0'
  # It takes part in the verdict, seed by seed: 99 less 96 and 96.5.
  verdict = found.verdicts['perplexity']
  assert (verdict.best, list(verdict.leads)[0]) == (comparison.PUBLIC, 'pda')
  assert verdict.leads['pda'].mean == pytest.approx(2.75)
  assert verdict.leads['pda'].paired
  assert 'public data alone &' in result_tables.as_latex(found)
  assert '>public data alone<' in report.build_page(found, {}, 'command')
  # Runs that do not say: no line.
  del made[0].result['warm_start']['test']
  assert comparison.PUBLIC not in comparison.compare(made).scores


def test_a_warm_start_that_seeds_share_has_no_deviation():
  found = comparison.compare(_with_public([(0.26, 96.0), (0.26, 96.0)]))
  assert found.scores[comparison.PUBLIC]['accuracy'].std is None
  assert found.verdicts['perplexity'].leads['pda'].num_seeds == 2
  assert found.verdicts['perplexity'].is_clear


def test_one_seed_gives_no_verdict_and_one_method_nothing():
  one = comparison.compare([r for r in _RUNS if r.result['seed'] == 0])
  assert findings.headline(one).startswith('One seed: no verdict. PDA-DPMD has')
  assert not any(s.wins for of in one.scores.values() for s in of.values())
  assert findings.note(one, 'Bold') == []
  alone = comparison.compare([hand_made_runs.create('cold', 0, 0.1, 5.0)])
  assert alone.scores['cold']['perplexity'].std is None
  assert findings.headline(alone).startswith('Nothing to compare')
  assert figures.pairs(['cold']) == [('cold',)]


def test_runs_without_seeds_are_not_paired():
  runs = _three_seeds()
  for run in runs:
    run.result['seed'] = None
  found = comparison.compare(runs)
  assert not any(
    lead.paired for lead in found.verdicts['accuracy'].leads.values()
  )
  assert 'share fewer than two seeds' in findings.headline(found)


def test_runs_without_seeds_are_paired_with_their_own_warm_starts():
  runs = _with_public([(0.26, 96.0), (0.3, 97.0)])
  for run in runs:
    run.result['seed'] = None
  leads = comparison.compare(runs).verdicts['perplexity'].leads
  assert leads['warm'].paired and leads['warm'].num_seeds == 2
  assert leads['warm'].mean == pytest.approx(100 - 96.5)


def test_runs_on_different_data_are_refused():
  runs = _three_seeds()
  runs[4].config.settings['data_hash'] = 'two'
  with pytest.raises(ValueError, match="'0' in cold_0 and 'two' in warm_1"):
    comparison.compare(runs)


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({}, None),
    ({'epsilon': 1.24}, None),  # Accountants round.
    ({'epsilon': 1.4}, 'epsilon is 1.235 for warm start, 1.4 for PDA-DPMD.'),
    ({'epsilon': None}, 'epsilon is 1.235 for warm start, ? for PDA-DPMD.'),
    ({'noise_multiplier': 0.0}, 'epsilon is 1.235 for warm start, inf for'),
    ({'delta': 1e-5}, 'delta is 0.0001 for warm start, 1e-05 for PDA-DPMD.'),
    (
      {'sampling': 'fixed_size'},
      'neighbouring is add or remove one user for warm start, replace',
    ),
  ],
)
def test_privacy_that_differs_is_marked(changes, words):
  runs = [hand_made_runs.create('warm', s, 0.2, 100.0 + s) for s in (0, 1)]
  runs += [
    hand_made_runs.create('pda', s, 0.2, 90.0 + s, **changes) for s in (0, 1)
  ]
  found = comparison.compare(runs)
  lines = findings.unequal_privacy(found)
  page = report.build_page(found, {}, 'command')
  if words is None:
    assert lines == []
    assert 'class="warning"' not in page
  else:
    assert lines[0].startswith(f'Not equally private: {words}')
    assert lines[0] in page
  differ = 'Their epsilons differ' in findings.headline(found)
  assert differ == (words is not None and words.startswith('epsilon'))


def test_seeds_of_one_method_may_differ_in_epsilon():
  runs = [
    hand_made_runs.create('warm', seed, 0.2, 100.0, epsilon)
    for seed, epsilon in enumerate((1.0, 2.0))
  ]
  (line,) = findings.unequal_privacy(comparison.compare(runs))
  assert 'epsilon is at most 2 for warm start, less in some of 2 runs' in line


def test_epsilon_of_no_noise_and_of_no_accountant():
  assert (
    hand_made_runs.create('cold', 0, 0.1, 5, None, noise_multiplier=0.0).epsilon
    == math.inf
  )
  unknown = hand_made_runs.create('cold', 0, 0.1, 5.0, None)
  assert unknown.epsilon is None
  found = comparison.compare([unknown])
  assert found.epsilon is None
  assert ' ? ' in result_tables.as_text(found)
  assert 'was not computed' in report.build_page(found, {}, 'command')


def test_a_run_that_diverged_is_the_worst(tmp_path):
  # JSON has null for what is no number.
  runs = [
    hand_made_runs.create('cold', 0, 0.1, None),
    hand_made_runs.create('warm', 0, 0.1, 90.0),
    hand_made_runs.create('warm', 1, 0.1, None),
    hand_made_runs.create('pda', 0, 0.1, 100.0),
  ]
  found = comparison.compare(runs)
  scores = {m: s['perplexity'] for m, s in found.scores.items()}
  assert math.isnan(scores['warm'].mean) and math.isnan(scores['warm'].std)
  assert 'perplexity' not in found.verdicts  # One method is left.
  assert found.verdicts['accuracy'].left_out == ()
  assert 'nan' in result_tables.as_text(found)
  drawn = figures.draw_comparison(found, tmp_path)
  report.build_page(found, drawn, 'command')


@pytest.mark.parametrize('part', ['validation', 'test'])
def test_page_says_what_its_curves_are_of(tmp_path, part):
  run = hand_made_runs.create('pda', 0, 0.1, 9.0)
  if part == 'test':
    for row in run.rows:
      row.update({'test_accuracy': 0.1, 'test_perplexity': 9.0})
  found = comparison.compare([run])
  drawn = figures.draw_comparison(found, tmp_path)
  page = report.build_page(found, drawn, 'command')
  assert f'on {part} data, round by round' in page
  assert f'>{part} accuracy (%)<' in page


def test_shared_noise_is_said():
  def page(*runs):
    return report.build_page(comparison.compare(runs), {}, 'command')

  shared = 'Runs that share a seed share their noise'
  assert shared in page(
    hand_made_runs.create('cold', 0, 0.1, 9.0),
    hand_made_runs.create('warm', 0, 0.1, 9.0),
  )
  apart = page(
    hand_made_runs.create('cold', 0, 0.1, 9.0),
    hand_made_runs.create('cold', 1, 0.1, 9.0),
  )
  assert shared not in apart
  assert 'of several published runs' in apart


def test_unknown_metrics_are_listed():
  with pytest.raises(
    ValueError, match='metrics must be among accuracy, loss, perplexity. Found'
  ):
    comparison.compare(_RUNS, ['bleu'])
  with pytest.raises(ValueError, match="select_by must be .* Found 'bleu'"):
    comparison.compare(_RUNS, select_by='bleu')


def test_an_unfinished_run_is_refused(tmp_path):
  (tmp_path / 'config.json').write_text('{"format": "pda_fed run"}')
  with pytest.raises(errors.OutputError, match='must hold a finished run'):
    comparison.load_run(tmp_path)


def test_the_page_says_all_and_escapes(tmp_path):
  found = comparison.compare(_RUNS)
  drawn = figures.draw_comparison(found, tmp_path)
  assert list(drawn) == [('cold', 'warm'), ('warm', 'pda')]
  page = report.build_page(found, drawn, 'run <this>')
  assert '(epsilon, delta) = (1.235, 0.0001)' in page
  assert 'Poisson cohorts of 10 out of 1,000 users' in page
  assert 'Words &amp; &lt;tags&gt;.' in page
  assert 'run &lt;this&gt;' in page
  assert '<td>method.K</td><td>–</td><td>–</td><td>5</td>' in page
  assert '<td>rate</td><td>&lt;1&gt;</td>' in page
  assert page.count('currentColor') > 10
  # A panel for each metric of each pair, so that a phone can stack them.
  assert page.count('<svg') == 4
  assert page.count('>cold start</text>') == 2  # In legends.
  assert 'No search is recorded' in page
  # Ids of figures that stand in one page are all different.
  ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
  assert len(ids) == len(set(ids))


def test_the_page_says_how_settings_were_chosen():
  found = comparison.compare(_RUNS)
  chosen = choices.Choices(
    'search <this>',
    'loss',
    {
      'warm': choices.Choice({'data_dir': '<1>'}, 3, 4.5),
      'pda': choices.Choice({}, 6, 4.25),
    },
  )
  page = report.build_page(found, {}, 'command', (), chosen, ['An end.'])
  for words in (
    'Settings were chosen by validation loss.',
    '<td>&#x27;--data_dir=&lt;1&gt;&#x27;</td><td>3</td><td>4.5000</td>',
    '<td>PDA-DPMD</td><td>–</td><td>6</td><td>4.2500</td>',
    '<p class="warning">Warning: methods had different numbers of trials',
    '<pre>search &lt;this&gt;</pre>',
    'An end.',
  ):
    assert words in page


def test_figures_are_the_same_bytes_again(tmp_path):
  found = comparison.compare(_RUNS)
  first = figures.draw_comparison(found, tmp_path)
  svg = (tmp_path / 'curves_cold_warm.svg').read_bytes()
  assert figures.draw_comparison(found, tmp_path) == first
  assert (tmp_path / 'curves_cold_warm.svg').read_bytes() == svg
