"""The benchmark: its tasks, and one of a quick training binary."""

import csv
import json
import math
import re
import statistics

from pda_fed import methods
from pda_fed import privacy
from pda_fed.compare import benchmark_tasks
import pytest
from scripts.lib import cli

from tests.scripts import programs

_TASKS = {
  path.stem: benchmark_tasks.load(path)
  for path in (programs.ROOT / 'scripts/benchmark_tasks').glob('*.json')
}
# Private examples or users.
_POPULATIONS = {
  'cifar10': 48_000,
  'emnist': 102_537,
  'wikitext2': 46_813,
  'stackexchange': 18_415,
  'blogs': 8_067,
}
_TINY = {
  'format': 'pda_fed benchmark task',
  'title': 'Tiny',
  'epsilon': 2,
  'binary': 'tests.scripts.fake_train',
  'data_dir': None,
  'flags': ['--rounds=2'],
  'search_flags': [],
  'select_by': 'loss',
  'metrics': ['accuracy', 'loss'],
  'rates': ['rate=0.5,1'],
  'grids': {'warm': ['rate=0.5,1']},
}
_BROKEN = {
  **_TINY,
  'binary': 'scripts.nothing',
  'grids': {'pda': ['rate=0.5,1', 'alpha_K=3']},
}


def _flags(task):
  """The flags of a task by name; the last of a name counts."""
  words = cli.expanded(task.flags)
  return dict(word.lstrip('-').partition('=')[::2] for word in words)


