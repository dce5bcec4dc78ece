"""The benchmark's tasks are those of its page, and take the flags they give."""

import collections
import json
import math
import re
import statistics
import subprocess
import sys

from pda_fed import methods
from pda_fed.analysis import benchmark_tasks
from pda_fed.analysis import statistics as statistics_lib
import pytest
from scripts.lib import cli

from bench import public_share
from tests.docs import pages

_TASKS = {
  path.stem: benchmark_tasks.load(path)
  for path in (pages.ROOT / 'scripts/benchmark_tasks').glob('*.json')
}


def _rows():
  """Cells of the page's table of tasks, by task."""
  text = (pages.ROOT / 'docs/benchmark.md').read_text()
  table = text.partition('## Tasks')[2].partition('## Rules')[0]
  lines = [line for line in table.splitlines() if line.startswith('| `')]
  rows = [line.strip('| ').split(' | ') for line in lines]
  return {row[0].strip('`'): row for row in rows}


def test_tasks_are_those_of_the_page():
  assert set(_rows()) == set(_TASKS)


@pytest.mark.parametrize('name', _TASKS)
def test_a_row_has_the_privacy_of_its_task(name, monkeypatch):
  monkeypatch.chdir(pages.ROOT)
  task = _TASKS[name]
  words = cli.expanded(task.flags)
  flags = dict(word.lstrip('-').partition('=')[::2] for word in words)
  rows = _rows()
  epsilon, delta = map(float, rows[name][3].split(', '))
  assert (epsilon, delta) == (task.epsilon, float(flags['delta']))
  is_same = rows[name][4] == 'the same'
  steps = rows['cifar10_eps0.185' if is_same else name][4]
  found = [int(n) for n in re.findall(r'\d+', steps.replace(',', ''))]
  if task.binary == 'train_sample_level':
    # A step takes a twentieth of the examples.
    expected = [20 * int(flags['epochs']), int(flags['batch_size'])]
  else:
    expected = [int(flags['rounds']), int(flags['clients_per_round'])]
  assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize(
  'binary', sorted({task.binary for task in _TASKS.values()})
)
def test_flags_of_tasks_exist(binary):
  commands = []
  for task in _TASKS.values():
    if task.binary == binary:
      for method, axes in task.grids.items():
        first = [f'--{axis.partition(",")[0]}' for axis in axes]
        own = [f'--method={method}', *first]
        commands.append([*task.flags, *task.search_flags, *own])
  done = subprocess.run(
    [sys.executable, '-m', 'tests.docs.flag_checker'],
    input=json.dumps({'module': f'scripts.{binary}', 'commands': commands}),
    cwd=pages.ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    check=True,
  )
  assert json.loads(done.stdout.splitlines()[-1])['errors'] == []
  assert commands


def _results():
  """The page's tables of results: the metric, the columns, rows by method."""
  text = (pages.ROOT / 'docs/benchmark.md').read_text()
  section = text.partition('## Results')[2].partition('\n## ')[0]
  tables = []
  for block in re.findall(r'(?:^\|.*\n)+', section, re.MULTILINE):
    lines = block.replace('**', '').splitlines()
    cells = [[c.strip() for c in line.split('|')[1:-1]] for line in lines]
    (metric, *columns), _, *rows = cells
    tables.append((metric, columns, {row[0]: row[1:] for row in rows}))
  return tables


def _final_values(task, metric):
  """Test values by method and seed."""
  found = collections.defaultdict(dict)
  for row in pages.read_csv('benchmark/final.csv'):
    if row['task'] == task and row['method'] != 'public':
      found[row['method']][int(row['seed'])] = float(row[metric])
  return found


def _expected_cell(values, baseline, digits):
  """A mean and, unless these are the baseline's values, the gain over it."""
  mean = f'{statistics.fmean(values.values()):.{digits}f}'
  if values == baseline:
    return mean
  gains = [baseline[seed] - values[seed] for seed in range(3)]
  # t of 2 degrees of freedom.
  half = 4.302652730 * statistics.stdev(gains) / math.sqrt(3)
  middle = statistics.fmean(gains)
  gain, low, high = (
    f'{end:+.{digits}f}' for end in (middle, middle - half, middle + half)
  )
  return f'{mean} ({gain}, {low} to {high})'


def _recorded_tasks():
  rows = pages.read_csv('benchmark/final.csv')
  return list(dict.fromkeys(row['task'] for row in rows))


def _column(task):
  return f'{_TASKS[task].title}, {_TASKS[task].epsilon:g}'


