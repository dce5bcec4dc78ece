"""The binary: a short run, many runs of a file, presets, bad flags."""

import json
import math
import pathlib

from data_prep import sample_level
import numpy as np
from pda_fed.models import convolutional
from pda_fed.models import language
from pda_fed.privacy import presets
from pda_fed.runs import sample_level_config
import pytest

from tests.scripts import programs

_SHORT = (
  '--epochs=0.2',
  '--batch_size=30',
  '--pretraining_max_epochs=1',
  '--seed=0',
)


def _run(*arguments):
  return programs.run('train_sample_level', *arguments)


@pytest.mark.slow
def test_many_runs_in_a_process(tmp_path):
  lines = [
    f'--method=cold --output_dir={tmp_path}/cold',
    '# A remark.',
    f'--method=pda --alpha_K=2 --output_dir={tmp_path}/pda',
    f'--method=pda --learning_rate=0.1 --output_dir={tmp_path}/slow',
  ]
  (tmp_path / 'runs.txt').write_text('\n'.join(lines))
  done = _run(f'--runs_file={tmp_path}/runs.txt', '--side_by_side=2', *_SHORT)
  assert done.returncode == 0, done.stderr
  settings = {}
  for name in ('cold', 'pda', 'slow'):
    folder = tmp_path / name
    assert json.loads((folder / 'result.json').read_text())['test']['accuracy']
    config = json.loads((folder / 'config.json').read_text())
    settings[name] = config['settings']
  assert 'validation examples were taken from the' in config['caveats'][-1]
  assert settings['cold']['alpha'] is None
  assert settings['pda']['alpha']['K'] == 2
  # A line's flags are its own.
  assert settings['slow']['alpha']['K'] == 20
  assert settings['slow']['learning_rate'] == 0.1
  assert settings['pda']['learning_rate'] == settings['cold']['learning_rate']
  # Where no flag says otherwise, the data set's own defaults hold.
  task = sample_level_config.TASKS['digits']
  plan = settings['cold']['plan']
  assert plan['delta'] == task.delta
  assert plan['noise_multiplier'] == task.noise_multiplier
  pretraining = settings['pda']['pretraining']
  assert pretraining['learning_rate'] == task.pretraining.learning_rate
  assert pretraining['patience'] == task.pretraining.patience
  assert pretraining['max_epochs'] == 1
  epoch = math.ceil(plan['population'] / 30)
  assert config['options']['rounds_per_dispatch'] == epoch
  assert settings['cold']['rounds_per_evaluation'] == epoch
  # Given again, nothing is left to do.
  again = _run(*_SHORT, '--method=cold', f'--output_dir={tmp_path}/cold')
  assert again.returncode == 0, again.stderr
  assert 'Example-level DP, add or remove one example' in again.stdout


@pytest.mark.slow
def test_a_run_that_diverges_stops_no_other(tmp_path):
  rates = {'first': 0.5, 'wild': 1e30, 'last': 0.5}
  lines = [
    f'--learning_rate={rate} --output_dir={tmp_path}/{name}'
    for name, rate in rates.items()
  ]
  (tmp_path / 'runs.txt').write_text('\n'.join(lines))
  done = _run(f'--runs_file={tmp_path}/runs.txt', '--method=cold', *_SHORT)
  assert done.returncode == 4  # All that failed diverged.
  assert 'wild: Round 0: the model is no longer finite' in done.stderr
  assert 'resumes' not in done.stderr  # It would end the same again.
  assert '1 of 3 runs failed' in done.stderr
  finished = [n for n in rates if (tmp_path / n / 'result.json').exists()]
  assert finished == ['first', 'last']
  # A search that makes its runs by a file knows that this one counts as a try.
  marked = [n for n in rates if (tmp_path / n / 'diverged.json').exists()]
  assert marked == ['wild']


