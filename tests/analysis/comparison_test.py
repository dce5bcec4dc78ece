"""Tables, pages and grids, by hand-made runs."""

import math

from pda_fed.analysis import comparison
from pda_fed.analysis import figures
from pda_fed.analysis import report
from pda_fed.analysis import sweeping
from pda_fed.experiments import errors
import pytest

from tests.analysis import hand_made_runs

_RUNS = [
  hand_made_runs.create('pda', 0, 0.22, 90.0),
  hand_made_runs.create('pda', 1, 0.24, 92.0),
  hand_made_runs.create('warm', 0, 0.20, 100.0),
  hand_made_runs.create('warm', 1, 0.20, 100.0),
  hand_made_runs.create('cold', 0, 0.10, 150.0),
  hand_made_runs.create('cold', 1, 0.12, 150.0),
]


def test_means_deviations_and_changes_by_hand():
  found = comparison.compare(_RUNS)
  assert list(found.scores) == ['cold', 'warm', 'pda']
  assert found.metrics == ('accuracy', 'perplexity')
  pda = found.scores['pda']
  assert pda['accuracy'].mean == pytest.approx(0.23)
  assert pda['accuracy'].std == pytest.approx(0.01 * math.sqrt(2))
  assert pda['accuracy'].change == pytest.approx(0.15)
  assert pda['perplexity'].change == pytest.approx(-0.09)
  assert pda['accuracy'].best and pda['perplexity'].best
  warm = found.scores['warm']['accuracy']
  assert (warm.std, warm.change, warm.best) == (0.0, None, False)


def test_tables():
  found = comparison.compare(_RUNS)
  assert comparison.as_text(found).splitlines()[2:] == [
    'cold start  11.00 ± 1.41              -45.0%  150.00 ± 0.00'
    '              +50.0%    1.235     2',
    'warm start  20.00 ± 0.00                      100.00 ± 0.00'
    '                        1.235     2',
    'PDA-DPMD    23.00 ± 1.41              +15.0%   91.00 ± 1.41'
    '               -9.0%    1.235     2',
  ]
  assert comparison.as_markdown(found).splitlines()[4] == (
    '| PDA-DPMD | **23.00 ± 1.41** | +15.0% | **91.00 ± 1.41** | -9.0% | 1.235'
    ' | 2 |'
  )
  assert comparison.as_latex(found).splitlines()[6] == (
    r'PDA-DPMD & \textbf{23.00 $\pm$ 1.41} & \textbf{91.00 $\pm$ 1.41} \\'
  )


def _with_warm_start(run, accuracy, perplexity):
  run.result['warm_start'] = {
    'epochs': 3,
    'test': {'accuracy': accuracy, 'perplexity': perplexity},
  }
  return run


def test_public_data_alone():
  # One warm start of both methods for each of two seeds.
  made = [
    _with_warm_start(
      hand_made_runs.create(method, seed, 0.2 + 0.02 * mirror, 100 - mirror),
      *((0.3, 98.0) if seed else (0.26, 96.0)),
    )
    for method, mirror in (('warm', 0), ('pda', 1))
    for seed in (0, 1)
  ]
  found = comparison.compare(
    [hand_made_runs.create('cold', 0, 0.1, 150), *made]
  )
  assert found.public['accuracy'].mean == pytest.approx(0.28)
  assert found.public['accuracy'].std == pytest.approx(0.02 * math.sqrt(2))
  assert found.public['accuracy'].change == pytest.approx(0.4)
  # Methods that are worse than public data alone are not the best.
  assert found.public['accuracy'].best and found.public['perplexity'].best
  assert not any(s['perplexity'].best for s in found.scores.values())
  text = comparison.as_text(found).splitlines()
  assert text[2].startswith('public data alone  28.00 ± 2.83')
  assert text[2].split()[-1] == '0'
  assert '**28.00 ± 2.83**' in comparison.as_markdown(found)
  assert 'public data alone & ' in comparison.as_latex(found)
  assert 'public data alone' in report.build_page(found, {}, 'command')
  # Runs that do not say: no line.
  del made[0].result['warm_start']['test']
  assert comparison.compare(made).public is None


