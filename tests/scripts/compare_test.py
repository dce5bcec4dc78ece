"""Comparisons, run as a user would, with a quick training binary."""

import json
import shutil
import signal
import subprocess
import time

import pytest

from tests.scripts import programs

pytestmark = pytest.mark.slow


class TestCompare:
  @pytest.fixture(scope='class')
  def done(self, tmp_path_factory):
    folder = tmp_path_factory.mktemp('compare')
    arguments = (programs.FAKE, f'--output_dir={folder}', '--seeds=2', '--')
    return folder, arguments, programs.run('compare', *arguments, '--rounds=4')

  def test_prints_a_table_and_a_verdict(self, done):
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
    # Seeds of the fake differ by less than methods do.
    assert lines[7].startswith('PDA-DPMD is better than public data alone in')
    assert '--select_by=loss' in result.stdout
    assert 'Poisson cohorts of 10 out of 1,000 users' in result.stdout
    assert result.stdout.count('A caveat.') == 1
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
    table = (folder / 'table.md').read_text()
    assert '**' in table
    assert 'PDA-DPMD is better than public data alone' in table
    assert 'Bold: clearly better than every other line' in table
    assert r'\textbf' in (folder / 'table.tex').read_text()
    page = (folder / 'index.html').read_text()
    assert page.count('<svg') == 4
    assert '<h1>PDA-DPMD is better than public data alone in' in page
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
    result = programs.run(
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
      (['--combine='], 'comma-separated list of folders of comparisons'),
      (['--combine=X', '--', '--rounds=4'], 'Found --rounds=4'),
      (['--combine=X', '--seeds=2'], 'Found --seeds'),
      (['--combine=X', '--metrics=speed'], 'X: metrics must be among'),
      (['--combine=X', '--output_dir=X'], 'must be a separate folder'),
      (['--combine=X', '--output_dir=README.md'], 'Found the file'),
    ],
  )
  def test_combines_nothing_else(self, done, tmp_path, arguments, error):
    folder, _, _ = done
    here = [a.replace('=X', f'={folder}') for a in arguments]
    result = programs.run('compare', f'--output_dir={tmp_path}', *here)
    assert result.returncode == 2
    assert error.replace('X:', f'{folder}:') in result.stderr
    assert 'Traceback' not in result.stderr
    assert not list(tmp_path.iterdir())

  def test_again_runs_nothing_and_writes_the_same(self, done):
    folder, arguments, _ = done
    page = (folder / 'index.html').read_text()
    started = (folder / 'runs/pda_0/metrics.csv').stat().st_mtime_ns
    again = programs.run('compare', *arguments, '--rounds=4')
    assert again.returncode == 0
    assert (folder / 'index.html').read_text() == page
    assert (folder / 'runs/pda_0/metrics.csv').stat().st_mtime_ns == started

  def test_other_settings_for_the_same_folder_fail_with_the_reason(self, done):
    _, arguments, _ = done
    other = programs.run('compare', *arguments, '--rounds=5')
    assert other.returncode == 1
    assert 'plan.rounds: 4 -> 5' in other.stderr


def test_settings_go_to_the_methods_that_have_them(tmp_path):
  done = programs.run(
    'compare',
    programs.FAKE,
    f'--output_dir={tmp_path}',
    '--methods=adadps,semi_dp,pda,cold',
    '--seeds=1',
    '--',
    '--rounds=2',
    '--alpha_K=3',
    '--semi_dp_weight=0.2',
  )
  assert done.returncode == 0, done.stderr
  titles = [line.split('  ')[0] for line in done.stdout.splitlines()[3:7]]
  assert titles == ['cold start', 'PDA-DPMD', 'Semi-DP', 'AdaDPS']
  found = {}
  for name in ('cold', 'pda', 'semi_dp', 'adadps'):
    config = json.loads((tmp_path / f'runs/{name}_0/config.json').read_text())
    settings = config['settings']
    found[name] = settings['alpha'], settings.get('semi_dp_weight')
  assert found == {
    'cold': (None, None),
    'pda': ({'kind': 'cosine', 'K': 3}, None),
    'semi_dp': (None, 0.2),
    'adadps': (None, None),
  }