@pytest.mark.slow
@pytest.mark.parametrize(
  ('lines', 'message'),
  [
    (['--test_curve false --output_dir=a'], "unexpected argument 'false'"),
    (
      ['--seed=1 --output_dir=a', '--seed=2 --output_dir=a'],
      'each --output_dir',
    ),
    (['--seed=1'], '--seed=1: --output_dir must be given'),
  ],
)
def test_files_of_runs_are_read_before_the_first_run(tmp_path, lines, message):
  (tmp_path / 'runs.txt').write_text('\n'.join(lines))
  done = _run(f'--runs_file={tmp_path}/runs.txt', '--method=cold')
  assert done.returncode == 2
  assert message in done.stderr


def test_files_of_runs_are_not_spread_over_hosts(tmp_path):
  done = _run(f'--runs_file={tmp_path}/runs.txt', '--distributed')
  assert done.returncode == 2
  assert '--distributed must not be given with --runs_file' in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('own_public', [False, True])
def test_images_of_ones_own(tmp_path, own_public):
  rng = np.random.default_rng(0)
  arrays = {}
  for part, count in (('train', 60), ('test', 20), ('public', 9)):
    labels = np.arange(count) % 3
    # The class is how bright it is.
    noise = rng.integers(0, 60, (count, 6, 6))
    arrays[f'{part}_images'] = (noise + 90 * labels[:, None, None]).astype('u1')
    arrays[f'{part}_labels'] = labels
  if not own_public:
    del arrays['public_images'], arrays['public_labels']
  np.savez(tmp_path / 'mine.npz', **arrays)
  arguments = ['--dataset=images', f'--data_dir={tmp_path}/mine.npz']
  arguments += ['--seed=0', '--batch_size=20', '--public_batch_size=5']
  arguments += ['--epochs=1', '--delta=1e-3', f'--output_dir={tmp_path}/run']
  arguments += ['--pretraining_max_epochs=5', '--pretraining_batch_size=4']
  arguments += ['--activation=relu']
  if not own_public:
    arguments.append('--public_examples=6')
  done = _run(*arguments)
  assert done.returncode == 0, done.stderr
  config = json.loads((tmp_path / 'run' / 'config.json').read_text())
  sizes = config['data']['examples']
  assert (sizes['private'], sizes['public']) == (
    (60, 9) if own_public else (54, 6)
  )
  assert config['settings']['spec']['image_shape'] == [6, 6, 1]
  assert config['settings']['spec']['num_classes'] == 3
  assert config['settings']['spec']['activation'] == 'relu'
  assert 'The number of classes was read off all labels' in done.stdout
  result = json.loads((tmp_path / 'run' / 'result.json').read_text())
  assert result['test']['accuracy'] > 0.5
  if own_public:
    refused = _run(*arguments, '--public_examples=6')
    assert refused.returncode == 2
    assert '--public_examples must not be given with public' in refused.stderr
  else:
    refused = _run(*arguments[:-1])
    assert refused.returncode == 2
    assert '--public_examples must be given' in refused.stderr


def _table(**changes):
  """Separable classes, in features of different sizes."""
  rng = np.random.default_rng(0)
  arrays = {}
  for part, count in (('train', 300), ('test', 60), ('public', 30)):
    labels = np.arange(count) % 3
    rows = rng.normal(size=(count, 4)) + 3 * np.eye(3, 4)[labels]
    arrays[f'{part}_inputs'] = rows * [1e-3, 1, 1e3, 0] + [0, 0, 1e4, 0.1]
    arrays[f'{part}_labels'] = labels
  arrays |= {'num_classes': 3} | changes
  return {name: value for name, value in arrays.items() if value is not None}


