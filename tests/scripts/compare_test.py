"""Comparisons and sweeps, run as a user would, with a quick training binary."""

import csv
import json
import math
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_BINARY = '--binary=tests.scripts.fake_train'


def _command(script, *arguments):
  return [sys.executable, '-m', f'scripts.{script}', *arguments]


def _run(script, *arguments):
  return subprocess.run(
    _command(script, *arguments),
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )


class TestCompare:
  @pytest.fixture(scope='class')
  def done(self, tmp_path_factory):
    folder = tmp_path_factory.mktemp('compare')
    arguments = (_BINARY, f'--output_dir={folder}', '--seeds=2', '--')
    return folder, arguments, _run('compare', *arguments, '--rounds=4')

  def test_prints_a_table_with_changes_against_warm_start(self, done):
    folder, _, result = done
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith('method ')
    assert [line.split('  ')[0] for line in lines[2:6]] == [
      'public data alone',
      'cold start',
      'warm start',
      'PDA-DPMD',
    ]
    assert '±' in lines[3]
    assert 'Poisson cohorts of 10 out of 1,000 users' in result.stdout
    assert lines[-1] == f'The page: {folder / "index.html"}'

  def test_writes_runs_tables_figures_and_a_page(self, done):
    folder, _, _ = done
    assert {p.name for p in (folder / 'runs').iterdir()} == {
      'warm_start',
      *(f'{m}_{s}' for m in ('cold', 'warm', 'pda') for s in (0, 1)),
    }
    result = json.loads((folder / 'runs/pda_1/result.json').read_text())
    assert (result['method'], result['seed']) == ('pda', 1)
    for name in ('curves_cold_warm', 'curves_warm_pda'):
      assert (folder / f'{name}.png').read_bytes()[:4] == b'\x89PNG'
      assert '<svg' in (folder / f'{name}.svg').read_text()
    assert '**' in (folder / 'table.md').read_text()
    assert r'\textbf' in (folder / 'table.tex').read_text()
    page = (folder / 'index.html').read_text()
    assert page.count('<svg') == 2
    assert 'python -m scripts.compare' in page
    assert 'User-level DP, add or remove one user' in page
    for outside in ('src=', '<link', '@import', 'url(http'):
      assert outside not in page

  def test_combines_comparisons(self, done, tmp_path):
    folder, _, _ = done
    other = tmp_path / folder.name
    shutil.copytree(folder, other)
    (other / 'runs/pda_1/result.json').unlink()
    output = tmp_path / 'table'
    result = _run(
      'compare', f'--output_dir={output}', f'--combine={folder},{other}'
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ['cell', 'epsilon', 'metric']
    # Folders of one name are told apart.
    cells = [str(folder)] * 2 + [str(other)] * 2
    assert [line.split()[0] for line in lines[2:6]] == cells
    assert '1 of 6 runs are not finished' in result.stderr
    names = {'table.md', 'table.tex', 'cells.png', 'cells.svg'}
    assert {p.name for p in output.iterdir()} == names

  @pytest.mark.parametrize(
    ('arguments', 'error'),
    [
      (['--combine='], 'must be folders of comparisons'),
      (['--combine=X', '--', '--rounds=4'], 'Found --rounds=4'),
      (['--combine=X', '--seeds=2'], 'Found --seeds'),
      (['--combine=X', '--metrics=speed'], 'X: metrics must be among'),
      (['--combine=X', '--output_dir=X'], 'must be a folder of its own'),
      (['--combine=X', '--output_dir=README.md'], 'Found the file'),
    ],
  )
  def test_combines_nothing_else(self, done, tmp_path, arguments, error):
    folder, _, _ = done
    here = [a.replace('=X', f'={folder}') for a in arguments]
    result = _run('compare', f'--output_dir={tmp_path}', *here)
    assert result.returncode == 2
    assert error.replace('X:', f'{folder}:') in result.stderr
    assert 'Traceback' not in result.stderr
    assert not list(tmp_path.iterdir())

  def test_again_runs_nothing_and_writes_the_same(self, done):
    folder, arguments, _ = done
    page = (folder / 'index.html').read_text()
    started = (folder / 'runs/pda_0/metrics.csv').stat().st_mtime_ns
    again = _run('compare', *arguments, '--rounds=4')
    assert again.returncode == 0
    assert (folder / 'index.html').read_text() == page
    assert (folder / 'runs/pda_0/metrics.csv').stat().st_mtime_ns == started

  def test_other_settings_for_the_same_folder_fail_with_the_reason(self, done):
    _, arguments, _ = done
    other = _run('compare', *arguments, '--rounds=5')
    assert other.returncode == 1
    assert 'plan.rounds: 4 -> 5' in other.stderr


@pytest.mark.parametrize(
  'arguments, words',
  [
    (
      ['--methods='],
      'methods must have at least one',
    ),
    (
      ['--methods=cold,hot'],
      "methods must be among cold, warm, pda. Found 'hot'",
    ),
    (['--method_flags=hot:--x'], 'method_flags must begin with one of'),
    (['--binary=train_nothing'], 'binary must be a training binary'),
    (['--', '--seed=1'], '--seed must not be given after --: --seeds sets it'),
  ],
)
def test_bad_comparisons(tmp_path, arguments, words):
  done = _run('compare', f'--output_dir={tmp_path}', *arguments)
  assert done.returncode == 2
  assert words in done.stderr
  assert not any(tmp_path.iterdir())


def test_unknown_metric_and_failed_runs(tmp_path):
  common = (_BINARY, f'--output_dir={tmp_path}', '--methods=cold')
  ours = ('--binary=train_central', *common[1:])
  done = _run('compare', *ours, '--metrics=bleu')
  assert done.returncode == 2
  assert 'metrics must be among accuracy, accuracy_with' in done.stderr
  assert not any(tmp_path.iterdir())  # Nothing has been run for it.
  one_by_one = (*common, '--num_processes=1', '--seeds=3')
  done = _run('compare', *one_by_one, '--metrics=bleu')
  assert done.returncode == 2
  assert 'metrics must be among accuracy, loss, perplexity' in done.stderr
  runs = [path.name for path in (tmp_path / 'runs').glob('cold_*')]
  assert runs == ['cold_0']  # Not all of them.
  done = _run('compare', *common, '--method_flags=cold:--fail')
  assert done.returncode == 1
  assert 'cold_0 failed with exit code 2' in done.stderr
  assert 'fail must be false' in done.stderr


class TestTune:
  @pytest.fixture(scope='class')
  def done(self, tmp_path_factory):
    folder = tmp_path_factory.mktemp('tune')
    arguments = (
      _BINARY,
      f'--output_dir={folder}',
      '--seeds=2',
      '--methods=warm,pda',
      '--tune=rate=1,2',
      '--extend=rate',
      '--tune=pda:alpha_K=4,8',
    )
    ours = ('--', '--best_rate=0.7')
    printed = _run('compare', *arguments, '--print_runs', *ours)
    assert len(printed.stdout.splitlines()) == 2 + 4
    return folder, (*arguments, *ours), _run('compare', *arguments, *ours)

  def test_each_method_is_compared_with_what_validation_chose(self, done):
    folder, _, result = done
    assert result.returncode == 0, result.stderr
    assert 'does not cover the search' in result.stdout
    assert 'warm: --rate=0.5, validation loss' in result.stderr
    assert 'pda: --rate=0.5 --alpha_K=4, validation loss' in result.stderr
    for run in ('warm_0', 'warm_1', 'pda_0', 'pda_1'):
      tested = json.loads((folder / 'runs' / run / 'result.json').read_text())
      assert tested['test']['loss'] == pytest.approx(1 + math.log(0.7 / 0.5))
    with open(folder / 'tuning/pda/sweep.csv') as f:
      cells = [(row['rate'], row['alpha_K']) for row in csv.DictReader(f)]
    # A grid, and what is beside the best; not all rows of a larger one.
    assert cells == [
      *((rate, k) for rate in ('1', '2') for k in ('4', '8')),
      ('0.5', '4'),
      ('0.2', '4'),
      ('0.5', '8'),
    ]
    page = (folder / 'index.html').read_text()
    assert 'pda: --rate=0.5 --alpha_K=4' in page
    assert 'does not cover the search' in page
    for path in (folder / 'tuning').glob('*/cells/*/result.json'):
      assert json.loads(path.read_text())['test'] is None

  def test_goes_on_where_it_was(self, done):
    _, arguments, first = done
    again = _run('compare', *arguments)
    assert again.stdout == first.stdout

  def test_a_run_without_its_test_is_to_be_made(self, done):
    folder, arguments, _ = done
    command = ('compare', '--print_runs', *arguments)
    assert _run(*command).stdout == ''
    path = folder / 'runs/pda_1/result.json'
    tested = path.read_text()
    path.write_text(json.dumps(json.loads(tested) | {'test': None}))
    printed = _run(*command).stdout.splitlines()
    path.write_text(tested)
    assert [line.endswith('runs/pda_1') for line in printed] == [True]

  @pytest.mark.parametrize('more', [[], ['--print_runs']])
  def test_runs_of_another_choice_are_refused(self, done, more):
    folder, _, _ = done
    again = _run(
      'compare',
      _BINARY,
      f'--output_dir={folder}',
      '--methods=warm',
      '--tune=rate=1,2',
      *more,
      '--',
      '--best_rate=0.7',
    )
    assert (again.returncode, again.stdout) == (2, '')
    assert 'now chooses --rate=1 for warm' in again.stderr
    assert 'are of --rate=0.5' in again.stderr

  def test_searches_of_other_flags_are_refused(self, done):
    _, arguments, _ = done
    again = _run('compare', '--tune_flags=--rounds=7', *arguments)
    assert again.returncode == 2
    assert 'holds results for other flags' in again.stderr


def test_a_folder_of_warm_starts_is_no_run_of_another_choice(tmp_path):
  def run(grid):
    arguments = (_BINARY, f'--output_dir={tmp_path}', '--methods=warm')
    return _run('compare', *arguments, f'--tune=rate={grid}', '--')

  assert run('2').returncode == 0
  shutil.rmtree(tmp_path / 'runs/warm_0')
  (tmp_path / 'runs/warm_start').mkdir(exist_ok=True)
  again = run('1,2')
  assert again.returncode == 0, again.stderr
  assert 'warm: --rate=1, validation' in again.stderr


def test_nothing_is_compared_if_a_search_fails(tmp_path):
  done = _run(
    'compare',
    _BINARY,
    f'--output_dir={tmp_path}',
    '--tune=rate=1',
    '--method_flags=pda:--fail',
    '--',
  )
  assert done.returncode == 1
  assert 'pda,rate=1 failed with exit code 2' in done.stderr
  assert not (tmp_path / 'runs').exists()


def test_nothing_is_compared_if_no_run_of_a_search_works(tmp_path):
  done = _run(
    'compare',
    _BINARY,
    f'--output_dir={tmp_path}',
    '--methods=cold',
    '--tune=rate=nan,inf',
    '--',
  )
  assert done.returncode == 1
  assert 'cold: no run of --tune has a loss that is a number' in done.stderr
  assert not (tmp_path / 'runs').exists()


def test_a_search_ends_where_the_program_refuses_what_is_beyond(tmp_path):
  done = _run(
    'compare',
    _BINARY,
    f'--output_dir={tmp_path}',
    '--methods=cold,warm',
    '--tune=rounds=1',
    '--extend=rounds',  # 0.5 is not a number of rounds.
    '--',
  )
  assert done.returncode == 0, done.stderr
  assert 'warm: --rounds=1, validation loss' in done.stderr
  assert 'the program takes no value beyond' in done.stderr


def test_a_run_that_breaks_beyond_the_grid_is_no_end_of_it(tmp_path):
  done = _run(
    'sweep',
    _BINARY,
    f'--output_dir={tmp_path}',
    '--grid=rate=0.2',
    '--extend=rate',
    '--',
    '--seed=0',
    '--best_rate=0.01',
    '--crash_below=0.1',
  )
  assert done.returncode == 1
  assert 'rate=0.05 failed with exit code 3' in done.stderr
  assert 'takes no value beyond' not in done.stdout


def test_a_search_sees_no_test(tmp_path):
  arguments = ('--binary=train_central', f'--output_dir={tmp_path}')
  arguments += ('--methods=cold', '--tune=learning_rate=0.2,0.5')
  ours = ('--', '--epochs=1', '--test_curve')
  printed = _run('compare', *arguments, '--print_runs', *ours)
  lines = printed.stdout.splitlines()
  assert len(lines) == 2
  for line in lines:
    assert '--test_curve' in line
    assert line.index('--notest_curve') > line.index('--test_curve')


@pytest.mark.parametrize(
  'arguments, words',
  [
    (['--tune=cool:rate=1'], 'tune must be FLAG=VALUE'),
    (['--tune=rate'], 'tune must be flag=value'),
    (['--tune=rate=.5,0.5'], 'tune must have each flag and value once'),
    (['--tune=method=cold,pda'], '--method must not be given in --tune'),
    (['--extend=rate'], '--extend must come with --tune'),
    (['--tune_flags=--rounds=2'], '--tune_flags must come with --tune'),
    (['--tune=rate=1', "--tune_flags=--x='a"], 'tune_flags must be flags'),
    (
      ['--tune=rate=1', '--tune_flags=--seed=3'],
      '--seed must not be given in --tune_flags',
    ),
    (['--method_flags=pda:--seed=3'], 'must not be given in --method_flags'),
    (['--tune=rate=1', '--extend=alpha_K'], "of rate. Found 'alpha_K'"),
    (['--tune=rate=0,1', '--extend=rate'], "Found 'rate', with 0, 1"),
    (['--tune=rate=1', '--', '--rate=2'], '--tune sets it'),
    (['--tune=rate=1', '--method_flags=pda:--rate=2'], '--tune sets it'),
    (
      ['--methods=cold', '--tune=rate=1', '--tune_metric=bleu'],
      'the metric must be one of validation, of loss, accuracy, perplexity',
    ),
    (
      ['--methods=cold', '--tune=rate=1', '--tune_metric=test_loss'],
      "Found 'test_loss'",
    ),
  ],
)
def test_bad_searches(tmp_path, arguments, words):
  done = _run('compare', _BINARY, f'--output_dir={tmp_path}', *arguments)
  assert done.returncode == 2
  assert words in done.stderr


class TestSweep:
  @pytest.fixture(scope='class')
  def done(self, tmp_path_factory):
    folder = tmp_path_factory.mktemp('sweep')
    arguments = (
      _BINARY,
      f'--output_dir={folder}',
      '--grid=rate=2,1',
      '--grid=alpha_K=4,8',
      '--',
      '--seed=0',
    )
    return folder, arguments, _run('sweep', *arguments)

  def test_picks_by_validation_and_tests_nothing(self, done):
    folder, _, result = done
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ['rate', 'alpha_K', 'validation']
    assert [line.split()[0] for line in lines[2:6]] == ['1', '1', '2', '2']
    assert 'does not cover the search' in result.stdout
    assert '--rate=1 ' in lines[-2]
    assert 'rate=1, an end of its axis, and --extend=rate' in result.stdout
    with open(folder / 'sweep.csv') as f:
      rows = list(csv.DictReader(f))
    assert [(r['rate'], r['alpha_K']) for r in rows] == [
      ('2', '4'),
      ('2', '8'),
      ('1', '4'),
      ('1', '8'),
    ]
    assert float(rows[3]['accuracy']) > float(rows[0]['accuracy'])
    assert (folder / 'heat_map.png').read_bytes()[:4] == b'\x89PNG'
    for path in (folder / 'cells').glob('*/result.json'):
      assert json.loads(path.read_text())['test'] is None
    assert 'best of ' in result.stderr  # The live table.

  def test_finished_cells_are_skipped(self, done):
    folder, arguments, first = done
    again = _run('sweep', *arguments)
    assert again.stdout == first.stdout
    assert '4 of 4 cells are finished' in again.stderr

  def test_finished_cells_of_other_flags_are_refused(self, done, tmp_path):
    _, arguments, _ = done
    path = tmp_path / 'more.flags'
    path.write_text('--rounds=7')
    again = _run('sweep', *arguments, f'--flagfile={path}')
    assert again.returncode == 2
    assert 'holds results for other flags' in again.stderr
    assert '--rounds=7' in again.stderr

  def test_unknown_metric(self, done, tmp_path):
    _, arguments, _ = done
    result = _run('sweep', '--metric=bleu', *arguments)
    assert result.returncode == 2
    assert "Found 'bleu'" in result.stderr
    for value in ('bleu', 'train_loss'):
      ours = ('--binary=train_central', f'--metric={value}', '--grid=epochs=1')
      result = _run('sweep', *ours, f'--output_dir={tmp_path}')
      assert result.returncode == 2
      assert f'perplexity. Found {value!r}' in result.stderr
      assert not any(tmp_path.iterdir())

  def test_values_beside_the_best_are_tried_until_none_is_better(
    self, tmp_path
  ):
    arguments = (
      _BINARY,
      f'--output_dir={tmp_path}',
      '--metric=loss',
      '--grid=rate=0.2',
      '--extend=rate',
    )
    ours = ('--', '--seed=0', '--best_rate=0.06')
    printed = _run('sweep', *arguments, '--print_runs', *ours)
    assert len(printed.stdout.splitlines()) == 1
    result = _run('sweep', *arguments, *ours)
    assert result.returncode == 0, result.stderr
    with open(tmp_path / 'sweep.csv') as f:
      rates = [row['rate'] for row in csv.DictReader(f)]
    assert rates == ['0.2', '0.1', '0.5', '0.05', '0.02']
    assert '--rate=0.05' in result.stdout
    assert 'an end of its axis' not in result.stdout
    # What is finished leads to the same grid.
    again = _run('sweep', *arguments, '--print_runs', *ours)
    assert (again.returncode, again.stdout) == (0, '')


@pytest.mark.parametrize(
  'arguments, words',
  [
    ([], '--grid or --preset must be given'),
    (['--grid=rate'], 'grid must be flag=value'),
    (['--grid=rate=1,1'], 'each flag and value once'),
    (
      ['--grid=rate=1', '--', '--flagfile=scripts/presets/no.flags'],
      'tiny.flags',
    ),
    (['--grid=rate=1', '--extend=alpha_K'], 'extend must be a flag of the'),
    (['--grid=rate=0,1', '--extend=rate'], 'values are numbers above 0'),
    (['--grid=output_dir=a,b'], '--output_dir must not be given in --grid'),
    (['--grid=rate=1', '--', '--rate=2'], '--rate must not be given after --'),
  ],
)
def test_bad_sweeps(tmp_path, arguments, words):
  done = _run('sweep', f'--output_dir={tmp_path}', *arguments)
  assert done.returncode == 2
  assert words in done.stderr


def test_ctrl_c_lets_all_runs_save(tmp_path):
  process = subprocess.Popen(
    _command(
      'compare',
      _BINARY,
      f'--output_dir={tmp_path}',
      '--methods=cold,warm',
      '--',
      '--rounds=100000',
      '--rounds_per_evaluation=50000',
      '--rounds_per_checkpoint=100',
    ),
    cwd=_ROOT,
    stderr=subprocess.PIPE,
    text=True,
  )
  deadline = time.monotonic() + 120
  folders = [tmp_path / 'runs' / name for name in ('cold_0', 'warm_0')]
  while not all(any(f.glob('checkpoints/*.ckpt')) for f in folders):
    assert time.monotonic() < deadline
    assert process.poll() is None
    time.sleep(0.1)
  process.send_signal(signal.SIGINT)
  _, stderr = process.communicate(timeout=120)
  assert process.returncode == 130
  assert 'all runs are saved' in stderr
  for name in ('cold_0', 'warm_0'):
    log = (tmp_path / 'logs' / f'{name}.log').read_text()
    assert 'saved after round' in log
