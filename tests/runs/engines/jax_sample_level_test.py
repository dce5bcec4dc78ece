"""Sample-level runs behind the loop, on handwritten digits."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
from pda_fed import jax as pda_jax
from pda_fed import methods
from pda_fed import models
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed import schedules
from pda_fed.models import batches
from pda_fed.models import convolutional
from pda_fed.runs import checkpoints
from pda_fed.runs.engines import jax_sample_level
from pda_fed.runs.engines import side_by_side
import pytest

from tests import fake_engine

_MODEL = convolutional.ConvolutionalSpec(
  image_shape=(8, 8, 1),
  convolutions=(convolutional.Convolution(filters=2, size=3, stride=2),),
  dense_sizes=(),
  num_classes=10,
)
_ALPHA = schedules.constant(0.5)


def _make_run(method='pda', alpha=_ALPHA, model=_MODEL, **values):
  spec = runs_lib.RunSpec.for_data(
    'digits',
    **{
      'expected_cohort': 20,
      'rounds': 7,
      'delta': 1e-4,
      'noise_multiplier': 1.0,
      'clip_norm': 1.0,
      'public_examples': 144,
      'validation_examples': 100,
      'server.learning_rate': 0.1,
      'server.momentum': 0.9,
      'server.averaging': 0.9,
      'server.mean_clip_norm': 1.0,
      'public.batch_size': 8,
      'rounds_per_dispatch': 3,
      'rounds_per_evaluation': 3,
      'pretraining.learning_rate': 1e-2,
      'pretraining.batch_size': 64,
      'pretraining.max_epochs': 2,
      'pretraining.candidates': 2,
      'pretraining.seed': 5,
      'seed': 1,
      **values,
    },
  )
  method = fake_engine.make_method(method, alpha)
  run = runs_lib.resolve(spec)
  return dataclasses.replace(run, method=method, model=model or run.model)


def _engine(run):
  seeds = privacy.SeedStreams(run.spec.seed)
  return jax_sample_level.SampleLevelEngine(run, seeds)


def _weights(folder, config):
  """The newest weights of a run."""
  engine = _engine(config)

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
  return runs_lib.train(_make_run(), path, open_engine=_open_on_one_device)


def test_a_run_leaves_what_the_loop_promises(run):
  result = run.read_result()
  assert result['rounds'] == 7
  assert set(result['test']) == {'loss', 'accuracy'}
  assert result['warm_start']['epochs'] <= 2
  rows = _rows(run)
  assert [row['round'] for row in rows] == [0, 3, 6, 7]
  assert rows[-1]['alpha'] == 0.5
  assert {'public_loss', 'cosine', 'example_norm'} <= set(rows[-1])
  settings = run.read_config().settings
  assert settings['model']['convolutions'][0]['filters'] == 2
  assert settings['data']['validation_examples'] == 100
  # Where the data lie is no setting.
  assert 'data_dir' not in settings['data']


def test_a_stopped_run_goes_on_to_the_same_numbers(run, tmp_path):
  config = _make_run()

  class StopError(Exception):
    pass

  class Stopping(jax_sample_level.SampleLevelEngine):
    def run_rounds(self, state, first_round, num_rounds):
      if first_round == 3:
        raise StopError
      return super().run_rounds(state, first_round, num_rounds)

  open_stopping = functools.partial(_open_on_one_device, engine=Stopping)
  with pytest.raises(StopError):
    runs_lib.train(config, tmp_path / 'run', open_engine=open_stopping)
  again = runs_lib.train(
    config, tmp_path / 'run', open_engine=_open_on_one_device
  )
  for found, expected in zip(_rows(again), _rows(run), strict=True):
    _assert_close(found, expected, rel=1e-5)
  ours, _ = _weights(again, config)
  theirs, _ = _weights(run, config)
  for name, expected in theirs.items():
    np.testing.assert_array_equal(ours[name], expected)


def run_on_two_devices(path):
  """Writes a run, and the scores of canaries; this process has two devices."""
  path = pathlib.Path(path)
  runs_lib.train(_make_run(), path / 'run')
  # Hardly any noise, and a model with room for the canaries' directions.
  config = _make_run(
    'cold',
    model=dataclasses.replace(_MODEL, dense_sizes=(32,)),
    noise_multiplier=1e-3,
    audit='run',
    audit_canaries=100,
  )
  engine = _engine(config)
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
  order = run.read_config().order_of_sums
  assert shared.read_config().order_of_sums == {**order, 'num_devices': 2}
  assert order['num_devices'] == 1


def test_canaries_are_added_once_by_two_devices(two_devices):
  with np.load(two_devices / 'canaries.npz') as found:
    scores, present = found['scores'], found['present']
  assert 0 < present.sum() < present.size / 4
  assert scores[present == 1].mean() == pytest.approx(1, abs=0.1)
  assert np.abs(scores[present == 0]).mean() < 0.2


@pytest.mark.slow
def test_what_method_and_optimizer_remember_is_in_checkpoints():
  config = _make_run(
    methods.AdaDps(),
    **{'server.optimizer': 'yogi', 'server.momentum': None},
  )
  engine = _engine(config)
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
    _make_run(),
    _make_run(
      seed=2, alpha=schedules.constant(0.9), **{'server.learning_rate': 0.3}
    ),
    _make_run('cold'),
    _make_run(seed=3, noise_multiplier=2.0),
  ]
  assert side_by_side._groups(configs, 4) == [[0, 1, 3], [2]]
  assert side_by_side._groups(configs, 2) == [[0, 1], [2], [3]]
  # Of another warm start nothing is known until it is its turn.
  others = [
    _make_run('cold'),
    _make_run('warm'),
    _make_run('warm', **{'pretraining.seed': 6}),
  ]
  assert side_by_side._groups(others, 4) == [[0], [1], [2]]
  # One of them has twice the noise.
  group = [configs[i] for i in (0, 1, 3)]
  opener = side_by_side.open_engines(group, 4)
  folders = [
    runs_lib.train(config, tmp_path / str(i), open_engine=opener)
    for i, config in enumerate(group)
  ]
  alone = [
    runs_lib.train(config, tmp_path / f'alone_{i}')
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
  config = _make_run(seed=None)
  folder = runs_lib.train(config, tmp_path / 'run')
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
      _make_run().plan,
      population=population,
      expected_cohort=batch,
      rounds=300,
      delta=1e-6,
    )
    config = dataclasses.replace(
      _make_run(alpha=schedules.cosine(4)), plan=plan
    )
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
  config = _make_run()
  seeds = privacy.SeedStreams(config.spec.seed)
  engine = _engine(config)
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
  config = _make_run()
  weights, engine = _weights(run, config)
  test = config.data.data.test
  first = pda_jax.ExampleArrays(test.inputs[:9], test.targets[:9])
  found = engine.evaluate(weights, 'test', 9)
  params = batches.from_named(engine._model, weights)
  assert found == engine.trainer.evaluate(params, first)
  assert found != engine.evaluate(weights, 'test')


def test_learning_rates():
  rounds = range(7)
  assert _make_run().learning_rates(rounds).tolist() == pytest.approx([0.1] * 7)
  linear = _make_run(**{'server.decay': 'linear'}).learning_rates(rounds)
  assert linear[0] == pytest.approx(0.1)
  assert linear[6] == pytest.approx(0.1 / 7)
  cosine = _make_run(**{'server.decay': 'cosine'}).learning_rates(rounds)
  assert cosine[0] == pytest.approx(0.1) and 0 < cosine[6] < linear[6]


def test_without_validation_nothing_can_be_chosen(run):
  config = _make_run(validation_examples=0, test_curve=True)
  weights, _ = _weights(run, _make_run())
  engine = _engine(config)
  # What is shown is marked as the test's.
  assert set(engine.evaluate(weights, 'validation')) == {
    'test_loss',
    'test_accuracy',
  }
  assert set(engine.evaluate(weights, 'test')) == {'loss', 'accuracy'}


@pytest.mark.parametrize(
  'model, words',
  [
    (dataclasses.replace(_MODEL, image_shape=(9, 9, 1)), r'\(8, 8, 1\)'),
    (dataclasses.replace(_MODEL, num_classes=9), 'num_classes .* must be 10'),
    (models.LanguageSpec(), 'vocabulary_size of the model must be None'),
  ],
)
def test_models_must_fit_the_data(model, words):
  with pytest.raises(ValueError, match=words):
    _make_run(model=model)


def test_a_mechanism_with_a_state_is_refused():
  with pytest.raises(ValueError, match="mechanism must be 'gaussian'"):
    _make_run(mechanism='tree', sampling='epochs')
