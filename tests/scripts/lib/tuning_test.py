"""The search of each method before it is compared."""

import csv
import json
import math
import shutil

import pytest

from tests.scripts import programs

pytestmark = pytest.mark.slow


class TestTune:
  @pytest.fixture(scope='class')
  def done(self, tmp_path_factory):
    folder = tmp_path_factory.mktemp('tune')
    arguments = (
      programs.FAKE,
      f'--output_dir={folder}',
      '--seeds=2',
      '--methods=warm,pda',
      '--tune=rate=1,2',
      '--extend=rate',
      '--tune=pda:alpha_K=4,8',
    )
    ours = ('--', '--best_rate=0.7')
    printed = programs.run('compare', *arguments, '--print_runs', *ours)
    assert len(printed.stdout.splitlines()) == 2 + 4
    return (
      folder,
      (*arguments, *ours),
      programs.run('compare', *arguments, *ours),
    )

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
    assert '<td>--rate=0.5 --alpha_K=4</td><td>7</td>' in page
    assert 'different numbers of tries, from 4 to 7' in page
    assert 'does not cover the search' in page
    for path in (folder / 'tuning').glob('*/cells/*/result.json'):
      assert json.loads(path.read_text())['test'] is None

  def test_what_was_chosen_is_written_and_read(self, done, tmp_path):
    folder, _, result = done
    path = folder / 'chosen.json'
    content = json.loads(path.read_text())
    assert content['select_by'] == 'loss'
    assert content['command'].startswith('python -m scripts.compare ')
    assert content['methods']['warm']['flags'] == ['--rate=0.5']
    assert {m: c['tries'] for m, c in content['methods'].items()} == {
      'warm': 4,
      'pda': 7,
    }
    assert 'Warning: methods had different numbers of tries' in result.stdout
    common = (programs.FAKE, f'--chosen={path}', f'--output_dir={tmp_path}')
    printed = programs.run(
      'compare', *common, '--methods=warm,pda', '--seeds=1', '--print_runs'
    )
    assert printed.returncode == 0, printed.stderr
    pda, warm = printed.stdout.splitlines()
    assert '--rate=0.5 --alpha_K=4 ' in pda and '--rate=0.5 ' in warm

  @pytest.mark.parametrize(
    ('arguments', 'words'),
    [
      (['--methods=cold,warm'], 'Found warm, pda, but not cold'),
      (['--methods=warm', '--', '--rate=2'], '--chosen sets it'),
      (['--methods=pda', '--method_flags=pda:--rate=2'], '--chosen sets it'),
      (['--methods=pda', '--tune=rate=2'], 'must not be given with --tune'),
    ],
  )
  def test_choices_that_do_not_fit(self, done, tmp_path, arguments, words):
    folder, _, _ = done
    again = programs.run(
      'compare',
      programs.FAKE,
      f'--chosen={folder}/chosen.json',
      f'--output_dir={tmp_path}',
      *arguments,
    )
    assert again.returncode == 2
    assert words in again.stderr
    assert len(again.stderr.splitlines()) == 1

  def test_goes_on_where_it_was(self, done):
    _, arguments, first = done
    again = programs.run('compare', *arguments)
    assert again.stdout == first.stdout

  def test_a_run_without_its_test_is_to_be_made(self, done):
    folder, arguments, _ = done
    command = ('compare', '--print_runs', *arguments)
    assert programs.run(*command).stdout == ''
    path = folder / 'runs/pda_1/result.json'
    tested = path.read_text()
    path.write_text(json.dumps(json.loads(tested) | {'test': None}))
    printed = programs.run(*command).stdout.splitlines()
    path.write_text(tested)
    assert [line.endswith('runs/pda_1') for line in printed] == [True]

  @pytest.mark.parametrize('more', [[], ['--print_runs']])
  def test_runs_of_another_choice_are_refused(self, done, more):
    folder, _, _ = done
    again = programs.run(
      'compare',
      programs.FAKE,
      f'--output_dir={folder}',
      '--methods=warm',
      '--tune=rate=1,2',
      *more,
      '--',
      '--best_rate=0.7',
    )
    assert (again.returncode, again.stdout) == (2, '')
    assert 'now chooses --rate=1 for warm' in again.stderr
    assert '_* have --rate=0.5' in again.stderr

  def test_searches_of_other_flags_are_refused(self, done):
    _, arguments, _ = done
    again = programs.run('compare', '--tune_flags=--rounds=7', *arguments)
    assert again.returncode == 2
    assert 'holds results of other flags' in again.stderr