def test_one_seed_has_no_deviation_and_one_method_no_change():
  found = comparison.compare(
    [hand_made_runs.create('cold', 0, 0.1, 5.0)], ['loss']
  )
  score = found.scores['cold']['loss']
  assert (score.std, score.change, score.best) == (None, None, True)
  assert figures.pairs(['cold']) == [('cold',)]


def test_epsilon_of_no_noise_and_of_no_accountant():
  assert (
    hand_made_runs.create('cold', 0, 0.1, 5, None, noise_multiplier=0.0).epsilon
    == math.inf
  )
  unknown = hand_made_runs.create('cold', 0, 0.1, 5.0, None)
  assert unknown.epsilon is None
  found = comparison.compare([unknown])
  assert found.epsilon is None
  assert ' ? ' in comparison.as_text(found)
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
  assert [m for m, s in scores.items() if s.best] == ['pda']
  assert math.isnan(scores['warm'].mean) and math.isnan(scores['warm'].std)
  assert scores['pda'].change is None
  assert 'nan' in comparison.as_text(found)
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

  shared = 'Runs of one seed share their noise'
  assert shared in page(
    hand_made_runs.create('cold', 0, 0.1, 9.0),
    hand_made_runs.create('warm', 0, 0.1, 9.0),
  )
  apart = page(
    hand_made_runs.create('cold', 0, 0.1, 9.0),
    hand_made_runs.create('cold', 1, 0.1, 9.0),
  )
  assert shared not in apart
  assert 'costs as much as all of them' in apart


def test_unknown_metrics_are_listed():
  with pytest.raises(
    ValueError, match="among accuracy, loss, perplexity. Found 'bleu'"
  ):
    comparison.compare(_RUNS, ['bleu'])


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
  assert '<td>alpha.K</td><td>–</td><td>–</td><td>5</td>' in page
  assert '<td>rate</td><td>&lt;1&gt;</td>' in page
  assert page.count('currentColor') > 10
  # Ids of figures that stand in one page are all different.
  ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
  assert len(ids) == len(set(ids))


def test_figures_are_the_same_bytes_again(tmp_path):
  found = comparison.compare(_RUNS)
  first = figures.draw_comparison(found, tmp_path)
  svg = (tmp_path / 'curves_cold_warm.svg').read_bytes()
  assert figures.draw_comparison(found, tmp_path) == first
  assert (tmp_path / 'curves_cold_warm.svg').read_bytes() == svg


