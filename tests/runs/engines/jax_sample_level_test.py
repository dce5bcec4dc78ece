"""Sample-level runs behind the loop, on handwritten digits."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import subprocess
import sys

from data_prep import sample_level
import jax
import numpy as np
from pda_fed import audit
from pda_fed import jax as pda_jax
from pda_fed import methods
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed import schedules
from pda_fed.models import convolutional
from pda_fed.runs import checkpoints
from pda_fed.runs import sample_level_config
from pda_fed.runs.engines import jax_sample_level
from pda_fed.runs.engines import side_by_side
import pytest

from tests import fake_engine

_SPEC = convolutional.ConvolutionalSpec(
  image_shape=(8, 8, 1),
  convolutions=(convolutional.Convolution(filters=2, size=3, stride=2),),
  dense_sizes=(),
  num_classes=10,
)
_ALPHA = schedules.constant(0.5)
_SPLIT = sample_level.SplitConfig(public_examples=144, validation_examples=100)


def _config(method='pda', alpha=_ALPHA, **options):
  data = jax_sample_level.load_data('digits', None)
  split = jax_sample_level.load_split(data, _SPLIT)
  settings = dict(
    method=fake_engine.make_method(method, alpha),
    dataset='digits',
    data_hash=sample_level.data_hash(data, split),
    engine='jax',
    plan=privacy.PrivacyPlan(
      population=len(split.private),
      expected_cohort=20,
      rounds=7,
      delta=1e-4,
      noise_multiplier=1.0,
      clip_norm=1.0,
      unit='example',
    ),
    split=_SPLIT,
    spec=_SPEC,
    learning_rate=0.1,
    momentum=0.9,
    averaging=0.9,
    mean_clip_norm=1.0,
    public_batch_size=8,
    rounds_per_dispatch=3,
    rounds_per_evaluation=3,
    pretraining=sample_level_config.SampleLevelPretraining(
      learning_rate=1e-2, max_epochs=2, candidates=2, seed=5
    ),
    seed=1,
  )
  return sample_level_config.SampleLevelConfig(**settings | options)


def _weights(folder, config):
  """The newest weights of a run."""
  engine = jax_sample_level.SampleLevelEngine(
    config, privacy.SeedStreams(config.seed)
  )

  kept = checkpoints.Checkpoints(folder.checkpoints_path, 3)
  state = engine.from_arrays(kept.latest().arrays, 7)
  return engine.get_weights(state), engine


def _assert_close(found: dict, expected: dict, rel: float) -> None:
  """Compares rows; what was not measured is None in both."""
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    if value is None:
      assert found[name] is None
    else:
      assert found[name] == pytest.approx(value, rel=rel)


def _rows(folder):
  rows = folder.read_metrics()
  return [{n: v for n, v in row.items() if n != 'seconds'} for row in rows]


@contextlib.contextmanager
def _open_on_one_device(
  config, seeds, engine=jax_sample_level.SampleLevelEngine
):
  yield engine(config, seeds, jax.devices()[:1])


@pytest.fixture(name='run', scope='module')
def fixture_run(tmp_path_factory):
  path = tmp_path_factory.mktemp('sample_level') / 'run'
  return runs_lib.train(_config(), _open_on_one_device, path)


def test_a_run_leaves_what_the_loop_promises(run):
  result = run.read_result()
  assert result['rounds'] == 7
  assert set(result['test']) == {'loss', 'accuracy'}
  assert result['warm_start']['epochs'] <= 2
  rows = _rows(run)
  assert [row['round'] for row in rows] == [0, 3, 6, 7]
  assert rows[-1]['alpha'] == 0.5
  assert {'public_loss', 'cosine', 'example_norm'} <= set(rows[-1])
  settings = run.read_config()['settings']
  assert settings['spec']['convolutions'][0]['filters'] == 2
  assert settings['split']['validation_examples'] == 100
  # Where the data lie is no setting.
  assert 'data_dir' not in settings


def test_a_stopped_run_goes_on_to_the_same_numbers(run, tmp_path):
  config = _config()

  class StopError(Exception):
    pass

  class Stopping(jax_sample_level.SampleLevelEngine):
    def run_rounds(self, state, first_round, num_rounds):
      if first_round == 3:
        raise StopError
      return super().run_rounds(state, first_round, num_rounds)

  open_stopping = functools.partial(_open_on_one_device, engine=Stopping)
  with pytest.raises(StopError):
    runs_lib.train(config, open_stopping, tmp_path / 'run')
  again = runs_lib.train(config, _open_on_one_device, tmp_path / 'run')
  for found, expected in zip(_rows(again), _rows(run), strict=True):
    _assert_close(found, expected, rel=1e-5)
  ours, _ = _weights(again, config)
  for found, expected in zip(ours, _weights(run, config)[0], strict=True):
    np.testing.assert_array_equal(found, expected)


def run_on_two_devices(path):
  """Writes a run, and the scores of canaries; this process has two devices."""
  path = pathlib.Path(path)
  runs_lib.train(_config(), runs_lib.open_engine, path / 'run')
  # Hardly any noise, and a model with room for the canaries' directions.
  config = _config(
    'cold',
    spec=dataclasses.replace(_SPEC, dense_sizes=(32,)),
    plan=dataclasses.replace(_config().plan, noise_multiplier=1e-3),
    audit=audit.AuditConfig(canaries=100),
  )
  engine = jax_sample_level.SampleLevelEngine(config, privacy.SeedStreams(1))
  _, metrics = engine.run_rounds(engine.initialize(), 0, 3)
  present = np.zeros((3, 100))
  for t in range(3):
    present[t, engine.canaries.cohort(t)] = 1
  scores = np.stack([row['canary_scores'] for row in metrics])
  np.savez(path / 'canaries.npz', present=present, scores=scores)


@pytest.fixture(name='two_devices', scope='module')
def fixture_two_devices(tmp_path_factory):
  path = tmp_path_factory.mktemp('two_devices')
  flags = os.environ.get('XLA_FLAGS', '')
  flags += ' --xla_force_host_platform_device_count=2'
  code = (
    'import sys; from tests.runs.engines import jax_sample_level_test;'
    ' jax_sample_level_test.run_on_two_devices(sys.argv[1])'
  )
  environment = {'PYTHONPATH': '.', 'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'}
  subprocess.run(
    [sys.executable, '-c', code, str(path)],
    env=os.environ | environment,
    check=True,
  )
  return path


def test_two_devices_give_the_row_of_one(run, two_devices):
  shared = runs_lib.RunFolder(two_devices / 'run')
  for found, expected in zip(_rows(shared), _rows(run), strict=True):
    _assert_close(found, expected, rel=1e-5)
  found, expected = shared.read_result(), run.read_result()
  assert found['test'] == pytest.approx(expected['test'], rel=1e-5)
  for name in ('epsilon', 'noise_multiplier'):
    assert found[name] == expected[name]
  # Folders from before there was a choice go on with one device.
  order = shared.read_config()['order_of_sums']
  assert order.pop('num_devices') == 2
  assert order == run.read_config()['order_of_sums']


def test_canaries_are_added_once_by_two_devices(two_devices):
  with np.load(two_devices / 'canaries.npz') as found:
    scores, present = found['scores'], found['present']
  assert 0 < present.sum() < present.size / 4
  assert scores[present == 1].mean() == pytest.approx(1, abs=0.1)
  assert np.abs(scores[present == 0]).mean() < 0.2


@pytest.mark.slow
def test_what_a_method_remembers_is_in_checkpoints():
  config = _config(methods.AdaDps())
  engine = jax_sample_level.SampleLevelEngine(
    config, privacy.SeedStreams(config.seed)
  )
  state, metrics = engine.run_rounds(engine.initialize(), 0, 4)
  half, first = engine.run_rounds(engine.initialize(), 0, 2)
  arrays = engine.to_arrays(half)
  assert all(np.any(arrays[f'method/{i}']) for i in range(len(half.params)))
  again, second = engine.run_rounds(engine.from_arrays(arrays, 2), 2, 2)
  assert first + second == metrics
  jax.tree_util.tree_map(np.testing.assert_array_equal, again, state)


@pytest.mark.slow
def test_runs_side_by_side_are_those_of_their_own(run, tmp_path):
  configs = [
    _config(),
    _config(seed=2, learning_rate=0.3, alpha=schedules.constant(0.9)),
    _config('cold'),
    _config(
      seed=3, plan=dataclasses.replace(_config().plan, noise_multiplier=2.0)
    ),
  ]
  assert side_by_side._groups(configs, 4) == [[0, 1, 3], [2]]
  assert side_by_side._groups(configs, 2) == [[0, 1], [2], [3]]
  # Of another warm start nothing is known until it is its turn.
  other = dataclasses.replace(_config().pretraining, seed=6)
  others = [
    _config('cold'),
    _config('warm'),
    _config('warm', pretraining=other),
  ]
  assert side_by_side._groups(others, 4) == [[0], [1], [2]]
  # One of them has twice the noise.
  group = [configs[i] for i in (0, 1, 3)]
  opener = side_by_side.open_engines(group, 4)
  folders = [
    runs_lib.train(config, opener, tmp_path / str(i))
    for i, config in enumerate(group)
  ]
  alone = [
    runs_lib.train(config, runs_lib.open_engine, tmp_path / f'alone_{i}')
    for i, config in enumerate(group[1:])
  ]
  for together, by_itself in zip(folders, [run, *alone], strict=True):
    for found, expected in zip(_rows(together), _rows(by_itself), strict=True):
      _assert_close(found, expected, rel=1e-4)
  # Each has its share of the time, and not the first one all of it.
  seconds = {f.read_result()['seconds_per_round'] for f in folders}
  assert len(seconds) == 1
  assert seconds.pop() > 0


def test_averaged_weights_outlive_a_secret_seed(tmp_path):
  config = _config(seed=None, averaging=0.9)
  folder = runs_lib.train(config, runs_lib.open_engine, tmp_path / 'run')
  assert not (folder.path / 'secret_seeds.json').exists()
  latest = checkpoints.Checkpoints(folder.checkpoints_path).latest()
  with runs_lib.open_engine(config, privacy.SeedStreams(0)) as engine:
    state = engine.from_arrays(latest.arrays, latest.round_num)
    found = engine.evaluate(engine.get_weights(state), 'test')
  assert found == pytest.approx(folder.read_result()['test'])


def test_t_of_alpha_counts_epochs():
  # In floating point 49 * (20 / 980) is below 1.
  for population, batch in ((48_000, 500), (980, 20)):
    plan = dataclasses.replace(
      _config().plan,
      population=population,
      expected_cohort=batch,
      rounds=300,
      delta=1e-6,
    )
    config = _config(plan=plan, alpha=schedules.cosine(4))
    alphas = config.schedules(range(300))['alpha']
    expected = schedules.values(schedules.cosine(4), 4).astype(np.float32)
    epoch = population // batch
    np.testing.assert_allclose(
      alphas[[0, epoch - 1, epoch, 2 * epoch - 1, 2 * epoch]],
      expected[[0, 0, 1, 1, 2]],
    )
    np.testing.assert_array_equal(
      config.epochs(range(300)), np.arange(300) // epoch
    )


def test_batches_are_those_of_the_seeds_and_the_round():
  config = _config()
  seeds = privacy.SeedStreams(config.seed)
  engine = jax_sample_level.SampleLevelEngine(config, seeds)
  inputs = engine.step_inputs(range(2, 5))
  num_public = len(engine.data.public.targets)
  assert inputs.public_rows.shape == (3, 8)
  for i, t in enumerate(range(2, 5)):
    private = inputs.rows[i][inputs.present[i]]
    np.testing.assert_array_equal(
      np.sort(private), np.sort(config.plan.cohort(t, seeds.sampling))
    )
    np.testing.assert_array_equal(
      inputs.public_rows[i],
      pda_jax.draw_rows(seeds.public, t, num_public, 8),
    )


def test_evaluates_the_first_examples(run):
  config = _config()
  weights, engine = _weights(run, config)
  data = jax_sample_level.load_data('digits', None)
  first = pda_jax.ExampleArrays(data.test.inputs[:9], data.test.targets[:9])
  found = engine.evaluate(weights, 'test', 9)
  assert found == engine.trainer.evaluate(weights, first)
  assert found != engine.evaluate(weights, 'test')


def test_learning_rates():
  rounds = range(7)
  assert _config().learning_rates(rounds).tolist() == pytest.approx([0.1] * 7)
  linear = _config(learning_rate_decay='linear').learning_rates(rounds)
  assert linear[0] == pytest.approx(0.1)
  assert linear[6] == pytest.approx(0.1 / 7)
  cosine = _config(learning_rate_decay='cosine').learning_rates(rounds)
  assert cosine[0] == pytest.approx(0.1) and 0 < cosine[6] < linear[6]


def test_without_validation_nothing_can_be_chosen(run):
  split = dataclasses.replace(_SPLIT, validation_examples=0)
  data = jax_sample_level.load_data('digits', None)
  parts = jax_sample_level.load_split(data, split)
  config = _config(
    split=split,
    data_hash=sample_level.data_hash(data, parts),
    plan=dataclasses.replace(_config().plan, population=len(parts.private)),
    test_curve=True,
  )
  weights, _ = _weights(run, _config())
  engine = jax_sample_level.SampleLevelEngine(config, privacy.SeedStreams(0))
  # What is shown is marked as the test's.
  assert set(engine.evaluate(weights, 'validation')) == {
    'test_loss',
    'test_accuracy',
  }
  assert set(engine.evaluate(weights, 'test')) == {'loss', 'accuracy'}


def test_data_and_settings_must_fit():
  def open_with(**options):
    jax_sample_level.SampleLevelEngine(
      _config(**options), privacy.SeedStreams(0)
    )

  with pytest.raises(ValueError, match='must match the settings'):
    open_with(data_hash='0')
  with pytest.raises(ValueError, match='population must be'):
    open_with(plan=dataclasses.replace(_config().plan, population=99))
  with pytest.raises(ValueError, match=r'images of shape \(8, 8, 1\)'):
    open_with(spec=dataclasses.replace(_SPEC, image_shape=(9, 9, 1)))
  with pytest.raises(ValueError, match='10 classes'):
    open_with(spec=dataclasses.replace(_SPEC, num_classes=9))
  with pytest.raises(ValueError, match='must be for images'):
    open_with(spec=sample_level_config.language.LanguageSpec())
  with pytest.raises(ValueError, match='learning_rate'):
    _config(learning_rate=0.0)
  tree = dataclasses.replace(
    _config().plan, mechanism='tree', sampling='epochs'
  )
  with pytest.raises(ValueError, match='mechanism must be'):
    _config(plan=tree)