def test_a_folder_of_warm_starts_is_no_run_of_another_choice(tmp_path):
  def run(grid):
    arguments = (programs.FAKE, f'--output_dir={tmp_path}', '--methods=warm')
    arguments += ('--seeds=1', f'--tune=rate={grid}', '--')
    return programs.run('compare', *arguments)

  assert run('2').returncode == 0
  shutil.rmtree(tmp_path / 'runs/warm_0')
  (tmp_path / 'runs/warm_start').mkdir(exist_ok=True)
  again = run('1,2')
  assert again.returncode == 0, again.stderr
  assert 'warm: --rate=1, validation' in again.stderr


def test_nothing_is_compared_if_a_search_fails(tmp_path):
  done = programs.run(
    'compare',
    programs.FAKE,
    f'--output_dir={tmp_path}',
    '--tune=rate=1',
    '--method_flags=pda:--fail',
    '--',
  )
  assert done.returncode == 1
  assert 'pda,rate=1 failed with exit code 2' in done.stderr
  assert not (tmp_path / 'runs').exists()


def test_nothing_is_compared_if_all_runs_of_a_search_diverge(tmp_path):
  done = programs.run(
    'compare',
    programs.FAKE,
    f'--output_dir={tmp_path}',
    '--methods=cold',
    '--tune=rate=nan,inf',
    '--',
  )
  assert done.returncode == 2
  assert 'diverged. Give smaller learning rates' in done.stderr
  assert not (tmp_path / 'runs').exists()


def test_a_search_ends_where_the_program_refuses_what_is_beyond(tmp_path):
  done = programs.run(
    'compare',
    programs.FAKE,
    f'--output_dir={tmp_path}',
    '--methods=cold,warm',
    '--seeds=1',
    '--tune=rounds=1',
    '--extend=rounds',  # 0.5 is not a number of rounds.
    '--',
    '--best_rate=1',  # Whatever the rounds, the loss is the same.
  )
  assert done.returncode == 0, done.stderr
  assert 'warm: --rounds=1, validation loss' in done.stderr
  assert 'the program refuses values beyond' in done.stderr


def test_a_search_sees_no_test(tmp_path):
  arguments = ('--binary=train_sample_level', f'--output_dir={tmp_path}')
  arguments += ('--methods=cold', '--tune=learning_rate=0.2,0.5')
  ours = ('--', '--epochs=1', '--test_curve')
  printed = programs.run('compare', *arguments, '--print_runs', *ours)
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
    (['--extend=rate'], '--extend must be given with --tune'),
    (['--tune_flags=--rounds=2'], '--tune_flags must be given with --tune'),
    (['--tune=rate=1', "--tune_flags=--x='a"], 'tune_flags must be flags'),
    (
      ['--tune=rate=1', '--tune_flags=--seed=3'],
      '--seed must not be given in --tune_flags',
    ),
    (['--method_flags=pda:--seed=3'], 'must not be given in --method_flags'),
    (
      ['--tune=rate=1', '--extend=alpha_K'],
      "of the grid: rate. Found 'alpha_K'",
    ),
    (['--tune=rate=0,1', '--extend=rate'], "Found 'rate', with 0, 1"),
    (['--tune=rate=1', '--', '--rate=2'], '--tune sets it'),
    (['--tune=rate=1', '--method_flags=pda:--rate=2'], '--tune sets it'),
    (
      ['--methods=cold', '--tune=rate=1', '--select_by=bleu'],
      'select_by must be a validation metric: loss, accuracy, perplexity',
    ),
    (
      ['--methods=cold', '--tune=rate=1', '--select_by=test_loss'],
      "Found 'test_loss'",
    ),
  ],
)
def test_bad_searches(tmp_path, arguments, words):
  done = programs.run(
    'compare', programs.FAKE, f'--output_dir={tmp_path}', *arguments
  )
  assert done.returncode == 2
  assert words in done.stderr