def _shown(task):
  """Cells and tries by method, for each metric with a table of this task."""
  found = {}
  for metric, columns, rows in _results():
    if _column(task) in columns:
      place = columns.index(_column(task))
      cells = {method: row[place] for method, row in rows.items()}
      tries = {m: r[-1] for m, r in rows.items() if columns[-1] == 'tries'}
      found[metric] = (cells, tries)
  return found


def test_every_task_is_recorded_and_shown():
  assert set(_recorded_tasks()) == set(_TASKS)
  for task in _TASKS.values():
    of_images = {'loss', 'accuracy'}
    metrics = {'perplexity'} if 'perplexity' in task.metrics else of_images
    assert set(_shown(task.name)) == metrics


@pytest.mark.parametrize('task', _recorded_tasks())
def test_results_are_the_recorded_runs(task):
  for metric, (cells, tries) in _shown(task).items():
    runs = _final_values(task, metric)
    titles = {methods.title(method): method for method in runs}
    assert set(cells) == {*titles, 'public data alone'}
    for title, method in titles.items():
      values = runs[method]
      assert sorted(values) == [0, 1, 2]
      if metric == 'accuracy':
        percent = [100 * value for value in values.values()]
        mean, deviation = statistics.mean(percent), statistics.stdev(percent)
        assert cells[title] == f'{mean:.2f} ± {deviation:.2f} %'
      else:
        digits = {'perplexity': 2, 'loss': 4}[metric]
        assert cells[title] == _expected_cell(values, runs['warm'], digits)
        assert tries[title] == '9'


def test_every_method_had_nine_tries():
  rows = pages.read_csv('benchmark/search.csv')
  tries = collections.Counter((r['task'], r['method']) for r in rows)
  assert set(tries.values()) == {9}
  for key in tries:
    of_one = [r for r in rows if (r['task'], r['method']) == key]
    best = min(of_one, key=lambda r: float(r['loss']))
    assert [r for r in of_one if r['chosen'] == 'yes'] == [best]


def test_the_page_says_where_the_mirror_step_pays(monkeypatch):
  monkeypatch.chdir(pages.ROOT)
  best = {}
  for point in public_share.read_results():
    if point.method == 'pda':
      current = best.get(point.task, point)
      best[point.task] = max(current, point, key=lambda found: found.gain)
  gains = {task: point.gain for task, point in best.items()}
  images = [
    'cifar10_eps2',
    'cifar10_eps3.51',
    'cifar10_eps0.185',
    'emnist_eps0.48',
  ]
  shown = [f'{gains.pop(task):.3f}' for task in images]
  assert len(gains) == 3
  assert f'{max(gains.values()):.4f}' == '0.0003'
  shares = [f'{best[task].share:.3f}' for task in images]
  assert shares == ['0.001', '0.001', '0.014', '0.315']
  text = pages.on_one_line('docs/benchmark.md')
  assert f'gains are {", ".join(shown[:3])} and {shown[3]}.' in text
  assert 'and 0.014 at epsilon 0.185; on EMNIST it is 0.31.' in text
  assert 'No weight gains more than 0.0003 of loss with PDA-DPMD' in text


def test_larger_public_weights_are_worse_on_cifar10(monkeypatch):
  monkeypatch.chdir(pages.ROOT)
  for task in ('cifar10_eps2', 'cifar10_eps3.51'):
    tries = sorted(
      (point.share, point.gain)
      for point in public_share.read_results()
      if (point.task, point.method) == (task, 'pda')
    )
    assert [gain > 0 for _, gain in tries] == [True, False, False]
  shown = 'the two larger weights are worse than warm start.'
  assert shown in pages.on_one_line('docs/benchmark.md')


def test_the_public_weight_at_epsilon_2_is_a_near_tie():
  tries = [
    row
    for row in pages.read_csv('benchmark/search.csv')
    if (row['task'], row['method']) == ('cifar10_eps2', 'pda')
  ]
  first, second = sorted(tries, key=lambda row: float(row['loss']))[:2]
  shares = [
    public_share.mean_public_share({'alpha_K': k}, rounds=10)
    for row in (first, second)
    for k in re.findall('alpha_K=([^ ]+)', row['settings'])
  ]
  assert [f'{share:.3f}' for share in shares] == ['0.014', '0.001']
  behind = float(second['loss']) - float(first['loss'])
  shown = f'at epsilon 2, the weight 0.001 is {behind:.4f} behind.'
  assert shown in pages.on_one_line('docs/benchmark.md')


def test_the_pages_say_how_much_less_accurate_pda_dpmd_is_on_cifar10():
  lost = []
  for task in _TASKS:
    if task.startswith('cifar10'):
      values = _final_values(task, 'accuracy')
      warm, pda = (
        statistics.fmean(values[m].values()) for m in ('warm', 'pda')
      )
      lost.append(100 * (warm - pda))
  bounds = f'{min(lost):.1f} to {max(lost):.1f} points'
  shown = f'PDA-DPMD is {bounds} less accurate than warm start on CIFAR-10.'
  assert len(lost) == 3 and shown in pages.on_one_line('README.md')
  benchmark = pages.on_one_line('docs/benchmark.md')
  assert f'Accuracy is {bounds} lower.' in benchmark