class TestSweeping:
  def test_grid_and_cells(self):
    grid = sweeping.parse_grid(['--clip=0.3,1', 'path=a/b'])
    cells = sweeping.cells(grid)
    assert [cell.arguments for cell in cells] == [
      ['--clip=0.3', '--path=a/b'],
      ['--clip=1', '--path=a/b'],
    ]
    assert cells[0].name == 'clip=0.3,path=a%2Fb'

  def test_cells_have_folders_of_their_own(self):
    values = 'a/b,a_b,a b,a%2Fb,a.b'
    cells = sweeping.cells(sweeping.parse_grid([f'path={values}']))
    assert len({cell.name for cell in cells}) == 5
    assert not any('/' in cell.name for cell in cells)

  @pytest.mark.parametrize('texts', [[], ['x'], ['x='], ['x=1', 'x=2']])
  def test_bad_grids(self, texts):
    with pytest.raises(ValueError, match='grid must'):
      sweeping.parse_grid(texts)

  @pytest.mark.parametrize(
    ('value', 'smaller', 'larger'),
    [
      (1, 0.5, 2),
      (0.2, 0.1, 0.5),
      (0.05, 0.02, 0.1),
      (0.25, 0.2, 0.5),
      (900, 500, 1000),
      (1e-5, 5e-6, 2e-5),
    ],
  )
  def test_values_beyond_are_1_2_and_5(self, value, smaller, larger):
    assert sweeping.next_value(value, up=False) == smaller
    assert sweeping.next_value(value, up=True) == larger

  @pytest.mark.parametrize(
    ('losses', 'ends'),
    [
      # Of the rates 5, 0.3 and 1, two cells each. An axis of words has no ends.
      ([1, 9, 2, 2, 3, 3], {'rate': '5'}),
      ([3, 3, 9, 1, 2, 2], {'rate': '0.3'}),
      ([3, 3, 2, 2, 9, 1], {}),
      ([float('nan')] * 6, {}),
    ],
  )
  def test_ends_of_axes_are_seen(self, losses, ends):
    grid = sweeping.parse_grid(['rate=5,0.3,1', 'way=a,b'])
    found = [
      sweeping.Found(cell, {'round': 4, 'loss': loss}, True)
      for cell, loss in zip(sweeping.cells(grid), losses, strict=True)
    ]
    assert sweeping.ends(found, grid, 'loss') == ends

  @pytest.mark.parametrize(
    ('rate', 'beside'),
    [('5', ('1', '10')), ('0.3', ('0.2', '1')), ('1', ('0.3', '5'))],
  )
  def test_neighbours_are_of_the_grid_or_beyond_it(self, rate, beside):
    grid = sweeping.parse_grid(['way=a,b,c', 'rate=5,0.3,1', 'K=50,200'])
    cell = sweeping.Cell((('way', 'b'), ('rate', rate), ('K', '200')))
    found = sweeping.neighbours(cell, grid, ['rate'])
    assert [tuple(dict(c.values).values()) for c in found] == [
      ('a', rate, '200'),
      ('c', rate, '200'),
      *(('b', value, '200') for value in beside),
      ('b', rate, '50'),  # An axis that does not grow has nothing beyond.
    ]
    grown = sweeping.grid_of([*sweeping.cells(grid), *found], grid)
    assert grown['way'] == ['a', 'b', 'c']
    assert grown['K'] == ['50', '200']
    assert set(grown['rate']) == {'5', '0.3', '1', *beside}

  @pytest.mark.parametrize(
    'name', ['train_loss', 'clipped_fraction', 'example_norm', 'private_norm']
  )
  def test_nothing_is_chosen_by_training(self, name):
    cell = sweeping.Cell((('rate', '1'),))
    metrics = {'round': 4, 'loss': 1.0, 'accuracy_top5': 0.2, name: 2.0}
    with pytest.raises(ValueError, match=f"loss, accuracy_top5. Found '{name}"):
      sweeping.rank([sweeping.Found(cell, metrics, True)], name)

  def test_nothing_is_chosen_by_the_test(self):
    cell = sweeping.Cell((('rate', '1'),))
    metrics = {'round': 4, 'loss': 1.0, 'test_loss': 2.0}
    found = [sweeping.Found(cell, metrics, True)]
    with pytest.raises(ValueError, match="of loss. Found 'test_loss'"):
      sweeping.rank(found, 'test_loss')
    assert 'test' not in sweeping.as_csv(found)
    del metrics['loss']
    with pytest.raises(ValueError, match='no validation data'):
      sweeping.rank(found, 'loss')

  def test_ranking(self, tmp_path):
    grid = sweeping.parse_grid(['a=1,2', 'b=1,2', 'c=1,2'])
    values = [0.1, 0.4, math.nan, 0.3, 0.2, 0.6, 0.5, 0.7]
    found = [
      sweeping.Found(cell, {'round': 4, 'accuracy': v, 'loss': v}, v != 0.7)
      for cell, v in zip(sweeping.cells(grid), values, strict=True)
    ]

    def order(metric):
      return [f.metrics[metric] for f in sweeping.rank(found, metric)]

    assert order('accuracy')[:6] == [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    assert order('loss')[:2] == [0.1, 0.2]
    assert math.isnan(order('loss')[-1])  # What diverged comes last.
    with pytest.raises(ValueError, match="of accuracy, loss. Found 'x'"):
      sweeping.rank(found, 'x')
    sweeping.draw(found, grid, 'accuracy', tmp_path / 'map.png')
    assert (tmp_path / 'map.png').stat().st_size > 1000
    lines = sweeping.as_csv(found).splitlines()
    assert lines[0] == 'a,b,c,finished,round,accuracy,loss'
    assert lines[8] == '2,2,2,0,4,0.7,0.7'
