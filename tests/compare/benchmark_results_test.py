"""The benchmark's table, rows and figure, of hand-made runs."""

import csv
import dataclasses
import math
import pathlib

from pda_fed.compare import benchmark_results
from pda_fed.compare import benchmark_tasks
from pda_fed.compare import choices
from pda_fed.compare import comparison
from pda_fed.compare import report
from pda_fed.compare import tables
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
  for run in runs:
    run.result['test']['loss'] = run.result['test']['accuracy']
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
  shown = report.Report(
    comparison=comparison.compare(runs, [metric], metric),
    command='command',
    choices=choices.Choices('command', metric, chosen),
  )
  return benchmark_results.TaskResult(task, pathlib.Path('nowhere'), shown)


@pytest.mark.parametrize(('metric', 'scale'), [('accuracy', 100), ('loss', -1)])
def test_gains_are_positive_for_what_is_better(metric, scale):
  gains = _result(metric=metric).gains()
  assert list(gains) == ['pda', 'dope']
  # Differences of 0.03 and 0.04, and of -0.01 and 0.
  assert gains['pda'].mean == pytest.approx(scale * 0.035)
  assert gains['dope'].mean == pytest.approx(scale * -0.005)
  # t of 1 degree of freedom is 12.706; the standard error is 0.005.
  half = 12.706204736 * abs(scale) * 0.005
  assert gains['pda'].low == pytest.approx(scale * 0.035 - half)
  assert gains['pda'].high == pytest.approx(scale * 0.035 + half)


def test_no_gains_without_a_warm_start_or_of_what_diverged():
  assert _result(skip=['warm']).gains() == {}
  assert list(_result(dope=(math.nan, 0.2)).gains()) == ['pda']


def test_table_has_a_row_for_each_task_and_method():
  results = [
    _result(),
    _result('two', 'perplexity', 0.5, ['dope'], pda=(0.1, 0.12)),
    _result('three', warm=(0.2,), pda=(0.3,), skip=['dope']),
  ]
  one, two = ('one', 'accuracy (%)'), ('two', 'perplexity')
  assert [
    (row[0], row[2], row[1], *row[3:])
    for row in benchmark_results.of_tasks(results).rows
  ] == [
    (*one, 'warm start', '21.00', '', '3'),
    (*one, 'PDA-DPMD', '24.50', '+3.50, -2.85 to +9.85', '3'),
    (*one, 'DOPE-SGD', '20.50', '-0.50, -6.85 to +5.85', '3'),
    (*two, 'warm start', '21.00', '', '3'),
    (*two, 'PDA-DPMD', '11.00', '+10.00, +10.00 to +10.00', '3'),
    ('three', 'accuracy (%)', 'warm start', '20.00', '', '3'),
    ('three', 'accuracy (%)', 'PDA-DPMD', '30.00', '+10.00', '3'),
  ]
  # In the second task both seeds are better by 10: the winner.
  markdown = benchmark_results.of_tasks(results).as_markdown()
  assert markdown.count('**') == 2 and '**11.00**' in markdown


def test_lines_name_the_verdict_and_an_epsilon_that_is_too_large():
  # Runs have 1.2345.
  (verdict,) = _result().lines()
  assert verdict.startswith('one: No clear winner between PDA-DPMD and')
  assert len(_result(epsilon=1.23).lines()) == 1
  _, line = _result(epsilon=1.2).lines()
  assert line == 'one: epsilon is 1.235, but the task allows 1.2.'
  result = _result()
  result.comparison.runs['pda'][0].result['epsilon'] = None
  assert 'one: epsilon is ?, but the task allows 2.' in result.lines()


@pytest.mark.parametrize('missing', [(), ('Left out because it failed.',)])
def test_a_method_that_lacks_a_seed_is_named_and_never_best(missing):
  found = _result(warm=(0.2, 0.21, 0.2), pda=(0.3,) * 3, skip=['dope'])
  shown = dataclasses.replace(found.report, missing=missing)
  result = dataclasses.replace(found, report=shown)
  assert result.lines()[1:] == [f'one: {line}' for line in missing]
  *_, (*_, mean, _, _) = result.rows()
  assert isinstance(mean, tables.Best) == (not missing)


def test_final_runs_and_warm_starts_are_a_row_each():
  result = _result(skip=['dope'])
  runs = result.comparison.all_runs
  for run in runs:
    test = {**run.result['test'], 'accuracy': 0.5 + run.seed}
    run.result['warm_start'] = {'test': test}
  compared = comparison.compare(runs, ['accuracy'], 'accuracy')
  shown = dataclasses.replace(result.report, comparison=compared)
  result = dataclasses.replace(result, report=shown)
  rows = list(csv.DictReader(benchmark_results.final_csv([result]).split()))
  assert [(row['method'], row['seed']) for row in rows] == [
    (method, seed) for method in ('public', 'warm', 'pda') for seed in '01'
  ]
  shown = [(r['accuracy'], r['epsilon']) for r in rows[:2]]
  assert shown == [('0.5', '0'), ('1.5', '0')]
  assert rows[0]['trials'] == rows[0]['settings'] == ''
  assert rows[5] == {
    'task': 'one',
    'method': 'pda',
    'seed': '1',
    'settings': 'server.learning_rate=2',
    'epsilon': '1.2345',
    'delta': '0.0001',
    'trials': '3',
    'validation': '4.25',
    'loss': '0.26',
    'accuracy': '0.26',
    'accuracy_with_oov': '',
    'perplexity': '26',
  }


def test_figure_has_a_panel_for_each_task_with_a_warm_start(tmp_path):
  none = _result('none', skip=['warm'])
  benchmark_results.draw([none], tmp_path)
  assert not list(tmp_path.iterdir())
  many = [_result(f'task{i}') for i in range(5)]
  benchmark_results.draw([*many, none], tmp_path)
  assert (tmp_path / 'gains.png').read_bytes()[:4] == b'\x89PNG'
  svg = (tmp_path / 'gains.svg').read_text()
  assert svg.count('>gain in accuracy, points<') == 5
  assert svg.count('>PDA-DPMD<') == 2  # Once in each row of panels.
  assert 'Task4, epsilon 2' in svg and 'None' not in svg
