"""The TFF engine behind the loop's door, on a few synthetic users."""

import contextlib

import jax
import numpy as np
from pda_fed import jax as pda_jax
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.runs.engines import base
from pda_fed.runs.engines import tff_federated
import pytest
import tensorflow as tf

from tests.runs import tiny_users

pytestmark = pytest.mark.slow

_SEEDS = privacy.SeedStreams(0)


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  return tiny_users.prepare(tmp_path_factory.mktemp('data') / 'store')


def _leaves(state):
  return [np.asarray(leaf) for leaf in tf.nest.flatten(state)]


@pytest.mark.parametrize(
  'plan, optimizer',
  [
    ({'adaptive_clipping': True, 'clip_count_stddev': 1.0}, 'yogi'),
    ({'mechanism': 'tree', 'sampling': 'epochs'}, 'sgd'),
  ],
  ids=['adaptive', 'tree'],
)
def test_a_restored_state_goes_on_as_the_state(data_dir, plan, optimizer):
  config = tiny_users.make_run(
    data_dir, 'cold', **plan, **{'server.optimizer': optimizer}
  )
  engine = tff_federated.TffEngine(config, _SEEDS)
  state, metrics = engine.run_rounds(engine.initialize(), 0, 1)
  assert {'clients', 'train_loss'} <= metrics[0].keys()
  arrays = engine.to_arrays(state)
  # The state is optax's, so that either engine goes on with it.
  other = pda_jax.build_optimizer(config.spec.server).init(
    engine.get_weights(state)
  )
  kept = base.from_numbered(base.OPTIMIZER, arrays)
  leaves = map(np.shape, jax.tree.leaves(other))
  assert [array.shape for array in kept] == list(leaves)
  restored = engine.from_arrays(arrays, 1)
  straight, expected = engine.run_rounds(state, 1, 1)
  resumed, found = engine.run_rounds(restored, 1, 1)
  assert found == expected
  for a, b in zip(_leaves(straight), _leaves(resumed), strict=True):
    np.testing.assert_array_equal(a, b)


class _Killed(BaseException):
  pass


class _Opener:
  """Opens one engine again and again: to build another takes long."""

  def __init__(self):
    self.engine = None
    self.dies_at = None

  @contextlib.contextmanager
  def __call__(self, run, seeds):
    if self.engine is None:
      self.engine = tff_federated.TffEngine(run, seeds)
      self._run_rounds = self.engine.run_rounds
      self.engine.run_rounds = self._run_or_die
    yield self.engine

  def _run_or_die(self, state, first_round, num_rounds):
    if first_round == self.dies_at:
      raise _Killed
    return self._run_rounds(state, first_round, num_rounds)


def test_the_whole_way_and_a_resume(data_dir, tmp_path):
  """Killed in the last of 4 rounds, a run ends as one that was not."""
  open_engine = _Opener()
  config = tiny_users.make_run(data_dir)
  whole = runs_lib.train(config, tmp_path / 'whole', open_engine=open_engine)
  open_engine.dies_at = 3
  with pytest.raises(_Killed):
    runs_lib.train(config, tmp_path / 'killed', open_engine=open_engine)
  open_engine.dies_at = None
  resumed = runs_lib.train(config, tmp_path / 'killed', open_engine=open_engine)

  def rows(folder):
    return [
      {k: v for k, v in row.items() if k != 'seconds'}
      for row in folder.read_metrics()
    ]

  assert rows(resumed) == rows(whole)
  assert whole.read_result()['test'] == resumed.read_result()['test']
  test = whole.read_result()['test']
  assert test['perplexity'] == pytest.approx(np.exp(test['loss']))
  # Some words are known before the first private round.
  assert rows(whole)[0]['perplexity'] < 54


def test_a_checkpoint_of_another_kind_is_refused(data_dir):
  engine = tff_federated.TffEngine(
    tiny_users.make_run(data_dir, 'cold'), _SEEDS
  )
  arrays = engine.to_arrays(engine.initialize())
  with pytest.raises(runs_lib.CheckpointError, match='jax/tree'):
    engine.from_arrays({**arrays, 'jax/tree/0': np.zeros(2)}, 1)
  with pytest.raises(runs_lib.CheckpointError, match='must have the shape'):
    engine.from_arrays({**arrays, 'weights/logits/bias': np.zeros((2, 2))}, 1)
  del arrays['optimizer/0']
  with pytest.raises(runs_lib.CheckpointError, match='optimizer/0'):
    engine.from_arrays(arrays, 1)
