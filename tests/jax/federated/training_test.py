"""Rounds in JAX; `engines_agree_test` compares them with TFF's."""

import os
import subprocess
import sys

import jax
import numpy as np
import optax
from pda_fed import methods
from pda_fed import models
from pda_fed import privacy
from pda_fed import schedules
from pda_fed.jax import aggregation
from pda_fed.jax import rounds as rounds_lib
from pda_fed.jax import server_round
from pda_fed.jax.federated import chunks
from pda_fed.jax.federated import training
import pytest
from scipy import stats

from tests.jax import small_users

_SPEC = models.RecurrentSpec(num_words=7, embedding_size=4, lstm_size=5)
_USERS = small_users.make_users(_SPEC, [7, 2, 4, 1, 12], seed=0)
_WEIGHTS = _SPEC.jax_model().init(2)
_SIZE = _SPEC.num_parameters


def _plan(noise=0.0, **changes):
  return privacy.PrivacyPlan(
    population=100,
    expected_cohort=4,
    rounds=5,
    delta=1e-3,
    noise_multiplier=noise,
    **(dict(clip_norm=0.05) | changes),
  )


def _trainer(plan=None, rate=0.5, **changes):
  options = dict(
    client_optimizer=optax.sgd(rate),
    server_optimizer=optax.sgd(1.0, 0.9),
    devices=jax.devices()[:1],
  )
  return training.Federated(
    _SPEC.jax_model(), plan or _plan(), **options | changes
  )


def _inputs(users, round_num=0, **options):
  return chunks.RoundInputs(
    np.int32(round_num), small_users.chunk(users, 3, **options)
  )


def _flat(params):
  return np.concatenate([np.ravel(w) for w in jax.tree.leaves(params)])


class _Runner:
  """A compiled function, and what it starts from."""

  def __init__(self, *arguments, **changes):
    self._trainer = _trainer(*arguments, **changes)
    self.start = self._trainer.init(_WEIGHTS)

  def __call__(self, rounds, state=None, room=None, key=0):
    stacked = rounds_lib.stack_rounds(rounds, room or len(rounds))
    return self._trainer.run(
      state or self.start, stacked, len(rounds), rounds_lib.noise_key(key)
    )


@pytest.fixture(scope='module')
def exact():
  return _Runner()


@pytest.fixture(scope='module')
def noisy():
  return _Runner(_plan(noise=2.0, clip_norm=0.5))


@pytest.mark.slow
def test_chunks_do_not_change_the_result(exact):
  whole, metrics = exact([_inputs(_USERS, clients_per_chunk=5)])
  assert metrics['clients'] == 5
  for clients_per_chunk in (1, 2):
    split, others = exact(
      [_inputs(_USERS, clients_per_chunk=clients_per_chunk, min_chunks=6)]
    )
    np.testing.assert_allclose(
      _flat(split.params), _flat(whole.params), atol=1e-7
    )
    for name in metrics:
      np.testing.assert_allclose(others[name], metrics[name], rtol=1e-5)


@pytest.mark.slow
def test_several_rounds_in_a_call_are_the_same_rounds(noisy):
  rounds = [_inputs(_USERS[i : i + 2], i, min_chunks=2) for i in range(3)]
  together, metrics = noisy(rounds)
  # One by one, in the same program: the room for more is not used.
  state, losses = noisy.start, []
  for inputs in rounds:
    state, others = noisy([inputs], state, room=3)
    losses.append(others['train_loss'][0])
  np.testing.assert_array_equal(_flat(together.params), _flat(state.params))
  np.testing.assert_array_equal(metrics['train_loss'], losses)


@pytest.mark.slow
@pytest.mark.skipif(
  not hasattr(jax, 'threefry_partitionable'), reason='JAX has one way alone.'
)
def test_noise_is_the_same_whatever_the_default_of_jax(noisy):
  # It is another one in JAX 0.4 and in 0.5: a run may go on with either.
  found = []
  for default in (False, True):
    with jax.threefry_partitionable(default):
      state, _ = noisy([_inputs(_USERS)])
    found.append(_flat(state.params))
  np.testing.assert_array_equal(*found)


