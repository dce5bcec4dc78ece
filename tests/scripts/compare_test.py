"""Comparisons of tiny runs: tables, the page, searches, runs printed."""

import csv
import json
import re
import signal
import subprocess
import time

from pda_fed import runs as runs_lib
import pytest

from tests.scripts import programs

_DIGITS = ('--dataset=digits', '--epochs=1')


def _specs(folder):
  """The specs of the runs in a folder, by name."""
  return {
    path.parent.name: runs_lib.RunFolder(path.parent).read_config().spec
    for path in folder.glob('*/config.json')
  }


class TestCompare:
  @pytest.fixture(scope='class')
  def folder(self, tmp_path_factory):
    return tmp_path_factory.mktemp('compare') / 'out'

  @pytest.fixture(scope='class')
  def again(self, folder):
    return ('compare', f'--output_dir={folder}', '--seeds=2', *_DIGITS)

  @pytest.fixture(scope='class')
  def done(self, again):
    return programs.run(*again)

  def test_prints_a_table_and_a_verdict(self, done, folder):
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith('method ')
    assert [line.split('  ')[0] for line in lines[2:6]] == [
      *('public data alone', 'cold start', 'warm start', 'PDA-DPMD')
    ]
    assert '±' in lines[3]
    assert '(--select_by=loss)' in done.out
    assert 'Poisson cohorts of 64 out of 1,149 examples' in done.out
    assert lines[-1] == f'The page: {folder / "index.html"}'
    assert 'cold start on digits' in done.err  # The plan of the first run.

  def test_writes_runs_tables_figures_and_a_page(self, done, folder):
    del done
    assert {p.name for p in (folder / 'runs').iterdir() if p.is_dir()} == {
      'warm_start',
      *(f'{m}_{s}' for m in ('cold', 'warm', 'pda') for s in (0, 1)),
    }
    for name in ('curves_cold_warm', 'curves_warm_pda'):
      assert (folder / f'{name}.png').read_bytes()[:4] == b'\x89PNG'
      assert '<svg' in (folder / f'{name}.svg').read_text()
    assert '| cold start |' in (folder / 'table.md').read_text()
    page = (folder / 'index.html').read_text()
    assert page.count('<svg') == 4
    assert 'python -m scripts.compare' in page
    assert 'Example-level DP, add or remove one example' in page
    for outside in ('src=', '<link', '@import', 'url(http'):
      assert outside not in page

  def test_again_runs_nothing_and_writes_the_same(self, done, again, folder):
    metrics = folder / 'runs/pda_0/metrics.csv'
    before = (folder / 'index.html').read_text(), metrics.stat().st_mtime_ns
    second = programs.run(*again)
    assert (second.code, second.out) == (0, done.out)
    after = (folder / 'index.html').read_text(), metrics.stat().st_mtime_ns
    assert after == before

  def test_other_settings_for_the_same_folder_are_refused(self, done, again):
    del done
    other = programs.run(*again, '--epochs=2')
    assert (other.code, other.out) == (2, '')
    assert 'plan.rounds: 17 -> 35' in other.error

  def test_a_run_without_its_test_is_to_be_made(self, done, again, folder):
    del done
    assert programs.run(*again, '--print_runs').out == ''
    path = folder / 'runs/pda_1/result.json'
    tested = path.read_text()
    path.write_text(json.dumps(json.loads(tested) | {'test': None}))
    printed = programs.run(*again, '--print_runs').out.splitlines()
    path.write_text(tested)
    assert [line.endswith('runs/pda_1') for line in printed] == [True]


