"""Training: users and examples, files of settings and of runs, exit codes."""

import signal
import subprocess
import time

from pda_fed import audit
from pda_fed import runs as runs_lib
from pda_fed.common import files
import pytest

from tests.runs import tiny_users
from tests.scripts import programs

_DIGITS = ('--dataset=digits', '--epochs=1', '--seed=0')


def _losses(folder):
  rows = runs_lib.RunFolder(folder).read_metrics()
  return [row['loss'] for row in rows]


class TestDigits:
  @pytest.fixture(scope='class')
  def folder(self, tmp_path_factory):
    return tmp_path_factory.mktemp('train') / 'run'

  @pytest.fixture(scope='class')
  def done(self, folder):
    return programs.run('train', *_DIGITS, f'--output_dir={folder}')

  def test_prints_the_plan_the_result_and_the_guarantee(self, done, folder):
    assert done.code == 0, done.err
    assert 'PDA-DPMD on digits, engine jax' in done.err
    assert 'noise_multiplier was not given: using the default, 10' in done.err
    assert done.out.splitlines()[0].split() == [
      *('round', 'epsilon', 'loss', 'accuracy')
    ]
    assert 'Example-level DP, add or remove one example' in done.out
    assert done.out.endswith(f'Wrote {folder}.\n')

  def test_a_finished_run_is_shown_again(self, done, folder):
    written = (folder / 'metrics.csv').stat().st_mtime_ns
    again = programs.run('train', *_DIGITS, f'--output_dir={folder}')
    assert (again.code, again.out) == (0, done.out)
    assert (folder / 'metrics.csv').stat().st_mtime_ns == written

  def test_its_config_makes_it_again(self, done, folder, tmp_path):
    del done
    config = f'--config={folder / "config.json"}'
    again = programs.run('train', config, f'--output_dir={tmp_path / "again"}')
    assert again.code == 0, again.err
    assert _losses(tmp_path / 'again') == _losses(folder)

  def test_a_dry_run_writes_nothing(self, tmp_path):
    done = programs.run(
      'train', *_DIGITS, '--dry_run', f'--output_dir={tmp_path / "run"}'
    )
    assert done.code == 0, done.err
    assert 'epsilon 0.05339' in done.out
    assert not any(tmp_path.iterdir())


class TestManyRuns:
  def _run(self, tmp_path, lines, *words):
    path = tmp_path / 'runs.txt'
    path.write_text('\n'.join(lines))
    return programs.run('train', f'--runs_file={path}', *_DIGITS, *words)

  def test_lines_have_flags_of_their_own(self, tmp_path):
    lines = [
      f'--method=cold --output_dir={tmp_path}/cold',
      '# A remark.',
      f'--method.alpha_K=2 --output_dir={tmp_path}/pda',
      f'--server.learning_rate=0.1 --output_dir={tmp_path}/slow',
    ]
    done = self._run(tmp_path, lines, '--side_by_side=2')
    assert done.code == 0, done.err
    specs = {
      name: runs_lib.RunFolder(tmp_path / name).read_config().spec
      for name in ('cold', 'pda', 'slow')
    }
    assert specs['cold'].method.name == 'cold'
    assert specs['pda'].method.settings == {'alpha_K': 2}
    assert not specs['slow'].method.settings
    rates = {n: s.server.learning_rate for n, s in specs.items()}
    assert rates == {'cold': 0.5, 'pda': 0.5, 'slow': 0.1}

  def test_a_run_that_diverges_stops_no_other(self, tmp_path):
    rates = {'first': 0.5, 'wild': 1e30, 'last': 0.5}
    lines = [
      f'--server.learning_rate={rate} --output_dir={tmp_path}/{name}'
      for name, rate in rates.items()
    ]
    done = self._run(tmp_path, lines, '--method=cold')
    assert done.code == 4  # All that failed diverged.
    assert 'the model is no longer finite' in done.err
    assert '1 of 3 runs failed' in done.err
    finished = [n for n in rates if (tmp_path / n / 'result.json').exists()]
    assert finished == ['first', 'last']

  @pytest.mark.parametrize(
    'lines, words, message',
    [
      (['--output_dir=a x'], [], "unexpected argument 'x'"),
      (['--output_dir=a', '--seed=2 --output_dir=a'], [], 'each --output_dir'),
      (['--seed=1'], [], '--output_dir must be given'),
      (['--output_dir=a --roundz=1'], [], "flag 'roundz'"),
      (['--output_dir=a --rounds=0'], [], 'rounds must be'),
      (['--output_dir=a'], ['--dry_run'], '--dry_run must not be given with'),
      (['--output_dir=a'], ['--distributed'], '--distributed must not be'),
      (["'"], [], 'must have one command per line'),
    ],
  )
  def test_bad_lines_are_seen_before_the_first_run(
    self, tmp_path, lines, words, message
  ):
    done = self._run(tmp_path, lines, *words)
    assert done.code == 2
    assert message in done.error
    assert [p.name for p in tmp_path.iterdir()] == ['runs.txt']


@pytest.fixture(name='users', scope='module')
def fixture_users(tmp_path_factory):
  return tiny_users.prepare_table(tmp_path_factory.mktemp('users') / 'store')


_USERS = (
  *('--rounds=2', '--expected_cohort=3', '--delta=1e-3', '--seed=0'),
  *('--noise_multiplier=0.5', '--pretraining.max_epochs=1'),
  *('--rounds_per_evaluation=1', '--public.users_per_round=2'),
)