def _run_table(tmp_path, arrays, *arguments):
  np.savez(tmp_path / 'mine.npz', **arrays)
  return _run(
    '--dataset=table',
    f'--data_dir={tmp_path}/mine.npz',
    f'--output_dir={tmp_path}/run',
    '--seed=0',
    '--delta=1e-3',
    *arguments,
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ('arguments', 'dense_sizes'),
  [
    (['--method=cold', '--compute_dtype=bfloat16'], []),
    (['--dense_sizes=8,6', '--activation=relu', '--epochs=3'], [8, 6]),
  ],
)
def test_a_table_of_ones_own(tmp_path, arguments, dense_sizes):
  done = _run_table(tmp_path, _table(), *arguments)
  assert done.returncode == 0, done.stderr
  config = json.loads((tmp_path / 'run' / 'config.json').read_text())
  spec = config['settings']['spec']
  assert (spec['image_shape'], spec['convolutions']) == ([4], [])
  assert spec['dense_sizes'] == dense_sizes
  sizes = config['data']['examples']
  assert (sizes['private'], sizes['public']) == (300, 30)
  result = json.loads((tmp_path / 'run' / 'result.json').read_text())
  assert result['test']['accuracy'] > 0.8


_NO_PUBLIC = {'public_inputs': None, 'public_labels': None}


@pytest.mark.parametrize(
  ('changes', 'flag', 'message'),
  [
    ({}, '--augmentation=all', "augmentation must be 'none' unless"),
    (
      {},
      '--pretraining_augmentation=strong',
      "pretraining_augmentation must be 'none' unless the data are images",
    ),
    (
      {},
      '--pretraining_mixup=0.2',
      'mixup must be 0 unless the data are images',
    ),
    ({}, '--model=wrn-16-4', '--model must not be given for table'),
    (
      {},
      '--augmentation_multiplicity=4',
      "must be 1 unless augmentation is 'all'",
    ),
    ({}, '--dense_sizes=8,-1', 'positive integers, and only given'),
    ({}, '--dense_sizes=8,0', 'dense_sizes must be at least 1. Found 0'),
    ({}, '--public_examples=30', '--public_examples must not be given'),
    (_NO_PUBLIC, '', '--public_examples must be given'),
    # What else can be wrong with the file has tests with its reader.
    ({'test_inputs': np.full((60, 4), np.nan)}, '', 'Found nan in row 0, col'),
    ({}, '--dataset=images', 'Found train_inputs'),
  ],
)
def test_bad_tables_are_one_line(tmp_path, changes, flag, message):
  done = _run_table(tmp_path, _table(**changes), *filter(None, [flag]))
  assert done.returncode == 2
  assert message in done.stderr
  assert len(done.stderr.strip().splitlines()) == 1
  assert not (tmp_path / 'run').exists()


def test_the_model_of_a_table_is_for_its_rows():
  rows = sample_level.Examples(np.zeros((4, 5), np.float32), np.arange(4) % 3)
  data = sample_level.SampleLevelData('table', rows, rows, 3)
  spec = convolutional.linear((5,), 3)
  assert sample_level_config.config_for(spec, data) == spec
  with pytest.raises(ValueError, match='must be for rows'):
    sample_level_config.config_for(language.LanguageSpec(), data)
  with pytest.raises(ValueError, match='3 classes'):
    sample_level_config.config_for(convolutional.linear((5,), 4), data)
  for shape in ((6,), (5, 1, 1)):
    with pytest.raises(ValueError, match=r'rows of shape \(5,\)'):
      sample_level_config.config_for(convolutional.linear(shape, 3), data)


def _preset_flags(name):
  """The flags of a preset and of those that it includes."""
  lines = (programs.ROOT / 'scripts/presets' / name).read_text().splitlines()
  found = {}
  for line in lines:
    if line.startswith('--'):
      flag, _, value = line[2:].partition('=')
      if flag == 'flagfile':
        found |= _preset_flags(pathlib.Path(value).name)
      else:
        found[flag] = value
  return found