def test_the_page_has_the_runs_with_held_out_public_text():
  rows = pages.read_csv('benchmark/held_out_public.csv')
  tries = collections.Counter(r['method'] for r in rows if r['seed'] == '0')
  assert tries == {'warm': 3, 'pda': 3}
  found = {}
  for method in tries:
    of_one = [r for r in rows if r['method'] == method]
    first = [r for r in of_one if r['seed'] == '0']
    best = min(first, key=lambda r: float(r['validation_loss']))
    names = ('server_learning_rate', 'alpha_i')
    found[method] = {
      int(r['seed']): float(r['test_perplexity'])
      for r in of_one
      if [r[n] for n in names] == [best[n] for n in names]
    }
  text = pages.on_one_line('docs/benchmark.md')
  mean = statistics.fmean(found['warm'].values())
  cell = _expected_cell(found['pda'], found['warm'], 2)
  of_pda, gain, low, _, high = re.sub('[(+,)]', '', cell).split()
  assert (
    f'perplexity of {mean:.2f}, PDA-DPMD (i = 8) {of_pda}; the gain is {gain}'
    f' ({low} to {high}).'
  ) in text


_CONDITIONS = {
  row['changed']: None for row in pages.read_csv('benchmark/conditions.csv')
}


def _with_change(name, changed, method):
  """Rows of a file with one changed condition and one method."""
  return [
    row
    for row in pages.read_csv(f'benchmark/{name}.csv')
    if (row['changed'], row['method']) == (changed, method)
  ]


@pytest.mark.parametrize('changed', _CONDITIONS)
def test_the_page_has_the_runs_with_one_change(changed):
  cells, perplexities = [], {}
  for method in ('warm', 'pda'):
    runs = _with_change('conditions', changed, method)
    tries = _with_change('conditions_search', changed, method)
    best = min(tries, key=lambda row: float(row['loss']))
    assert len(tries) == 6
    assert {run['settings'] for run in runs} == {best['settings']}
    assert method == 'warm' or 'alpha_i=8' in best['settings']
    found = {int(run['seed']): float(run['perplexity']) for run in runs}
    perplexities[method] = found
    rate = re.search('server_learning_rate=([^ ]+)', best['settings'])[1]
    cells += [rate, _expected_cell(found, perplexities['warm'], 2)]
  (epsilon,) = {math.ceil(100 * float(run['epsilon'])) / 100 for run in runs}
  alone = statistics.fmean(float(run['public_perplexity']) for run in runs)
  row = ' | '.join([changed, f'{epsilon:.2f}', f'{alone:.2f}', *cells])
  assert f'| {row} |' in (pages.ROOT / 'docs/benchmark.md').read_text()


def test_the_page_says_which_gains_are_not_excluded():
  ends = {}
  for changed in _CONDITIONS:
    warm, pda = (
      {
        run['seed']: float(run['perplexity'])
        for run in _with_change('conditions', changed, method)
      }
      for method in ('warm', 'pda')
    )
    found = statistics_lib.difference(warm, pda)
    assert found.low < 0
    ends[changed] = 100 * found.high / statistics.fmean(warm.values())
  largest = {
    changed: round(end) for changed, end in ends.items() if round(end) >= 2
  }
  random_30 = largest.pop('30 random public users')
  of_2_sites = largest.pop('10 public users of 2 sites')
  bounds = f'{min(largest.values())} to {max(largest.values())} %'
  assert (
    f'gains of {bounds} are not excluded, nor are {random_30} % with 30 random'
    f' users and {of_2_sites} % with 10 users of 2 sites.'
  ) in pages.on_one_line('docs/benchmark.md')


def test_the_page_says_how_much_more_public_weight_costs():
  costs = {}
  for changed in ('400 public users', '100 of these 400'):
    tries = _with_change('conditions_search', changed, 'pda')
    loss = {row['settings']: float(row['loss']) for row in tries}
    name = 'server_learning_rate=1 alpha_i='
    costs[changed] = f'{loss[f"{name}3"] - loss[f"{name}8"]:.3f}'
  text = pages.on_one_line('docs/benchmark.md')
  assert (
    'With 400 public users, more public weight costs less: at rate 1, i = 3'
    f' instead of 8 raises the validation loss by {costs["400 public users"]},'
    f' and by {costs["100 of these 400"]} with 100 of them.'
  ) in text