def test_users_with_jax(users, tmp_path):
  done = programs.run(
    'train',
    *_USERS,
    *(f'--data_dir={users}', f'--output_dir={tmp_path}', '--engine=jax'),
  )
  assert done.code == 0, done.err
  assert 'User-level DP, add or remove one user' in done.out


@pytest.mark.slow
def test_a_process_with_tff_prints_only_its_own_lines(users, tmp_path):
  done = programs.start(
    'train',
    *_USERS,
    *(f'--data_dir={users}', f'--output_dir={tmp_path}', '--engine=tff'),
  )
  assert done.code == 0, done.err
  assert 'User-level DP, add or remove one user' in done.out
  ours = ('PDA-DPMD on', '  ', 'warning: ', 'pre-training', 'round ')
  others = [n for n in done.err.splitlines() if not n.startswith(ours)]
  assert not others


@pytest.mark.slow
def test_a_stopped_run_resumes_bit_for_bit(tmp_path):
  words = ('--dataset=digits', '--epochs=40', '--seed=0', '--method=cold')
  words += ('--rounds_per_checkpoint=5', '--rounds_per_dispatch=1')
  folder = tmp_path / 'run'
  process = subprocess.Popen(
    programs.command('train', *words, f'--output_dir={folder}'),
    cwd=programs.ROOT,
    stderr=subprocess.PIPE,
    text=True,
  )
  deadline = time.monotonic() + 300
  while not any(folder.glob('checkpoints/*.ckpt')):
    assert time.monotonic() < deadline and process.poll() is None
    time.sleep(0.05)
  process.send_signal(signal.SIGTERM)
  _, err = process.communicate(timeout=300)
  assert process.returncode == 128 + signal.SIGTERM, err
  assert 'saved after round' in err.splitlines()[-1]
  assert not (folder / 'result.json').exists()
  for name in ('run', 'whole'):
    done = programs.run('train', *words, f'--output_dir={tmp_path / name}')
    assert done.code == 0, done.err
  assert _losses(folder) == _losses(tmp_path / 'whole')


@pytest.mark.parametrize(
  'words, message',
  [
    (['--rounds=0'], 'rounds must be'),
    (['--server.learning_rte=1'], 'Did you mean: server.learning_rate'),
    (['--server.optimizer=adm'], 'Did you mean adam?'),
    (['--server.beta1=0.5'], 'server.beta1 must be none with sgd'),
    (['--server.learning_rate=fast'], 'learning_rate'),
    (['--dataset=mnist2'], 'dataset'),
    (['--data_dir=nowhere'], 'nowhere'),
    (['--config=nowhere.json'], 'nowhere.json'),
    (['--method=hot', '--dataset=digits'], "Found 'hot'"),
    (['--method=warm', '--method.alpha_i=2', '--dataset=digits'], 'alpha_i'),
    (['--model=no.such', '--dataset=digits', '--seed=0'], 'no.such'),
    (['--num_hosts=2', '--dataset=digits'], 'given with --distributed'),
    (['--distributed', '--dataset=digits'], '--cluster_secret_file must be'),
    (['--flagfile=nowhere.flags'], 'stackexchange.flags'),
    (['extra'], "unexpected argument 'extra'"),
  ],
)
def test_bad_flags_are_one_line(tmp_path, words, message):
  done = programs.run('train', f'--output_dir={tmp_path / "run"}', *words)
  assert done.code == 2
  assert message in done.error
  assert len(done.err.splitlines()) == 1 and not done.out
  assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
  'content, message',
  [
    ('{"server": {"learning_rte": 1}}', 'Did you mean server.learning_rate'),
    ('{"server": {"learning_rate": "fast"}}', 'learning_rate must be'),
    ('{"seed": 0, "seed": 1}', 'seed must have one value. Found two'),
    ('{"plan": {"rounds": 2}, "rounds": 3}', 'one value'),
    ('{"data": {"dataset": "digits"}, "method": {"name": "pda", "q": 1}}', 'q'),
    ('[]', 'must be an object'),
    ('{', 'run.json'),
  ],
)
def test_bad_configs_are_one_line(tmp_path, content, message):
  (tmp_path / 'run.json').write_text(content)
  done = programs.run(
    *('train', f'--config={tmp_path / "run.json"}'),
    f'--output_dir={tmp_path / "run"}',
  )
  assert done.code == 2
  assert message in done.error
  assert len(done.err.splitlines()) == 1
  assert not (tmp_path / 'run').exists()


def test_exit_code_3_if_another_process_has_the_folder(tmp_path):
  with files.locked(tmp_path / '.lock'):
    done = programs.run('train', *_DIGITS, f'--output_dir={tmp_path}')
  assert done.code == 3
  assert 'Another process' in done.error


def test_exit_code_4_if_the_model_diverges(tmp_path):
  words = ('--method=cold', '--server.learning_rate=1e30')
  done = programs.run('train', *_DIGITS, *words, f'--output_dir={tmp_path}')
  assert done.code == 4
  assert 'no longer finite' in done.error
  assert 'resumes' not in done.error  # It would end the same again.


def test_exit_code_5_if_an_audit_contradicts_epsilon(tmp_path, monkeypatch):
  monkeypatch.setattr(audit, 'is_violated', lambda report: True)
  words = ('--method=cold', '--audit=run', '--audit_canaries=100')
  done = programs.run('train', *_DIGITS, *words, f'--output_dir={tmp_path}')
  assert done.code == 5
  assert (tmp_path / 'result.json').exists()
  assert done.error