@pytest.mark.slow
def test_clients_that_diverge_count_as_zero():
  runner = _Runner(rate=1e38)
  # One step of a finite gradient stays finite: clients of several.
  state, metrics = runner([_inputs([_USERS[0], _USERS[4]])])
  assert metrics['non_finite_clients'] == metrics['clients'] == 2
  assert metrics['diverged_clients'] == 2
  assert np.isnan(metrics['train_loss'])  # Of no client.
  np.testing.assert_array_equal(_flat(state.params), _flat(_WEIGHTS))


@pytest.mark.slow
def test_clients_that_diverge_with_finite_updates_are_counted():
  # Four steps of the largest client explode; one step of the smallest cannot.
  _, metrics = _Runner(rate=300.0)([_inputs([_USERS[4], _USERS[3]])])
  assert metrics['non_finite_clients'] == 0
  assert metrics['diverged_clients'] >= 1
  # One step can only be too long: ten times the weights, without padding.
  _, metrics = _Runner(rate=1e6)([_inputs([_USERS[3]])])
  assert metrics['diverged_clients'] == 1
  clip = optax.clip_by_global_norm(1e-3)
  calm = _Runner(client_optimizer=optax.chain(clip, optax.sgd(300.0)))
  _, metrics = calm([_inputs([_USERS[4], _USERS[3]])])
  assert metrics['diverged_clients'] == 0


@pytest.mark.slow
@pytest.mark.parametrize('bound, norm', [('private', 0.05), (0.01, 0.01)])
def test_the_public_update_is_bounded(bound, norm):
  runner = _Runner(
    rate=300.0,  # Public users diverge, too.
    method=methods.PdaDpmd(alpha=schedules.constant(0.5)),
    public_clip_norm=bound,
  )
  inputs = _inputs(_USERS[:2])._replace(
    public=small_users.chunk([_USERS[4]], 3),
    schedules={'alpha': np.float32(0.5)},
  )
  state, metrics = runner([inputs])
  assert metrics['public_norm'][0] == pytest.approx(norm, rel=1e-5)
  moved = np.linalg.norm(_flat(state.params) - _flat(_WEIGHTS))
  assert moved <= 0.05 * 1.001


class TestNoise:
  def _noise(self, runner, **options):
    """The noise of a round without clients."""
    state, _ = runner([_inputs([], options.pop('round_num', 0))], **options)
    return _flat(runner.start.params) - _flat(state.params)

  @pytest.mark.slow
  def test_is_normal_with_the_planned_deviation(self, noisy):
    draws = np.concatenate(
      [self._noise(noisy, round_num=t) for t in range(20)]
    ) / (2.0 * 0.5 / 4)
    assert draws.size > 5000
    assert abs(draws.mean()) < 4 / np.sqrt(draws.size)
    assert draws.std() == pytest.approx(1, abs=4 / np.sqrt(2 * draws.size))
    assert stats.kstest(draws, 'norm').pvalue > 1e-3

  def test_has_the_distribution_of_tffs(self, noisy):
    # Here: the other tests need no TFF.
    from pda_fed import tff as pda_tff
    import tensorflow_federated as tff

    aggregator = pda_tff.build_dp_aggregator(_plan(2.0, clip_norm=0.5), 3)
    process = aggregator.create(
      tff.types.tensorflow_to_type((np.float32, [6000]))
    )
    theirs = process.next(process.initialize(), []).result
    ours = np.concatenate([self._noise(noisy, round_num=t) for t in range(20)])
    assert np.std(theirs) == pytest.approx(ours.std(), rel=0.05)
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-3

  def test_rounds_and_seeds_have_their_own(self, noisy):
    first = self._noise(noisy)
    np.testing.assert_array_equal(first, self._noise(noisy))
    others = [
      self._noise(noisy, round_num=1),
      self._noise(noisy, key=1),
      self._noise(noisy, key=2**32),  # The upper half of the seed counts.
      self._noise(noisy, key=2**63),
    ]
    for other in others:
      assert abs(np.corrcoef(first, other)[0, 1]) < 5 / np.sqrt(_SIZE)

  def test_is_drawn_for_the_models_coordinates_alone(self, noisy):
    assert self._noise(noisy).size == _SIZE
    assert np.all(self._noise(noisy) != 0)


