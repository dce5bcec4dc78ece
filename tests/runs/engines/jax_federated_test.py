"""The JAX engine behind the loop's door."""

import json
import pathlib
import subprocess
import sys

import data_prep
from data_prep import assignment
from data_prep import build
from data_prep import sources
from data_prep import vocabulary
import jax
import numpy as np
from pda_fed import errors
from pda_fed import jax as pda_jax
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.models import batches
from pda_fed.runs.engines import jax_federated
import pytest

_ROOT = pathlib.Path(__file__).parents[3]
_WORDS = 300

_BIAS = 'weights/logits/bias'


@pytest.fixture(scope='module')
def store(tmp_path_factory):
  folder = tmp_path_factory.mktemp('store') / 'small'
  return build.prepare(
    sources.SyntheticSource(sources.SyntheticConfig(num_users=80)),
    folder,
    build.PrepareConfig(
      partition=assignment.PartitionConfig(
        seed=0, max_sentences=32, num_public_users=4
      ),
      vocabulary=vocabulary.VocabularyConfig(size=_WORDS),
    ),
  )


def _make_run(store: data_prep.TokenStore, method='pda', **values):
  spec = runs_lib.RunSpec.for_data(
    None,
    str(store.path),
    **{
      'engine': 'jax',
      'method': method,
      'expected_cohort': 5,
      'rounds': 4,
      'delta': 1 / len(store.users('private')) / 2,
      'noise_multiplier': 0.3,
      'clip_norm': 0.1,
      'model.embedding_size': 4,
      'model.lstm_size': 6,
      'public.users_per_round': 2,
      'pretraining.max_epochs': 1,
      'rounds_per_evaluation': 2,
      'rounds_per_dispatch': 2,
      'max_validation_users': 2,
      'max_test_users': 2,
      'seed': 3,
      **({'method.alpha_K': 5} if method == 'pda' else {}),
      **values,
    },
  )
  return runs_lib.resolve(spec)


def _engine(run):
  return jax_federated.JaxEngine(run, privacy.SeedStreams(run.spec.seed))


@pytest.fixture(scope='module')
def engine(store):
  return _engine(_make_run(store))


def _same(a, b):
  for x, y in zip(a, b, strict=True):
    np.testing.assert_array_equal(x, y)


@pytest.fixture(name='remembering', scope='module')
def fixture_remembering(store):
  """An engine whose method and server remember more than one update."""
  server = {'server.optimizer': 'adam', 'server.learning_rate': 0.01}
  return _engine(_make_run(store, method='adadps', **server))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['engine', 'remembering'])
def test_a_checkpoint_goes_on_to_the_same_numbers(name, request):
  engine = request.getfixturevalue(name)
  state, metrics = engine.run_rounds(engine.initialize(), 0, 4)
  assert len(metrics) == 4
  for m in metrics:
    assert np.isfinite(list(m.values())).all()
    assert {'public_norm', 'cosine', 'train_loss'} <= set(m)
    assert ('alpha' in m) == (name == 'engine')
  half, first = engine.run_rounds(engine.initialize(), 0, 2)
  arrays = engine.to_arrays(half)
  assert ('method/0' in arrays) == (name == 'remembering')
  restored = engine.from_arrays(arrays, 2)
  again, second = engine.run_rounds(restored, 2, 2)
  _same(engine.get_weights(again), engine.get_weights(state))
  assert first + second == metrics


def test_settings_tell_of_sums_that_changed(store):
  # 2 had other sums with the same noise: a killed run of it must not go on.
  assert _make_run(store).settings()['noise_version'] > 2


def test_cohorts_are_the_plans(engine, store):
  config = _make_run(store)
  _, metrics = engine.run_rounds(engine.initialize(), 0, 3)
  seeds = privacy.SeedStreams(config.spec.seed)
  assert [m['clients'] for m in metrics] == [
    len(config.plan.cohort(t, seeds.sampling)) for t in range(3)
  ]


@pytest.mark.parametrize('public_update', ['local_training', 'gradient'])
def test_public_data_are_those_of_the_seed_and_the_round(store, public_update):
  config = _make_run(store, **{'public.update': public_update})
  engine = _engine(config)
  seed = privacy.SeedStreams(config.spec.seed).public
  rounds = range(1, 4)
  for t, chunks in zip(rounds, engine._public(rounds), strict=True):
    (tokens,) = chunks.examples
    found = np.asarray(tokens).reshape(-1, tokens.shape[-1])
    found = found[found.any(axis=1)]  # Without padding.
    if public_update == 'gradient':
      every = np.concatenate([store.sentences(('public', i)) for i in range(4)])
      # Two users times a batch.
      count = 2 * config.spec.client.batch_size
      expected = every[pda_jax.draw_rows(seed, t, len(every), count)]
    else:
      users = pda_jax.draw_users(seed, t, 4, 2)
      expected = np.concatenate([store.sentences(('public', i)) for i in users])
    assert sorted(found.tolist()) == sorted(expected.tolist())