class TestTune:
  _TUNE = (
    *('--methods=warm,pda', '--seeds=1', '--num_processes=1', *_DIGITS),
    *('--tune=warm:server.learning_rate=0.1,0.2,0.5', '--tune=pda:rounds=17'),
    *('--tune=pda:method.alpha_K=4,8', '--tune_set=validation_examples=200'),
  )

  @pytest.fixture(scope='class')
  def folder(self, tmp_path_factory):
    return tmp_path_factory.mktemp('tune') / 'out'

  @pytest.fixture(scope='class')
  def done(self, folder):
    return programs.run('compare', f'--output_dir={folder}', *self._TUNE)

  def test_each_method_is_compared_with_what_validation_chose(
    self, done, folder
  ):
    assert done.code == 0, done.err
    chosen = json.loads((folder / 'chosen.json').read_text())
    assert (chosen['select_by'], list(chosen['methods'])) == (
      'loss',
      ['warm', 'pda'],
    )
    for method, choice in chosen['methods'].items():
      with open(folder / f'tuning/{method}/search.csv') as f:
        rows = list(csv.DictReader(f))
      best = min(rows, key=lambda row: float(row['loss']))
      assert choice['trials'] == len(rows)
      assert choice['value'] == pytest.approx(float(best['loss']))
      spec = _specs(folder / 'runs')[f'{method}_0']
      for name, value in choice['settings'].items():
        assert float(best[name]) == value
      if method == 'warm':
        rate = float(best['server.learning_rate'])
        assert spec.server.learning_rate == rate
        words = f'warm: the best value, --server.learning_rate={rate:g}, is at'
        assert (words in done.err) == (rate != 0.2)
    assert 'does not cover the search' in done.out

  def test_the_search_never_sees_the_test(self, done, folder):
    del done
    results = list(folder.glob('tuning/*/cells/*/result.json'))
    assert results
    for path in results:
      run = runs_lib.RunFolder(path.parent)
      assert run.read_result()['test'] is None
      assert not any('test_loss' in row for row in run.read_metrics())
      spec = run.read_config().spec
      assert not spec.evaluation.final_test
      assert spec.data.validation_examples == 200
    assert _specs(folder / 'runs')['pda_0'].data.validation_examples == 144

  def test_unequal_numbers_of_trials_are_a_warning(self, done, folder):
    content = json.loads((folder / 'chosen.json').read_text())
    numbers = {c['trials'] for c in content['methods'].values()}
    words = 'methods had different numbers of trials'
    assert len(numbers) > 1 and words in done.out
    assert words in (folder / 'index.html').read_text()

  def test_goes_on_where_it_was(self, done, folder):
    again = programs.run('compare', f'--output_dir={folder}', *self._TUNE)
    assert again.out == done.out

  def test_chosen_settings_are_those_of_another_comparison(
    self, done, folder, tmp_path
  ):
    del done
    path = folder / 'chosen.json'
    words = ('compare', f'--output_dir={tmp_path}', f'--chosen={path}')
    printed = programs.run(
      *words, '--methods=warm,pda', '--seeds=1', '--print_runs', *_DIGITS
    )
    assert printed.code == 0, printed.err
    assert len(printed.out.splitlines()) == 2
    content = json.loads((tmp_path / 'runs/pda_0.json').read_text())
    chosen = json.loads(path.read_text())['methods']['pda']['settings']
    assert content['method']['alpha_K'] == chosen['method.alpha_K']

  @pytest.mark.parametrize(
    'words, message',
    [
      (['--methods=cold,warm'], 'Found warm, pda, but not cold'),
      (['--methods=warm', '--server.learning_rate=2'], 'given with --chosen'),
      (
        ['--methods=pda', '--tune=server.learning_rate=2'],
        'chosen must not be',
      ),
    ],
  )
  def test_choices_that_do_not_fit(
    self, done, folder, tmp_path, words, message
  ):
    del done
    bad = programs.run(
      *('compare', f'--chosen={folder}/chosen.json', *_DIGITS),
      *(f'--output_dir={tmp_path}', *words),
    )
    assert bad.code == 2
    assert message in bad.error

  def test_other_searches_in_the_folder_are_refused(self, done, folder):
    del done
    words = ('compare', f'--output_dir={folder}', *self._TUNE)
    bad = programs.run(*words, '--epochs=2')
    assert (bad.code, bad.out) == (2, '')
    assert 'holds results of other settings: plan.epochs' in bad.error


def test_a_search_alone_that_goes_on_with_more_values(tmp_path):
  words = ('compare', f'--output_dir={tmp_path}', '--methods=warm', '--seeds=0')
  made = {}
  for values in ('0.1,1', '0.1,1,2'):
    tune = f'--tune=server.learning_rate={values}'
    done = programs.run(*words, tune, *_DIGITS)
    assert done.code == 0, done.err
    assert done.out == f'The settings: {tmp_path / "chosen.json"}\n'
    for path, written in made.items():
      assert path.stat().st_mtime_ns == written
    results = tmp_path.glob('tuning/warm/cells/*/result.json')
    made = {path: path.stat().st_mtime_ns for path in results}
    assert len(made) == len(values.split(','))
  content = json.loads((tmp_path / 'chosen.json').read_text())
  assert content['methods']['warm']['trials'] == 3
  assert not (tmp_path / 'runs').exists()


def test_cells_that_diverge_count_as_trials(tmp_path):
  words = ('--methods=cold', '--seeds=0', '--tune=server.learning_rate=1,1e30')
  for _ in range(2):  # The second time, it is known.
    done = programs.run('compare', f'--output_dir={tmp_path}', *words, *_DIGITS)
    assert done.code == 0, done.err
    content = json.loads((tmp_path / 'chosen.json').read_text())
    assert content['methods']['cold']['trials'] == 2
    assert content['methods']['cold']['settings'] == {'server.learning_rate': 1}


def test_printed_runs_are_lines_of_a_runs_file(tmp_path):
  words = ('compare', f'--output_dir={tmp_path}/out', '--seeds=1', *_DIGITS)
  printed = programs.run(*words, '--print_runs')
  assert printed.code == 0, printed.err
  (tmp_path / 'runs.txt').write_text(printed.out)
  done = programs.run('train', f'--runs_file={tmp_path}/runs.txt')
  assert done.code == 0, done.err
  assert not programs.run(*words, '--print_runs').out
  assert 'better' in programs.run(*words).out