@pytest.mark.parametrize(
  'arguments, words',
  [
    (
      ['--methods='],
      'methods must have at least one',
    ),
    (
      ['--methods=cold,hot'],
      'method must be one of adadps, cold, dope, pda, semi_dp, warm, or a'
      " module such as my_package.my_method. Found 'hot'",
    ),
    (['--method_flags=hot:--x'], 'method_flags must begin with one of'),
    (['--binary=train_nothing'], 'binary must be a training binary'),
    (['--', '--seed=1'], '--seed must not be given after --: --seeds sets it'),
    (['--alpha_K=3'], '--alpha_K is a flag of the training binary: put it aft'),
    (['--rounds=3'], '--rounds is a flag of the training binary: put it after'),
    (
      ['--select_by=bleu'],
      'select_by must be among accuracy, accuracy_with_oo',
    ),
    (['--chosen=no.json'], 'no.json cannot be read'),
    (['--', '--data_dir=nowhere'], 'nowhere'),
    (
      ['--', '--data_dir=x', '--roundz=3'],
      "flag 'roundz'. Did you mean: rounds",
    ),
    (['--tune=rounds=2', '--', '--data_dir=nowhere'], 'nowhere'),
  ],
)
def test_bad_comparisons(tmp_path, arguments, words):
  done = programs.run('compare', f'--output_dir={tmp_path}', *arguments)
  assert done.returncode == 2
  assert words in done.stderr
  assert done.stderr.startswith('error: ') and done.stdout == ''
  assert len(done.stderr.splitlines()) == 1
  assert not any(tmp_path.glob('runs/*'))


def test_runs_without_curves_have_no_empty_figures(tmp_path):
  arguments = (
    '--binary=train_sample_level',
    '--methods=cold',
    '--metrics=loss',
    '--seeds=1',
  )
  done = programs.run(
    'compare',
    *arguments,
    f'--output_dir={tmp_path}',
    '--',
    '--validation_examples=0',
    '--epochs=0.1',
  )
  assert done.returncode == 0, done.stderr
  assert '--test_curve draws' in done.stderr
  assert not list(tmp_path.glob('curves_*'))
  assert '<figure' not in (tmp_path / 'index.html').read_text()


def test_guarantees_are_said_of_their_methods(tmp_path):
  done = programs.run(
    'compare',
    programs.FAKE,
    f'--output_dir={tmp_path}',
    '--methods=cold,warm',
    '--seeds=1',
    '--select_by=accuracy',
    '--method_flags=cold:--rounds=4',
    '--',
    '--rounds=3',
  )
  assert done.returncode == 0, done.stderr
  assert 'cold start: ' in done.stdout
  assert 'warm start: ' in done.stdout
  assert 'Not equally private: epsilon is ' in done.stdout
  assert 'decided by accuracy (--select_by=accuracy)' in done.stdout


def test_unknown_metric_and_failed_runs(tmp_path):
  common = (programs.FAKE, f'--output_dir={tmp_path}', '--methods=cold')
  ours = ('--binary=train_sample_level', *common[1:])
  done = programs.run('compare', *ours, '--metrics=bleu')
  assert done.returncode == 2
  assert 'metrics must be among accuracy, accuracy_with' in done.stderr
  assert not any(tmp_path.iterdir())  # Nothing has been run for it.
  one_by_one = (*common, '--num_processes=1', '--seeds=3')
  done = programs.run('compare', *one_by_one, '--metrics=bleu')
  assert done.returncode == 2
  assert 'metrics must be among accuracy, loss, perplexity' in done.stderr
  runs = [path.name for path in (tmp_path / 'runs').glob('cold_*')]
  assert runs == ['cold_0']  # Not all of them.
  done = programs.run(
    'compare',
    *common,
    '--methods=cold,warm',
    '--seeds=1',
    '--method_flags=cold:--fail',
  )
  assert done.returncode == 1
  assert 'cold_0 failed with exit code 2' in done.stderr
  assert 'fail must be false' in done.stderr
  left_out = 'Left out because they failed: cold_0.'
  page = (tmp_path / 'index.html').read_text()
  assert left_out in done.stdout and left_out in page


def test_ctrl_c_lets_all_runs_save(tmp_path):
  process = subprocess.Popen(
    programs.command(
      'compare',
      programs.FAKE,
      f'--output_dir={tmp_path}',
      '--methods=cold,warm',
      '--seeds=1',
      '--',
      '--rounds=100000',
      '--rounds_per_evaluation=50000',
      '--rounds_per_checkpoint=100',
    ),
    cwd=programs.ROOT,
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


def test_audits_are_in_the_table_and_on_the_page(tmp_path):
  done = programs.run(
    'compare',
    '--binary=train_sample_level',
    '--methods=cold',
    '--seeds=1',
    '--audit',
    '--audit_canaries=200',
    f'--output_dir={tmp_path}',
    '--',
    '--epochs=0.3',
  )
  assert done.returncode == 0, done.stderr
  header, _, row, *_ = done.stdout.splitlines()
  assert header.split()[-2:] == ['audited', 'runs']
  assert 'at least' in row
  for text in (done.stdout, (tmp_path / 'index.html').read_text()):
    assert 'Audit with 200 canaries' in text
    assert 'An adversary who sees every noised mean' in text
  report = json.loads((tmp_path / 'runs/cold_0/result.json').read_text())
  assert report['audit']['canaries'] == 200
