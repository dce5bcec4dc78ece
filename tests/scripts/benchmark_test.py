"""The benchmark: its tasks, and a tiny one."""

import csv
import json
import re

from pda_fed import methods
from pda_fed.compare import benchmark_tasks
from pda_fed.runs import resolving
import pytest

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
_RATE = 'server.learning_rate'
_TINY = {
  'format': 'pda_fed benchmark task',
  'title': 'Tiny',
  'epsilon': 2,
  'data_dir': None,
  'settings': {'dataset': 'digits', 'epochs': 1, 'noise_multiplier': 2},
  'search_settings': {'validation_examples': 200},
  'select_by': 'loss',
  'metrics': ['accuracy', 'loss'],
  'rates': {_RATE: [0.2, 0.5]},
  'grids': {'warm': {_RATE: [0.2, 0.5]}},
}
_BROKEN = {
  **_TINY,
  'settings': {'dataset': 'table', 'delta': 1e-3},
  'grids': {'pda': {_RATE: [0.2, 0.5]}},
}


class TestTasks:
  @pytest.mark.parametrize('name', _TASKS)
  def test_epsilon_is_the_one_that_is_named(self, name):
    task = _TASKS[name]
    named = re.search(r'_eps([\d.]+)$', name)
    assert named is None or float(named[1]) == task.epsilon
    population = _POPULATIONS[name.partition('_')[0]]
    spec = task.spec('warm')
    unit = 'user' if spec.data.has_users else 'example'
    plan = resolving.build_plan(spec.plan, population, unit)
    found = plan.epsilon()
    assert 0.99 * task.epsilon < found <= task.epsilon

  @pytest.mark.parametrize('name', _TASKS)
  def test_all_methods_have_nine_trials_of_their_own_settings(self, name):
    task = _TASKS[name]
    assert set(task.grids) == {'warm', 'pda', 'semi_dp', 'dope', 'adadps'}
    # Three for a setting of a method that is added.
    own = task.asked_for(['own'], {'method.w': [1, 2, 3]})
    assert task.trials == own.trials == 9
    rates = {_RATE, 'client.learning_rate'}
    for method, grid in task.grids.items():
      assert methods.get(method).name == method
      assert all(name.startswith('method.') for name in set(grid) - rates)
      for values in grid.values():
        task.spec(method).with_values({n: v[0] for n, v in grid.items()})
        assert values

  @pytest.mark.parametrize('name', _TASKS)
  def test_specs_of_searches_are_valid(self, name):
    task = _TASKS[name]
    task.spec('pda').with_values(task.search_settings).check_scope()


def _rows(path):
  with open(path, newline='') as file:
    return list(csv.DictReader(file))


class TestBenchmark:
  @pytest.fixture(scope='class')
  def folder(self, tmp_path_factory):
    folder = tmp_path_factory.mktemp('benchmark')
    (folder / 'tiny.json').write_text(json.dumps(_TINY))
    (folder / 'broken.json').write_text(json.dumps(_BROKEN))
    return folder

  @pytest.fixture(scope='class')
  def words(self, folder):
    place = f'--output_dir={folder / "out"}'
    return ('benchmark', place, '--seeds=2', f'--tasks={folder}/tiny.json')

  @pytest.fixture(scope='class')
  def printed(self, words):
    return programs.run(*words, '--print_runs')

  @pytest.fixture(scope='class')
  def done(self, words, printed):
    del printed
    return programs.run(*words)

  @pytest.fixture(scope='class')
  def second(self, folder, words, done):
    """Adds a method, and fails on another task."""
    del done
    old = {p: p.stat().st_mtime_ns for p in folder.glob('out/**/warm*.log')}
    tasks = f'--tasks={folder}/tiny.json,{folder}/broken.json'
    more = ('--methods=warm,pda', '--tune=tiny:method.alpha_K=3', tasks)
    found = programs.run(*words, *more)
    assert {p: p.stat().st_mtime_ns for p in old} == old and old
    return found

  def test_prints_runs_before_they_are_made(self, printed, folder):
    assert printed.code == 0, printed.err
    lines = printed.out.splitlines()
    assert len(lines) == 2  # The search; final runs depend on it.
    for line in lines:  # Tasks share warm starts.
      assert f'--warm_start_dir={folder / "out/warm_start"}' in line

  def test_prints_the_table_and_the_verdict(self, done, folder):
    assert done.code == 0, done.err
    assert re.search(r'^tiny +warm start +loss +0\.\d+', done.out, re.M)
    assert done.out.endswith(f'figure: {folder / "out"}\n')

  def test_a_method_is_added_to_what_is_there(self, second, folder):
    assert second.code == 2, second.err  # The other task is refused.
    again = programs.run(
      *('benchmark', f'--output_dir={folder}/out', '--seeds=2'),
      *(f'--tasks={folder}/tiny.json', '--methods=warm,pda'),
      '--tune=method.alpha_K=3',
    )
    assert again.code == 0, again.err
    out = folder / 'out'
    search = _rows(out / 'search.csv')
    assert [(r['method'], r['settings']) for r in search] == [
      ('warm', f'{_RATE}=0.2'),
      ('warm', f'{_RATE}=0.5'),
      ('pda', f'{_RATE}=0.2 method.alpha_K=3'),
      ('pda', f'{_RATE}=0.5 method.alpha_K=3'),
    ]
    for method in ('warm', 'pda'):
      rows = [row for row in search if row['method'] == method]
      best = min(rows, key=lambda row: float(row['loss']))
      assert [r['chosen'] == 'yes' for r in rows] == [r is best for r in rows]
    rows = [
      (row['method'], row['seed'], row['trials'])
      for row in _rows(out / 'final.csv')
    ]
    trials = {'public': '', 'warm': '2', 'pda': '2'}
    assert rows == [(m, seed, n) for m, n in trials.items() for seed in '01']
    table = (out / 'table.md').read_text()
    row = r'^\| tiny \| PDA-DPMD \| loss \| .* to .* \| 2 \|$'
    assert re.search(row, table, re.MULTILINE)
    for suffix in ('png', 'svg'):
      assert (out / f'gains.{suffix}').stat().st_size

  @pytest.mark.parametrize(
    'words, message',
    [
      (['--tasks=nothing'], 'tasks must be among blogs, cifar10_eps0.185,'),
      (
        ['--tasks=blogs,emnist_eps0.48', '--print_runs'],
        'must be used with one task. Found blogs, emnist_eps0.48',
      ),
      (['--tasks=blogs,blogs'], 'tasks must be distinct'),
      (['--methods=hot'], "Found 'hot'"),
      (
        ['--methods=cold', '--tune=noise_multiplier=1', f'--tune={_RATE}=1,2'],
        f'tune must be among {_RATE}: a task fixes all other settings for all'
        " methods. Found 'noise_multiplier'.",
      ),
      (['--tune=x:rounds=1'], "one of tiny and a colon. Found 'x:rounds=1'"),
    ],
  )
  def test_what_does_not_fit_is_refused(self, folder, tmp_path, words, message):
    done = programs.run(
      *('benchmark', f'--output_dir={tmp_path}'),
      *(f'--tasks={folder}/tiny.json', *words),
    )
    assert done.code == 2
    assert message in done.error
    assert not any(tmp_path.iterdir())