def _plan(task):
  flags = _flags(task)
  population = _POPULATIONS[task.name.partition('_')[0]]
  if task.binary == 'train_sample_level':
    cohort = float(flags['batch_size'])
    rounds = int(float(flags['epochs']) * population // cohort)
  else:
    cohort, rounds = float(flags['clients_per_round']), int(flags['rounds'])
  return privacy.PrivacyPlan(
    population=population,
    expected_cohort=cohort,
    rounds=rounds,
    delta=float(flags['delta']),
    noise_multiplier=float(flags['noise_multiplier']),
    clip_norm=1.0,
  )


class TestTasks:
  @pytest.mark.parametrize('name', _TASKS)
  def test_epsilon_is_the_one_that_is_named(self, name, monkeypatch):
    monkeypatch.chdir(programs.ROOT)
    task = _TASKS[name]
    named = re.search(r'_eps([\d.]+)$', name)
    assert named is None or float(named[1]) == task.epsilon
    plan = _plan(task)
    if task.binary == 'train_sample_level':
      assert plan.rounds == 200
    found = plan.epsilon()
    assert 0.99 * task.epsilon < found <= task.epsilon

  @pytest.mark.parametrize('name', _TASKS)
  def test_all_methods_have_nine_tries(self, name):
    task = _TASKS[name]
    assert set(task.grids) == {'warm', 'pda', 'semi_dp', 'dope', 'adadps'}
    assert task.tries == 9
    # Three for a setting of a method that is added.
    added = task.with_method('mine', ['mine_weight=1,2,3'])
    assert added.tries == 9

  @pytest.mark.parametrize('name', _TASKS)
  def test_settings_are_those_of_the_method(self, name):
    for method, axes in _TASKS[name].grids.items():
      flags = {axis.partition('=')[0] for axis in axes}
      rates = {'learning_rate', 'server_learning_rate', 'client_learning_rate'}
      prefix = 'alpha_' if method == 'pda' else f'{method}_'
      assert all(flag.startswith(prefix) for flag in flags - rates)


def _rows(path):
  with open(path, newline='') as file:
    return list(csv.DictReader(file))


class TestBenchmark:
  @pytest.fixture(scope='class')
  def first(self, tmp_path_factory):
    folder = tmp_path_factory.mktemp('benchmark')
    (folder / 'tiny.json').write_text(json.dumps(_TINY))
    arguments = (
      f'--tasks={folder / "tiny.json"}',
      f'--output_dir={folder / "out"}',
      '--seeds=2',
      '--trust_code',  # The task names its binary.
    )
    printed = programs.run('benchmark', *arguments, '--print_runs')
    done = programs.run('benchmark', *arguments)
    written = {
      name: (folder / 'out' / name).read_text()
      for name in ('search.csv', 'final.csv')
    }
    return folder, arguments, printed, done, written

  @pytest.fixture(scope='class')
  def second(self, first):
    """Adds a method, and fails on another task."""
    folder, arguments, *_ = first
    (folder / 'broken.json').write_text(json.dumps(_BROKEN))
    logs = {p: p.stat().st_mtime_ns for p in folder.glob('out/**/warm*.log')}
    assert len(logs) == 2 + 2
    done = programs.run(
      'benchmark',
      *arguments,
      f'--tasks={folder / "tiny.json"},{folder / "broken.json"}',
      '--methods=pda',
      '--tune=tiny:alpha_K=3',
    )
    # Finished runs are not even started.
    assert {p: p.stat().st_mtime_ns for p in logs} == logs
    return done

  def test_prints_runs_before_they_are_made(self, first):
    folder, _, printed, *_ = first
    assert printed.returncode == 0, printed.stderr
    lines = printed.stdout.splitlines()
    assert len(lines) == 2  # The search; final runs depend on it.
    for line in lines:
      assert '--nofinal_test' in line
      # One warm start for all tasks that can share it: the last flag counts.
      found = re.findall(r'--warm_start_dir=(\S+)', line)
      assert found[-1] == str(folder / 'out/warm_start')

  def test_prints_the_command_the_table_and_the_verdict(self, first):
    folder, _, _, done, _ = first
    assert done.returncode == 0, done.stderr
    assert 'tiny: python -m scripts.compare --binary=tests' in done.stderr
    assert re.search(r'^tiny +warm start +loss +0\.50', done.stdout, re.M)
    assert 'tiny: No clear winner between ' in done.stdout
    assert done.stdout.endswith(f'figure: {folder / "out"}\n')
    # Warm starts that are shared.
    assert len(list((folder / 'out/warm_start').glob('*.ckpt'))) == 2

  def test_searches_are_rows_of_validation(self, first):
    *_, written = first
    rows = list(csv.DictReader(written['search.csv'].splitlines()))
    assert [(r['method'], r['settings'], r['chosen']) for r in rows] == [
      ('warm', 'rate=0.5', 'yes'),
      ('warm', 'rate=1', 'no'),
    ]
    # The fake's loss grows with the rate.
    assert float(rows[0]['loss']) < float(rows[1]['loss'])

  def test_another_method_is_added_to_what_is_there(self, first, second):
    folder, *_, written = first
    out = folder / 'out'
    final, search = (
      (out / f'{n}.csv').read_text() for n in ('final', 'search')
    )
    # The first lines are those of public data alone.
    before = written['final.csv'].partition('\ntiny,warm,')[2]
    assert before and f'\ntiny,warm,{before}' in final
    assert search.startswith(written['search.csv'])
    assert search.count('\ntiny,pda,') == 2
    assert 'tiny,pda,rate=0.5 alpha_K=3,yes' in search
    table = (out / 'table.md').read_text()
    titles = re.findall(r'^\| ([^|]+?) \| [^|]+ \| 2 \|$', table, re.M)
    assert titles == ['warm start', 'PDA-DPMD']
    chosen = json.loads((out / 'tiny/chosen.json').read_text())
    assert list(chosen['methods']) == ['warm', 'pda']
    for suffix in ('png', 'svg'):
      assert (out / f'gains.{suffix}').stat().st_size

  def test_a_task_that_fails_does_not_stop_others(self, second):
    assert second.returncode == 1
    assert 'broken lacks pda: runs are not finished.' in second.stderr
    assert 'Not all runs succeeded: broken.' in second.stderr

  def test_table_follows_from_final_runs(self, first, second):
    folder, *_ = first
    *public, warm_0, warm_1, pda_0, pda_1 = _rows(folder / 'out/final.csv')
    assert [(r['method'], r['seed']) for r in public] == [
      ('public', '0'),
      ('public', '1'),
    ]
    rows = [warm_0, warm_1, pda_0, pda_1]
    assert [(r['method'], r['seed'], r['tries']) for r in rows] == [
      ('warm', '0', '2'),
      ('warm', '1', '2'),
      ('pda', '0', '2'),
      ('pda', '1', '2'),
    ]
    assert rows[2]['settings'] == 'rate=0.5 alpha_K=3'
    losses = [float(r['loss']) for r in rows]
    gains = [losses[0] - losses[2], losses[1] - losses[3]]
    # t of 1 degree of freedom.
    half = 12.706204736 * statistics.stdev(gains) / math.sqrt(2)
    gain = statistics.fmean(gains)
    mean = statistics.fmean(losses[2:])
    text = f'({gain:+.4f}, {gain - half:+.4f} to {gain + half:+.4f})'
    table = (folder / 'out/table.md').read_text()
    (line,) = re.findall(r'\| PDA-DPMD \| (.*) \| 2 \|', table)
    assert line.replace('**', '') == f'{mean:.4f} {text}'

  @pytest.mark.slow
  @pytest.mark.parametrize(
    ('arguments', 'error'),
    [
      (['--tasks=nothing'], 'tasks must be among blogs, cifar10_eps0.185,'),
      (
        ['--methods=pda', '--tune=alpha_K=4'],
        'tasks/tiny.json: tiny or one of its grids has changed.',
      ),
      (
        ['--methods=semi_dp', '--tune=noise_multiplier=1', '--tune=rate=1,2'],
        'tune must be among rate, semi_dp_weight: a task fixes all other flags'
        " for all methods. Found 'noise_multiplier'.",
      ),
      (
        ['--tasks=blogs,emnist_eps0.48', '--print_runs'],
        'Found blogs (train_stackoverflow), emnist_eps0.48 (train_sample',
      ),
    ],
  )
  def test_what_does_not_fit_is_refused(self, first, second, arguments, error):
    folder, before, *_ = first
    notes = {p: p.read_text() for p in (folder / 'out/tasks').iterdir()}
    done = programs.run('benchmark', *before, *arguments)
    assert done.returncode != 0
    assert error in done.stderr
    assert 'Traceback' not in done.stderr
    assert {p: p.read_text() for p in (folder / 'out/tasks').iterdir()} == notes


def test_methods_of_tasks_are_there():
  for task in _TASKS.values():
    for method in task.grids:
      assert methods.get(method).name == method