def test_one_client_moves_the_mean_by_at_most_the_clip(exact):
  with_all, _ = exact([_inputs(_USERS, min_chunks=6)])
  for i in range(len(_USERS)):
    without, _ = exact([_inputs(_USERS[:i] + _USERS[i + 1 :], min_chunks=6)])
    moved = np.linalg.norm(_flat(with_all.params) - _flat(without.params))
    assert 0 < moved <= 0.05 / 4 * (1 + 1e-4)


@pytest.mark.slow
def test_adaptive_clip_by_hand():
  clipping = privacy.AdaptiveClipping(
    target_quantile=0.5, learning_rate=0.2, count_stddev=1e-9
  )
  runner = _Runner(_plan(adaptive_clipping=clipping, clip_norm=1e-4))
  state, metrics = runner([_inputs(_USERS)])
  # All five of an expected four are clipped: the share is 0.5 - 2.5 / 4.
  assert metrics['clipped_fraction'] == 1
  assert float(state.clip_norm) == pytest.approx(
    1e-4 * np.exp(-0.2 * (-2.5 / 4)), rel=1e-5
  )


def test_a_noisy_count_is_paid_for_by_more_noise():
  # 1 / sigma^2 is that of the update and of the count, whose clip is a half.
  clipping = privacy.AdaptiveClipping(count_stddev=0.6)
  plan = _plan(noise=1.0, adaptive_clipping=clipping, clip_norm=0.5)
  method, optimizer = methods.ColdStart(), optax.sgd(1.0)
  zeros = (np.zeros(40_000, np.float32),)
  state, _ = server_round.server_round(
    plan,
    method,
    optimizer,
    server_round.initial_state(plan, method, optimizer, zeros),
    aggregation.ClippedSum(zeros, 0, 0, 0),
    server_round.PublicUpdate(),
    key=jax.random.key(3),
    t=np.int32(0),
  )
  sigma = (1 - 1 / (2 * 0.6) ** 2) ** -0.5
  assert sigma > 1.8
  assert np.std(state.params[0]) == pytest.approx(
    sigma * 0.5 / plan.expected_cohort, rel=0.02
  )


def test_an_empty_cohort_keeps_the_momentum_going(exact):
  state, _ = exact([_inputs(_USERS, min_chunks=6)])
  after, metrics = exact([_inputs([], min_chunks=6)], state)
  assert metrics['clients'] == 0
  np.testing.assert_allclose(
    _flat(state.params) - _flat(after.params),
    0.9 * _flat(jax.tree.leaves(state.optimizer)),
    atol=1e-7,
  )


_ON_TWO_DEVICES = """
import sys
import jax
import numpy as np
import optax
from pda_fed.jax import devices
devices.use_all_cores(2)
from tests.jax.federated import training_test as test
from pda_fed.jax import rounds as rounds_lib
trainer = test._trainer(devices=devices.choose_devices('cpu'))
inputs = [test._inputs(test._USERS, num_devices=2)]
state, metrics = trainer.run(
  trainer.init(test._WEIGHTS),
  rounds_lib.stack_rounds(inputs, 1), 1, rounds_lib.noise_key(0))
assert len(jax.devices()) == 2
np.save(sys.argv[1], test._flat(state.params))
"""


