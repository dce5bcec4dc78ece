"""Sweeps, run as a user would, with a quick training binary."""

import csv
import json

import pytest

from tests.scripts import programs

pytestmark = pytest.mark.slow


class TestSweep:
  @pytest.fixture(scope='class')
  def done(self, tmp_path_factory):
    folder = tmp_path_factory.mktemp('sweep')
    arguments = (
      programs.FAKE,
      f'--output_dir={folder}',
      '--grid=rate=2,1',
      '--grid=alpha_K=4,8',
      '--',
      '--seed=0',
    )
    return folder, arguments, programs.run('sweep', *arguments)

  def test_picks_by_validation_and_tests_nothing(self, done):
    folder, _, result = done
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ['rate', 'alpha_K', 'validation']
    assert [line.split()[0] for line in lines[2:6]] == ['1', '1', '2', '2']
    assert 'does not cover the search' in result.stdout
    assert lines[-2].startswith('The best by validation loss: ')
    assert '--rate=1 ' in lines[-2]
    assert (
      'rate=1, is at an end of its axis, and --extend=rate' in result.stdout
    )
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
    again = programs.run('sweep', *arguments)
    assert again.stdout == first.stdout
    assert '4 of 4 cells are finished' in again.stderr

  def test_finished_cells_of_other_flags_are_refused(self, done, tmp_path):
    _, arguments, _ = done
    path = tmp_path / 'more.flags'
    path.write_text('--rounds=7')
    again = programs.run('sweep', *arguments, f'--flagfile={path}')
    assert again.returncode == 2
    assert 'holds results of other flags' in again.stderr
    assert '--rounds=7' in again.stderr

  def test_unknown_metric(self, done, tmp_path):
    _, arguments, _ = done
    result = programs.run('sweep', '--select_by=bleu', *arguments)
    assert result.returncode == 2
    assert "Found 'bleu'" in result.stderr
    for value in ('bleu', 'train_loss'):
      ours = (
        '--binary=train_sample_level',
        f'--select_by={value}',
        '--grid=epochs=1',
      )
      result = programs.run('sweep', *ours, f'--output_dir={tmp_path}')
      assert result.returncode == 2
      assert f'perplexity. Found {value!r}' in result.stderr
      assert not any(tmp_path.iterdir())

  def test_values_beside_the_best_are_tried_until_none_is_better(
    self, tmp_path
  ):
    arguments = (
      programs.FAKE,
      f'--output_dir={tmp_path}',
      '--grid=rate=0.2',
      '--extend=rate',
    )
    ours = ('--', '--seed=0', '--best_rate=0.06')
    printed = programs.run('sweep', *arguments, '--print_runs', *ours)
    assert len(printed.stdout.splitlines()) == 1
    result = programs.run('sweep', *arguments, *ours)
    assert result.returncode == 0, result.stderr
    with open(tmp_path / 'sweep.csv') as f:
      rates = [row['rate'] for row in csv.DictReader(f)]
    assert rates == ['0.2', '0.1', '0.5', '0.05', '0.02']
    assert '--rate=0.05' in result.stdout
    assert 'an end of its axis' not in result.stdout
    # What is finished leads to the same grid.
    again = programs.run('sweep', *arguments, '--print_runs', *ours)
    assert (again.returncode, again.stdout) == (0, '')


@pytest.mark.parametrize(
  'arguments, words',
  [
    ([], 'exactly one of --grid and --preset'),
    (['--grid=rate'], 'grid must be flag=value'),
    (['--grid=rate=1,1'], 'each flag and value once'),
    (
      ['--grid=rate=1', '--', '--flagfile=scripts/presets/no.flags'],
      'tiny.flags',
    ),
    (['--grid=rate=1', '--extend=alpha_K'], 'extend must be a flag of the'),
    (['--grid=rate=0,1', '--extend=rate'], 'values are positive numbers'),
    (['--grid=output_dir=a,b'], '--output_dir must not be given in --grid'),
    (['--grid=rate=1', '--', '--rate=2'], '--rate must not be given after --'),
  ],
)
def test_bad_sweeps(tmp_path, arguments, words):
  done = programs.run('sweep', f'--output_dir={tmp_path}', *arguments)
  assert done.returncode == 2
  assert words in done.stderr


def test_a_search_is_on_the_same_data(tmp_path):
  arguments = (programs.FAKE, f'--output_dir={tmp_path}', '--grid=rate=1,2')
  assert programs.run('sweep', *arguments, '--', '--seed=0').returncode == 0
  path = tmp_path / 'cells/rate=2/config.json'
  config = json.loads(path.read_text())
  config['settings']['data_hash'] += '0'
  path.write_text(json.dumps(config))
  again = programs.run('sweep', *arguments, '--', '--seed=0')
  assert again.returncode == 2
  assert 'must use the same data' in again.stderr


def test_rates_that_diverge_are_left_out(tmp_path):
  arguments = (programs.FAKE, f'--output_dir={tmp_path}', '--extend=rate')
  ours = ('--', '--seed=0', '--best_rate=0.2', '--diverge_above=0.3')
  done = programs.run('sweep', *arguments, '--grid=rate=0.2,5', *ours)
  assert done.returncode == 0, done.stderr
  assert '--rate=0.2' in done.stdout
  with open(tmp_path / 'sweep.csv') as f:
    assert [row['rate'] for row in csv.DictReader(f)] == ['0.2', '0.1']
  arguments = (programs.FAKE, f'--output_dir={tmp_path}/others')
  done = programs.run('sweep', *arguments, '--grid=rate=1,5', *ours)
  assert done.returncode == 2
  assert 'diverged. Give smaller learning rates' in done.stderr


def test_rates_that_diverged_in_another_process_are_not_run_again(tmp_path):
  arguments = (programs.FAKE, f'--output_dir={tmp_path}', '--grid=rate=0.2,5')
  mark = tmp_path / 'cells/rate=5/diverged.json'
  mark.parent.mkdir(parents=True)
  mark.write_text('{"round": 0}')
  ours = ('--', '--seed=0', '--best_rate=5')
  printed = programs.run('sweep', *arguments, '--print_runs', *ours)
  assert '--rate=0.2 ' in printed.stdout
  assert '--rate=5 ' not in printed.stdout
  done = programs.run('sweep', *arguments, *ours)
  assert done.returncode == 0, done.stderr
  with open(tmp_path / 'sweep.csv') as f:
    assert [row['rate'] for row in csv.DictReader(f)] == ['0.2']


def test_a_run_that_breaks_beyond_the_grid_is_no_end_of_it(tmp_path):
  done = programs.run(
    'sweep',
    programs.FAKE,
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
  assert 'refuses values beyond' not in done.stdout