@pytest.mark.parametrize(
  'name', [n for n in presets.PRESETS if n != 'stackoverflow']
)
def test_presets_are_the_papers_plans(name):
  plan = presets.PRESETS[name].plan
  found = _preset_flags(f'{name}.flags')
  assert float(found['noise_multiplier']) == plan.noise_multiplier
  assert float(found['batch_size']) == plan.expected_cohort
  assert float(found['delta']) == plan.delta
  steps = float(found['epochs']) * plan.population // plan.expected_cohort
  assert steps == plan.rounds
  assert found['dataset'] in sample_level.DATASETS


@pytest.mark.parametrize(
  'binary', ['train_sample_level', 'train_stackoverflow']
)
def test_help_names_the_flags_of_every_run(binary):
  text = programs.run(binary, '--help')
  for flag in ('method', 'seed', 'output_dir', 'noise_multiplier', 'alpha_K'):
    assert f'--{flag}:' in text.stdout


@pytest.mark.parametrize(
  ('name', 'examples'),
  [('cifar10', 50_000), ('emnist', 697_932), ('wikitext2', 48_764)],
)
def test_defaults_are_the_papers_plans(name, examples):
  plan, task = presets.PRESETS[name].plan, sample_level_config.TASKS[name]
  assert task.public_examples == examples - plan.population
  assert task.noise_multiplier == plan.noise_multiplier
  assert task.batch_size == plan.expected_cohort
  assert task.delta == plan.delta
  steps = task.epochs * plan.population // plan.expected_cohort
  assert steps == plan.rounds
  assert task.clips_mean == (name != 'wikitext2')


def test_presets_have_flags_that_exist():
  folder = programs.ROOT / 'scripts/presets'
  known = _run('--helpfull').stdout
  for path in folder.glob('*.flags'):
    found = _preset_flags(path.name)
    if 'dataset' in found:
      assert not [flag for flag in found if f'{flag}:' not in known], path
      assert 'noise_multiplier' in found or path.stem.endswith(
        ('_base', '_augmented', '_dropout')
      )


@pytest.mark.slow
@pytest.mark.parametrize(
  ('flag', 'message'),
  [
    ('--public_examples=0', 'public_examples must be at least 1. Found 0'),
    ('--public_examples=-5', 'public_examples must be at least 1. Found -5'),
    (
      '--public_examples=1437',
      'public_examples must be below 1437, the number',
    ),
    ('--batch_size=5000', 'batch_size must be in (0, 1149]'),
    ('--dataset=cifar10', 'data_dir must be given'),
    ('--data_dir=mine.npz', "Found 'mine.npz'. Give dataset as well"),
    (
      '--compute_dtype=bfloat16',
      "compute_dtype must be 'float32' for images on a CPU",
    ),
    ('--public_dataset=x', "'digits', which has no words"),
    ('--dense_sizes=8', '--dataset=table. Found 8 for digits'),
    ('--epochs=-1', 'epochs must be positive and finite. Found -1'),
    ('--epochs=nan', 'epochs must be positive and finite. Found nan'),
    ('--pretraining_dropout=1.5', 'pretraining_dropout must be in [0, 1)'),
    ('--pretraining_candidates=0', 'pretraining_candidates must be'),
  ],
)
def test_bad_flags_are_one_line(tmp_path, flag, message):
  done = _run(flag, f'--output_dir={tmp_path}/x')
  assert done.returncode == 2
  assert message in done.stderr
  assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
  'flags, words',
  [
    (['--audit', '--noise_multiplier=0'], 'audit must be off'),
    (['--audit', '--audit_canaries=20'], 'audit_canaries must be at least 100'),
    (['--audit', '--audit_canaries=60000'], 'audit_canaries must be at most'),
    (['--audit=twice'], 'must be given without a value, or be copy'),
    (['--audit_canaries=200'], 'must be given with --audit'),
  ],
)
def test_bad_audits_are_one_line(tmp_path, flags, words):
  done = _run(f'--output_dir={tmp_path}/run', '--method=cold', *flags)
  assert done.returncode == 2
  (line,) = done.stderr.splitlines()
  assert words in line