@pytest.mark.slow
def test_devices_share_clients(exact, tmp_path):
  environment = {k: v for k, v in os.environ.items() if k != 'XLA_FLAGS'}
  path = tmp_path / 'weights.npy'
  subprocess.run(
    [sys.executable, '-c', _ON_TWO_DEVICES, str(path)],
    env=environment | {'PYTHONPATH': '.'},
    check=True,
  )
  expected, _ = exact([_inputs(_USERS, min_chunks=6)])
  np.testing.assert_allclose(np.load(path), _flat(expected.params), atol=1e-7)


_PUBLIC_GRADIENT = """
from pda_fed.jax import devices
devices.use_all_cores(2)
import jax
import numpy as np
import optax
from pda_fed.models import batches
from pda_fed import methods
from pda_fed import models
from pda_fed import privacy
from pda_fed import schedules
from pda_fed import jax as pda_jax
model = models.RecurrentSpec(
  num_words=10_000, embedding_size=16, lstm_size=32).jax_model()
trainer = pda_jax.Federated(
  model,
  privacy.PrivacyPlan(
    population=500, expected_cohort=400, rounds=10, delta=1e-3,
    noise_multiplier=1.0, clip_norm=0.5),
  methods.PdaDpmd(alpha=schedules.constant(0.5)),
  client_optimizer=optax.sgd(1.0), server_optimizer=optax.sgd(1.0),
  devices=devices.choose_devices('cpu'))
rng = np.random.default_rng(0)
sentences = rng.integers(4, 10_000, [5, 21], np.uint16)
users = pda_jax.chunk_clients(
  np.full(400, 5),
  lambda _, n: ((np.broadcast_to(sentences, [n, 1, 5, 21]),),
                np.ones([n, 1, 5], np.float32)),
  batch_size=5, clients_per_chunk=1, num_devices=2)
public_examples = (rng.integers(4, 624, [50, 21], np.uint16),)
public = pda_jax.chunk_users(
  [public_examples], batch_size=50, clients_per_chunk=1, num_devices=2)
inputs = pda_jax.RoundInputs(
  np.int32(0), users, public, {'alpha': np.float32(0.5)}, None)
weights = model.init(0)
_, gradient = batches.gradients(
  model, weights, public_examples, np.ones(50, 'f4'))
gradient = jax.tree.leaves(gradient)
expected = np.sqrt(sum((np.float64(g) ** 2).sum() for g in gradient))
found = []
for room in (1, 5):
  state, metrics = trainer.run(
    trainer.init(weights),
    pda_jax.stack_rounds([inputs], room), 1, pda_jax.noise_key(0))
  np.testing.assert_allclose(metrics['public_norm'][0], expected, rtol=2e-6)
  found.append(state.params)
# On some CPUs, the wrong block hardly changes the norm. A step of the noise's
# grid is 1.5e-7 here; rounding may differ by one.
for a, b in zip(*map(jax.tree.leaves, found)):
  np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
"""


@pytest.mark.slow
def test_public_gradients_are_complete_on_two_devices():
  # Unless `next_word_ops` splits its products, jaxlib 0.10.2 for x86-64
  # computes a block of this one wrongly in a program with room for five rounds
  # and all optimizations.
  environment = {
    k: v
    for k, v in os.environ.items()
    if k not in ('XLA_FLAGS', 'JAX_DISABLE_MOST_OPTIMIZATIONS')
  }
  subprocess.run(
    [sys.executable, '-c', _PUBLIC_GRADIENT],
    env=environment | {'PYTHONPATH': '.'},
    check=True,
  )


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'compute_dtype': 'float16'}, 'compute_dtype must be one of'),
    ({'batch_size': 0}, 'batch_size must be at least 1'),
    ({'public_clip_norm': 'other'}, "public_clip_norm must .* 'private'"),
  ],
)
def test_bad_settings(changes, words):
  with pytest.raises(ValueError, match=words):
    _trainer(**changes)


@pytest.mark.parametrize('seed', [-1, 2**64])
def test_bad_seeds(seed):
  with pytest.raises(ValueError, match='noise_seed must be'):
    rounds_lib.noise_key(seed)
