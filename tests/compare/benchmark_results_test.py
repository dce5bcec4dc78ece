"""Gains over warm start, and the benchmark's table and figure."""

import csv
import math
import pathlib

from pda_fed.compare import benchmark_files
from pda_fed.compare import benchmark_results
from pda_fed.compare import benchmark_tasks
from pda_fed.compare import choices
from pda_fed.compare import comparison
import pytest

from tests.compare import hand_made_runs

_ACCURACIES = {'warm': (0.20, 0.22), 'pda': (0.23, 0.26), 'dope': (0.19, 0.22)}


def _result(name='one', metric='accuracy', epsilon=2.0, skip=(), **changes):
  runs = [
    hand_made_runs.create(method, seed, accuracy, 100 * accuracy)
    for method, values in {**_ACCURACIES, **changes}.items()
    for seed, accuracy in enumerate(values)
    if method not in skip
  ]
  rates = {'server.learning_rate': [1, 2, 3]}
  methods = {m: rates for m in {r.method: 0 for r in runs}}
  task = benchmark_tasks.Task(
    name=name,
    title=name.capitalize(),
    epsilon=epsilon,
    data_dir=None,
    settings={'dataset': 'digits'},
    search_settings={},
    select_by=metric,
    metrics=(metric,),
    rates={'server.learning_rate': [1]},
    grids=methods,
  )
  chosen = {
    m: choices.Choice({'server.learning_rate': 2}, 3, 4.25) for m in methods
  }
  return benchmark_results.TaskResult(
    task,
    pathlib.Path('nowhere'),
    comparison.compare(runs, [metric], metric),
    choices.Choices('command', metric, chosen),
  )


@pytest.mark.parametrize(('metric', 'sign'), [('accuracy', 1), ('loss', -1)])
def test_gains_are_positive_for_what_is_better(metric, sign):
  result = _result(metric=metric)
  for runs in result.comparison.runs.values():
    for run in runs:
      run.result['test']['loss'] = run.result['test']['accuracy']
  gains = benchmark_results.gains(result)
  assert list(gains) == ['pda', 'dope']
  # Differences of 0.03 and 0.04, and of -0.01 and 0.
  assert gains['pda'].mean == pytest.approx(sign * 0.035)
  assert gains['dope'].mean == pytest.approx(sign * -0.005)
  # t of 1 degree of freedom is 12.706; the standard error is 0.005.
  half = 12.706204736 * 0.005
  assert gains['pda'].low == pytest.approx(sign * 0.035 - half)
  assert gains['pda'].high == pytest.approx(sign * 0.035 + half)


def test_no_gains_without_a_warm_start_or_of_what_diverged():
  assert benchmark_results.gains(_result(skip=['warm'])) == {}
  gains = benchmark_results.gains(_result(dope=(math.nan, 0.2)))
  assert list(gains) == ['pda']


def test_table_has_a_row_for_each_method_and_a_column_for_each_task():
  results = [
    _result(),
    _result('two', 'perplexity', 0.5, ['dope'], pda=(0.1, 0.12)),
  ]
  assert benchmark_results.header(results) == [
    'method',
    'One, epsilon 2: accuracy (%)',
    'Two, epsilon 0.5: perplexity',
    'trials',
  ]
  assert benchmark_results.rows(results, '**{}**') == [
    ['warm start', '21.00', '21.00', '3'],
    [
      'PDA-DPMD',
      '24.50 (+3.50, -2.85 to +9.85)',
      # Both seeds are better by 10: the winner.
      '**11.00** (+10.00, +10.00 to +10.00)',
      '3',
    ],
    ['DOPE-SGD', '20.50 (-0.50, -6.85 to +5.85)', '', '3'],
  ]


def test_one_seed_has_no_interval_and_no_winner():
  (row,) = (
    r
    for r in benchmark_results.rows(
      [_result(warm=(0.2,), pda=(0.3,), dope=(0.2,))], '**{}**'
    )
    if r[0] == 'PDA-DPMD'
  )
  assert row[1] == '30.00 (+10.00)'


def test_lines_name_the_verdict_and_an_epsilon_that_is_too_large():
  # Runs have 1.2345.
  (verdict,) = benchmark_results.lines([_result()])
  assert verdict.startswith('one: No clear winner between PDA-DPMD and')
  assert len(benchmark_results.lines([_result(epsilon=1.23)])) == 1
  _, line = benchmark_results.lines([_result(epsilon=1.2)])
  assert line == 'one: epsilon is 1.235, but the task allows 1.2.'
  result = _result()
  result.comparison.runs['pda'][0].result['epsilon'] = None
  assert 'one: epsilon is ?, but the task allows 2.' in benchmark_results.lines(
    [result]
  )


def test_a_method_that_lacks_a_seed_is_named_and_never_bold():
  # Of one seed PDA-DPMD is the best by far.
  result = _result(warm=(0.2, 0.21, 0.2), pda=(0.3, 0.31), skip=['dope'])
  (line,) = benchmark_results.lines([result])[1:]
  assert line.startswith('one: PDA-DPMD has 2 of 3 seeds.')
  rows = benchmark_results.rows([result], '**{}**')
  assert not any('**' in text for row in rows for text in row)
  whole = _result(warm=(0.2, 0.21, 0.2), pda=(0.3, 0.31, 0.3), skip=['dope'])
  assert len(benchmark_results.lines([whole])) == 1
  rows = benchmark_results.rows([whole], '**{}**')
  assert any('**' in text for row in rows for text in row)


def test_final_runs_are_a_row_each():
  rows = list(csv.DictReader(benchmark_files.final_csv([_result()]).split()))
  assert len(rows) == 6
  assert rows[3] == {
    'task': 'one',
    'method': 'pda',
    'seed': '1',
    'settings': 'server.learning_rate=2',
    'epsilon': '1.2345',
    'delta': '0.0001',
    'trials': '3',
    'validation': '4.25',
    'loss': '1',
    'accuracy': '0.26',
    'accuracy_with_oov': '',
    'perplexity': '26',
  }


def test_public_data_alone_has_a_row_for_each_seed():
  result = _result(skip=['dope'])
  for runs in result.comparison.runs.values():
    for run in runs:
      test = {**run.result['test'], 'accuracy': 0.5 + run.result['seed']}
      run.result['warm_start'] = {'test': test}
  rows = list(csv.DictReader(benchmark_files.final_csv([result]).split()))
  assert [row['method'] for row in rows] == 2 * ['public'] + [
    *2 * ['warm'],
    *2 * ['pda'],
  ]
  shown = [(r['seed'], r['accuracy'], r['epsilon']) for r in rows[:2]]
  assert shown == [('0', '0.5', '0'), ('1', '1.5', '0')]
  assert rows[0]['trials'] == rows[0]['settings'] == ''


def test_figure_has_a_panel_for_each_task(tmp_path):
  many = [_result(f'task{i}') for i in range(5)]
  benchmark_results.draw([*many, _result('none', skip=['warm'])], tmp_path)
  assert (tmp_path / 'gains.png').read_bytes()[:4] == b'\x89PNG'
  svg = (tmp_path / 'gains.svg').read_text()
  assert svg.count('>gain in accuracy, points<') == 5
  assert svg.count('>PDA-DPMD<') == 2  # Once in each row of panels.
  assert 'Task4, epsilon 2' in svg and 'None' not in svg


def test_nothing_is_drawn_without_a_warm_start(tmp_path):
  benchmark_results.draw([_result(skip=['warm'])], tmp_path)
  assert not list(tmp_path.iterdir())
