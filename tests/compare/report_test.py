"""The page of hand-made runs."""

from pda_fed.compare import choices
from pda_fed.compare import comparison
from pda_fed.compare import figures
from pda_fed.compare import findings
import pytest

from tests.compare import hand_made_runs

_page = hand_made_runs.page


def test_the_page_says_all_and_escapes(tmp_path):
  runs = [r for r in hand_made_runs.three_seeds() if r.seed < 2]
  found = comparison.compare(runs)
  drawn = figures.draw_comparison(found, tmp_path)
  assert list(drawn) == [('cold', 'warm'), ('warm', 'pda')]
  page = _page(found, drawn)
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


def test_the_winner_is_marked():
  runs = hand_made_runs.three_seeds(noise=0.03, warm=(0.21, 95.0))
  page = _page(comparison.compare(runs))
  assert '<tr class="winner"><td>PDA-DPMD</td><td class="best">' in page
  assert page.count('class="best"') == page.count('class="winner"') == 1


def test_the_headline_follows_the_metric_that_selects():
  runs = hand_made_runs.three_seeds(warm=(0.24, 100.0))
  for select_by, best in (('loss', 'PDA-DPMD'), ('accuracy', 'Warm start')):
    found = comparison.compare(runs, select_by=select_by)
    assert findings.headline(found).startswith(f'{best} is better than')
    page = _page(found)
    assert f'<h1>{findings.headline(found)}</h1>' in page
    assert f'--select_by={select_by}' in page
    for line in findings.others(found):
      assert f'<p class="lead">{line}</p>' in page
    (line,) = findings.disagreement(found)
    assert 'perplexity prefers PDA-DPMD, accuracy warm start' in line
    assert line in page


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
  page = _page(found)
  if words is None:
    assert lines == []
    assert 'class="warning"' not in page
  else:
    assert lines[0].startswith(f'Not equally private: {words}')
    assert lines[0] in page
  assert ('was not computed' in page) == (changes == {'epsilon': None})
  differ = 'Their epsilons differ' in findings.headline(found)
  assert differ == (words is not None and words.startswith('epsilon'))


def test_seeds_of_one_method_may_differ_in_epsilon():
  runs = [
    hand_made_runs.create('warm', seed, 0.2, 100.0, epsilon)
    for seed, epsilon in enumerate((1.0, 2.0))
  ]
  (line,) = findings.unequal_privacy(comparison.compare(runs))
  assert 'epsilon is at most 2 for warm start, less in some of 2 runs' in line


@pytest.mark.parametrize('part', ['validation', 'test'])
def test_page_says_what_its_curves_are_of(tmp_path, part):
  run = hand_made_runs.create('pda', 0, 0.1, 9.0)
  if part == 'test':
    for row in run.rows:
      row.update({'test_accuracy': 0.1, 'test_perplexity': 9.0})
  found = comparison.compare([run])
  page = _page(found, figures.draw_comparison(found, tmp_path))
  assert f'on {part} data, round by round' in page
  assert f'>{part} accuracy (%)<' in page


def test_shared_noise_is_said():
  def page(*keys):
    runs = [hand_made_runs.create(*key, 0.1, 9.0) for key in keys]
    return _page(comparison.compare(runs))

  shared = 'Runs that share a seed share their noise'
  assert shared in page(('cold', 0), ('warm', 0))
  apart = page(('cold', 0), ('cold', 1))
  assert shared not in apart
  assert 'of several published runs' in apart


def test_the_page_says_how_settings_were_chosen():
  chosen = choices.Choices(
    'search <this>',
    'loss',
    {
      'warm': choices.Choice({'data_dir': '<1>'}, 3, 4.5),
      'pda': choices.Choice({}, 6, 4.25),
    },
  )
  found = comparison.compare(hand_made_runs.three_seeds())
  page = _page(found, choices=chosen, remarks=['An end.'])
  for words in (
    'Settings were chosen by validation loss.',
    '<td>&#x27;--data_dir=&lt;1&gt;&#x27;</td><td>3</td><td>4.5000</td>',
    '<td>PDA-DPMD</td><td>–</td><td>6</td><td>4.2500</td>',
    '<p class="warning">Warning: methods had different numbers of trials',
    '<pre>search &lt;this&gt;</pre>',
    'An end.',
  ):
    assert words in page