def test_evaluates_the_first_users(engine, store):
  weights = engine.get_weights(engine.initialize())
  found = engine.evaluate(weights, 'test', 2)
  rows = np.concatenate([store.sentences(('test', i)) for i in range(2)])
  model = _make_run(store).model.jax_model()
  params = batches.from_named(model, weights)
  assert found == pda_jax.evaluate(model, params, (rows,))
  every = engine.evaluate(weights, 'test')
  assert every != found
  assert engine.evaluate(weights, 'test', 10**6) == every


@pytest.mark.slow
def test_the_loop_runs_it(store, tmp_path):
  folder = runs_lib.train(
    _make_run(store, compute_dtype='bfloat16', **{'public.update': 'gradient'}),
    tmp_path / 'run',
  )
  result = folder.read_result()
  assert result['engine'] == 'jax'
  assert 0 < result['test']['loss'] < 10
  assert [r['round'] for r in folder.read_metrics()] == [0, 2, 4]


@pytest.mark.slow
def test_diverging_runs_stop_with_the_round(store):
  config = _make_run(store, 'cold', **{'server.learning_rate': 1e38})
  engine = _engine(config)
  with pytest.raises(
    errors.DivergenceError, match=r'Round \d: .*server.learning_rate=1e\+38'
  ):
    engine.run_rounds(engine.initialize(), 0, 4)


@pytest.mark.slow
def test_clients_that_are_not_finite_end_no_run(store):
  # Whether it ends would tell of single users, without noise.
  config = _make_run(store, 'cold', **{'client.learning_rate': 1e38})
  engine = _engine(config)
  with pytest.warns(UserWarning, match=r'client.learning_rate=1e\+38'):
    state, rows = engine.run_rounds(engine.initialize(), 0, 2)
  assert all(np.isfinite(w).all() for w in engine.get_weights(state).values())
  for row in rows:
    assert row['non_finite_clients'] == row['clients'] > 0
    assert 'train_loss' not in row


class _OutOfMemory:
  """A metric of a program that failed after its call had returned."""

  def __array__(self, *args, **kwargs):
    raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory.')


@pytest.mark.slow
@pytest.mark.parametrize('late', [False, True])
def test_chunks_that_do_not_fit_become_smaller(store, monkeypatch, late):
  config = _make_run(store, clients_per_chunk=4, method='warm')
  engine = _engine(config)
  expected, _ = engine.run_rounds(engine.initialize(), 0, 1)
  compute, sizes = engine._trainer.run, []

  def short_of_memory(state, inputs, *args):
    sizes.append(inputs.private.weights.shape[3])
    if sizes[-1] > 1 and late:
      return None, {'clients': _OutOfMemory()}
    if sizes[-1] > 1:
      raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory.')
    return compute(state, inputs, *args)

  monkeypatch.setattr(engine._trainer, 'run', short_of_memory)
  with pytest.warns(UserWarning, match='clients_per_chunk=1 from here on'):
    state, _ = engine.run_rounds(engine.initialize(), 0, 1)
  assert sizes == [4, 2, 1]
  both = map(jax.tree.leaves, (state.params, expected.params))
  for a, e in zip(*both, strict=True):
    np.testing.assert_allclose(a, e, atol=1e-6)


def test_no_gpu_where_one_is_asked_for(store):
  with pytest.raises(pda_jax.DeviceError, match="Found 'gpu'"):
    _engine(_make_run(store, platform='gpu'))


def test_the_tree_is_for_the_other_engine(store):
  with pytest.raises(ValueError, match='--engine=tff'):
    _make_run(store, mechanism='tree', sampling='epochs')


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    (lambda a: a | {_BIAS: a[_BIAS][:-1]}, 'must have the shape'),
    (lambda a: a | {'tff/aggregator/0': np.zeros(1)}, 'from another engine'),
    (
      lambda a: {n: v for n, v in a.items() if n != 'optimizer/3'},
      'optimizer/3',
    ),
  ],
)
def test_checkpoints_of_others(engine, change, words):
  arrays = engine.to_arrays(engine.initialize())
  with pytest.raises(runs_lib.CheckpointError, match=words):
    engine.from_arrays(change(arrays), 1)


_WITHOUT_TENSORFLOW = """
import json, sys
for name in ('tensorflow', 'tensorflow_federated', 'tensorflow_privacy',
             'dp_accounting', 'tqdm', 'tensorboard', 'keras'):
  sys.modules[name] = None
from pda_fed import runs
spec = runs.RunSpec.from_json(json.loads(sys.argv[1]))
folder = runs.train(runs.resolve(spec), sys.argv[2])
print(folder.read_result()['epsilon'])
"""


@pytest.mark.slow
def test_runs_where_there_is_no_tensorflow(store, tmp_path):
  spec = _make_run(store, rounds=2).spec.as_json()
  done = subprocess.run(
    [sys.executable, '-c', _WITHOUT_TENSORFLOW, json.dumps(spec), tmp_path],
    cwd=_ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout == 'None\n'