def test_settings_go_to_the_methods_that_have_them(tmp_path):
  done = programs.run(
    *('compare', f'--output_dir={tmp_path}', '--print_runs', '--seeds=1'),
    *('--methods=semi_dp,pda,cold', '--method.alpha_K=3', *_DIGITS),
    *('--method.weight=0.2', '--set=cold:clip_norm=2'),
  )
  assert done.code == 0, done.err
  found = {
    path.stem: json.loads(path.read_text())
    for path in (tmp_path / 'runs').glob('*.json')
  }
  methods = {name: content['method'] for name, content in found.items()}
  assert methods == {
    'cold_0': {'name': 'cold'},
    'pda_0': {'name': 'pda', 'alpha_K': 3},
    'semi_dp_0': {'name': 'semi_dp', 'weight': 0.2},
  }
  clips = {
    name: content['plan']['clip_norm'] for name, content in found.items()
  }
  assert clips == {'cold_0': 2, 'pda_0': 1, 'semi_dp_0': 1}


@pytest.mark.parametrize(
  'words, message',
  [
    (['--methods='], 'methods must have at least one'),
    (['--methods=cold,hot'], "Found 'hot'"),
    (['--methods=cold,cold'], 'methods must be distinct'),
    (['--set=hot:rounds=1'], 'set must be SETTING=VALUE, or begin with one of'),
    (['--seed=1'], '--seed must not be given here: use --seeds'),
    (['--method=pda'], '--method must not be given here: use --methods'),
    (['--method.weight=0.2'], '--method.weight must be a setting of cold'),
    (
      ['--select_by=bleu'],
      'select_by must be among accuracy, accuracy_with_oo',
    ),
    (['--dataset=table', '--data_dir=nowhere'], 'nowhere'),
    (['--tune_set=rounds=2'], '--tune_set must be given with --tune'),
    (
      ['--tune=rounds=2', '--rounds=2'],
      '--rounds must not be given with --tune',
    ),
    (['--tune=final_test=true'], 'tune must not have'),
    (['--tune=server.momentum=2'], 'server.momentum must be in [0, 1)'),
    (['--seeds=0'], 'seeds must be at least 1 without tune'),
    (['--search_runs=2'], '--search_runs must be given with --private_search'),
  ],
)
def test_bad_comparisons(tmp_path, words, message):
  done = programs.run(
    'compare', f'--output_dir={tmp_path}', '--dataset=digits', *words
  )
  assert done.code == 2
  assert message in done.error
  assert len(done.err.splitlines()) == 1 and not done.out
  assert not any(tmp_path.glob('**/config.json'))


def test_runs_that_fail_are_left_out_and_named(tmp_path):
  done = programs.run(
    *('compare', f'--output_dir={tmp_path}', '--methods=cold,warm', *_DIGITS),
    *('--seeds=1', '--set=cold:server.learning_rate=1e30'),
  )
  assert done.code == 1
  assert 'cold_0 failed with exit code 4' in done.err
  left_out = 'Left out because they failed: cold_0 (diverged).'
  assert left_out in done.out
  assert left_out in (tmp_path / 'index.html').read_text()


def test_guarantees_are_said_of_their_methods(tmp_path):
  done = programs.run(
    *('compare', f'--output_dir={tmp_path}', '--methods=cold,warm', *_DIGITS),
    *('--seeds=1', '--select_by=accuracy', '--set=cold:noise_multiplier=5'),
    *('--audit=run', '--audit_canaries=200'),
  )
  assert done.code == 0, done.err
  assert 'cold start: Example-level DP' in done.out
  assert 'Not equally private: epsilon is ' in done.out
  assert 'decided by accuracy (--select_by=accuracy)' in done.out
  assert done.out.splitlines()[0].split()[-2:] == ['audited', 'runs']
  for text in (done.out, (tmp_path / 'index.html').read_text()):
    assert 'Audit with 200 canaries' in text


def test_runs_without_curves_have_no_empty_figures(tmp_path):
  done = programs.run(
    *('compare', f'--output_dir={tmp_path}', '--methods=cold', *_DIGITS),
    *('--validation_examples=0', '--seeds=1'),
  )
  assert done.code == 0, done.err
  assert '--test_curve draws' in done.err
  assert not list(tmp_path.glob('curves_*'))
  assert '<figure' not in (tmp_path / 'index.html').read_text()


@pytest.mark.slow
def test_ctrl_c_lets_processes_save_their_runs(tmp_path):
  process = subprocess.Popen(
    programs.command(
      *('compare', f'--output_dir={tmp_path}', '--methods=cold', '--seeds=1'),
      *('--dataset=digits', '--rounds=100000', '--rounds_per_checkpoint=20'),
      *('--rounds_per_dispatch=20', '--rounds_per_evaluation=50000'),
    ),
    cwd=programs.ROOT,
    stderr=subprocess.PIPE,
    text=True,
  )
  deadline = time.monotonic() + 300
  while not any(tmp_path.glob('runs/cold_0/checkpoints/*.ckpt')):
    assert time.monotonic() < deadline and process.poll() is None
    time.sleep(0.1)
  process.send_signal(signal.SIGINT)
  _, err = process.communicate(timeout=300)
  assert process.returncode == 130
  assert 'all runs are saved' in err
  assert re.search(
    'saved after round', (tmp_path / 'logs/cold_0.log').read_text()
  )
