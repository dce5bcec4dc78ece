"""Training, run as a user would."""

import json
import subprocess
import sys

from pda_fed import privacy
from pda_fed import runs as runs_lib
import pytest

from tests.scripts import programs

_TINY = '--flagfile=scripts/presets/tiny.flags'


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  path = tmp_path_factory.mktemp('data') / 'tiny'
  done = programs.run(
    'prepare_users',
    f'--output_dir={path}',
    '--synthetic_users=60',
    '--max_sentences=32',
    '--num_public_users=4',
    '--vocabulary_size=1000',
  )
  assert done.returncode == 0, done.stderr
  return path


@pytest.mark.slow
def test_trains_and_prints_a_table_and_the_guarantee(data_dir, tmp_path):
  out = tmp_path / 'run'
  arguments = (
    _TINY,
    f'--data_dir={data_dir}',
    f'--output_dir={out}',
    '--method=pda',
    '--seed=0',
    '--target_epsilon=9',
  )
  done = programs.run('train_stackoverflow', *arguments)
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  assert lines[0].split() == [
    'round',
    'epsilon',
    'loss',
    'accuracy',
    'perplexity',
  ]
  assert [line.split()[0] for line in lines[2:6]] == ['0', '1', '2', 'test']
  assert float(lines[5].split()[1]) <= 9
  assert 'Poisson cohorts of 3 out of 56 users' in done.stdout
  assert 'can remove the noise' in done.stdout
  assert lines[-1] == f'Wrote {out}.'
  # What it is about to do, before it does it.
  said = done.stderr
  assert '56 private, 4 public, 1 validation' in said
  assert said.index('for the whole run') < said.index('pre-training')
  # Plain lines, where there is no terminal for a bar.
  assert 'pre-training, epoch 1' in done.stderr
  assert 'round 2/2: train loss' in done.stderr
  assert 'ETA' in done.stderr

  config = json.loads((out / 'config.json').read_text())
  assert config['settings']['spec']['lstm_size'] == 8
  assert config['data']['users']['private'] == 56
  assert config['libraries']['tensorflow-federated']
  result = json.loads((out / 'result.json').read_text())
  assert 8.9 < result['epsilon'] <= 9
  assert result['seconds_per_round'] > 0
  header = (out / 'metrics.csv').read_text().splitlines()[0]
  assert header.startswith('round,epsilon,alpha,train_loss,loss,accuracy')

  again = programs.run(
    'train_stackoverflow', *arguments
  )  # Nothing is left to do.
  assert (again.stdout, again.stderr) == (done.stdout, '')
  other = programs.run(
    'train_stackoverflow', *arguments, '--clip_norm=2', '--dry_run'
  )
  assert other.returncode == 2
  assert other.stdout == ''
  assert 'plan.clip_norm: 0.3 -> 2.0' in other.stderr
  fewer = programs.run('train_stackoverflow', *arguments, '--rounds=1')
  assert 'rounds must be at least 2' in fewer.stderr


@pytest.mark.slow
def test_a_dry_run_writes_nothing(data_dir, tmp_path):
  out = tmp_path / 'run'
  done = programs.run(
    'train_stackoverflow',
    _TINY,
    f'--data_dir={data_dir}',
    f'--output_dir={out}',
    '--dry_run',
  )
  assert done.returncode == 0, done.stderr
  # sigma 0.4 in a cohort of three, and all weights of the model.
  assert 'times the norm of a clipped update' in done.stderr
  assert 'rounds    2, each with about 3 of 56 private users' in done.stdout
  assert 'for the whole run' in done.stdout
  assert 'noise_multiplier was not given: using the default, 0.4' in done.stderr
  assert not out.exists()


@pytest.mark.parametrize(
  'arguments, words',
  [
    (['--noise_multiplier=-1'], 'noise_multiplier must be non-negative'),
    (['--clients_per_round=99'], 'clients_per_round must be in [0, 56]'),
    (['--delta=2'], 'delta must be in (0, 1)'),
    (['--rounds=0'], 'rounds'),
    (['--nonsense'], 'nonsense'),
    (
      ['--vocabulary_size=10000'],
      '1,000 words. Found a model with 10,000 words',
    ),
    (['--public_users_per_round=5'], 'must be at most 4'),
    (
      ['--alpha_i=2', '--alpha_K=3'],
      'Give at most one of --alpha_K',
    ),
    (
      ['--method=hot'],
      'method must be one of adadps, cold, dope, pda, semi_dp',
    ),
    (['--semi_dp_weight=0.5'], 'must be given with --method=semi_dp'),
    (['--noise_multiplier=1', '--target_epsilon=1'], 'must not be given with'),
    (
      ['--clip_quantile=0.3'],
      '--clip_quantile must be given with --adaptive_clipping',
    ),
    (
      ['--adaptive_clipping', '--sampling=epochs'],
      '--adaptive_clipping must not be given with --sampling=epochs',
    ),
    (
      ['--sampling=epochs', '--engine=jax'],
      '--sampling=epochs must be used with --engine=tff',
    ),
    (
      ['--adaptive_clipping', '--noise_multiplier=1'],
      'must be below twice the count_stddev of adaptive_clipping, 0.3',
    ),
    (
      ['--sampling=fixed_size', '--clients_per_round=2.5'],
      'clients_per_round must be an integer',
    ),
    (['--data_dir=nowhere'], 'nowhere is neither a token store'),
    (['--output_dir='], 'output_dir'),
    (['--public_clip_norm=little'], "a number, 'private' or 'none'"),
    (['--client_gradient_clip=0'], 'client_gradient_clip must be positive'),
    (
      ['--flagfile=scripts/presets/huge.flags'],
      'laptop.flags, own_text.flags, stackexchange',
    ),
  ],
)
def test_bad_flags_are_one_line(data_dir, tmp_path, arguments, words):
  done = programs.run(
    'train_stackoverflow',
    _TINY,
    f'--data_dir={data_dir}',
    f'--output_dir={tmp_path / "run"}',
    *arguments,
  )
  assert done.returncode == 2
  assert done.stdout == ''
  assert done.stderr.count('\n') == 1
  assert words in done.stderr
  assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
  'arguments, expected',
  [
    (
      ['--engine=tff', '--sampling=epochs', '--target_epsilon=20'],
      {'sampling': 'epochs', 'mechanism': 'tree', 'adaptive_clipping': None},
    ),
    (
      ['--engine=tff', '--adaptive_clipping', '--target_epsilon=90'],
      {'adaptive_clipping': privacy.AdaptiveClipping()},
    ),
    (
      [
        '--engine=jax',
        '--adaptive_clipping',
        '--clip_quantile=0.7',
        '--clip_learning_rate=0.3',
        '--clip_count_stddev=2',
        '--target_epsilon=9',
      ],
      {
        'adaptive_clipping': privacy.AdaptiveClipping(
          target_quantile=0.7, learning_rate=0.3, count_stddev=2.0
        )
      },
    ),
  ],
)
def test_other_plans(data_dir, tmp_path, arguments, expected):
  out = tmp_path / 'run'
  done = programs.run(
    'train_stackoverflow',
    _TINY,
    f'--data_dir={data_dir}',
    f'--output_dir={out}',
    '--method=cold',
    '--max_validation_users=2',
    '--max_test_users=2',
    *arguments,
  )
  assert done.returncode == 0, done.stderr
  folder = runs_lib.RunFolder(out)
  _, rows, result = folder.read_finished()
  plan = folder.read_plan()
  for name, value in expected.items():
    assert getattr(plan, name) == value
  assert result['epsilon'] == plan.epsilon()
  target = float(arguments[-1].partition('=')[2])
  assert 0.99 * target < result['epsilon'] <= target
  assert ('clip_norm' in rows[-1]) == (plan.adaptive_clipping is not None)


@pytest.mark.parametrize(
  'preset',
  [
    'laptop',
    'own_text',
    'stackexchange',
    'stackoverflow_cold',
    'stackoverflow_pda',
    'stackoverflow_warm',
    'tiny',
  ],
)
def test_presets_are_flags_of_the_binary(preset, tmp_path):
  """A preset with a flag that does not exist would be another error."""
  done = programs.run(
    'train_stackoverflow',
    f'--flagfile=scripts/presets/{preset}.flags',
    '--data_dir=nowhere',
    f'--output_dir={tmp_path}',
  )
  assert 'nowhere is neither a token store' in done.stderr


def test_a_missing_engine_is_named(data_dir, tmp_path):
  """Where a library of an engine is missing, another engine is proposed."""
  program = (
    'import sys; sys.modules["tensorflow_federated"] = None;'
    'sys.modules["tensorflow"] = None; sys.argv[0] = "train";'
    'import runpy; runpy.run_module("scripts.train_stackoverflow",'
    ' run_name="__main__")'
  )
  done = subprocess.run(
    [
      sys.executable,
      '-c',
      program,
      _TINY,
      f'--data_dir={data_dir}',
      f'--output_dir={tmp_path / "run"}',
    ],
    cwd=programs.ROOT,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert done.returncode == 3
  assert "The engine 'tff' is not installed: it needs tensorflow" in done.stderr


@pytest.mark.slow
def test_without_tff_one_line_says_so(data_dir, tmp_path):
  program = (
    'import sys; sys.modules["tensorflow_federated"] = None;'
    'sys.argv[0] = "train_stackoverflow"; import runpy;'
    'runpy.run_module("scripts.train_stackoverflow", run_name="__main__")'
  )
  arguments = [f'--output_dir={tmp_path}/run', f'--data_dir={data_dir}']
  done = subprocess.run(
    [sys.executable, '-c', program, _TINY, *arguments],
    cwd=programs.ROOT,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert done.returncode == 3
  assert done.stderr.count('\n') == 1
  assert 'needs tensorflow_federated. Use --engine=jax.' in done.stderr
