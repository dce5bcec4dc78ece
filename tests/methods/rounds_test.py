"""A whole round of every method in every engine, against numpy."""

import dataclasses

import jax
import numpy as np
import optax
from pda_fed import jax as pda_jax
from pda_fed import methods
from pda_fed import schedules
from pda_fed import tff as pda_tff
from pda_fed.tff import runtime
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.methods import tiny_linear as tiny

pytestmark = pytest.mark.slow

METHODS = {
  'cold': methods.ColdStart(),
  'warm': methods.WarmStart(),
  'pda': methods.PdaDpmd(alpha=schedules.constant(0.25)),
  'semi_dp': methods.SemiDp(weight=0.6),
  'dope': methods.Dope(),
  'adadps': methods.AdaDps(epsilon=0.3),
  'adadps_back': methods.AdaDps(epsilon=0.3, multiply_back=True),
}


def _model_fn():
  inputs = tf.keras.layers.Input([2])
  outputs = tf.keras.layers.Dense(1, use_bias=False)(inputs)
  return tff.learning.models.from_keras_model(
    tf.keras.Model(inputs, outputs),
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=(
      tf.TensorSpec([None, 2], tf.float32),
      tf.TensorSpec([None, 1], tf.float32),
    ),
  )


def _tff_round(method, users, public):
  sgd = tff.learning.optimizers.build_sgdm
  process = pda_tff.build_learning_process(
    _model_fn,
    tiny.plan(),
    sgd(tiny.RATE),
    sgd(1.0),
    method=method,
    public_data=public,
    public_users_per_round=2,
    noise_seed=0,
  )
  data = [tf.data.Dataset.from_tensor_slices(u).batch(2) for u in users]
  with runtime.in_process():
    start = tff.learning.models.ModelWeights([tiny.START], [])
    state = process.set_model_weights(process.initialize(), start)
    state = process.next(state, data).state
    return process.get_model_weights(state).trainable[0]


def _chunks(users):
  return pda_jax.chunk_users(users, batch_size=2, clients_per_chunk=2)


def _jax_round(method, users, public):
  trainer = pda_jax.Federated(
    tiny.MODEL,
    tiny.plan(),
    method,
    client_optimizer=optax.sgd(tiny.RATE),
    server_optimizer=optax.sgd(1.0),
    devices=jax.devices()[:1],
  )
  inputs = pda_jax.RoundInputs(
    np.int32(0),
    _chunks(users),
    _chunks(public) if method.uses_public else None,
    method.schedules_at(0),
  )
  state, _ = trainer.run(
    trainer.init([tiny.START]),
    pda_jax.stack_rounds([inputs], 1),
    1,
    pda_jax.noise_key(0),
  )
  return np.asarray(state.params[0])


def _sample_level_step(method, users, public):
  """Users are examples here: the first one of each."""
  settings = pda_jax.SampleLevelSettings(plan=tiny.plan(), method=method)
  private, public = (
    pda_jax.ExampleArrays(
      *(np.stack(part)[:, 0] for part in zip(*of, strict=True))
    )
    for of in (users, public)
  )
  inputs = pda_jax.StepInputs(
    round_num=np.int32([0]),
    rows=np.int32([[*range(len(users)), 0]]),
    present=np.array([[True] * len(users) + [False]]),
    learning_rate=np.float32([1.0]),
    epoch=np.int32([0]),
    public_rows=np.int32([[0, 1]]) if method.uses_public else None,
    schedules={n: np.float32([v]) for n, v in method.schedules_at(0).items()},
  )
  trainer = pda_jax.SampleTrainer(tiny.MODEL, settings)
  state, _ = trainer.run(
    trainer.init([tiny.START]),
    pda_jax.TrainingArrays(private, public),
    inputs,
    1,
    0.0,
    pda_jax.noise_key(0),
  )
  return np.asarray(state.params[0])


_ENGINES = {
  'tff': _tff_round,
  'jax': _jax_round,
  'sample_level': _sample_level_step,
}


def _updates(engine, users):
  if engine == 'sample_level':
    firsts = [tuple(part[:1] for part in user) for user in users]
    return [tiny.gradient(tiny.START, user) for user in firsts]
  return [tiny.RATE * tiny.gradient(tiny.START, user) for user in users]


@pytest.mark.parametrize('engine', _ENGINES)
@pytest.mark.parametrize('name', METHODS)
def test_a_round_by_hand(engine, name):
  found = _ENGINES[engine](METHODS[name], tiny.USERS, tiny.PUBLIC)
  expected = tiny.START - tiny.expected_update(
    name, _updates(engine, tiny.USERS), _updates(engine, tiny.PUBLIC)
  )
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


_BAD_USERS = {
  'huge': (np.full([2, 2], 1e18, np.float32), np.zeros([2, 1], np.float32)),
  'not a number': (
    np.full([2, 2], np.nan, np.float32),
    np.zeros([2, 1], np.float32),
  ),
  'opposite': (-1e3 * tiny.PUBLIC[0][0], 1e3 * tiny.PUBLIC[0][1]),
}


@pytest.mark.parametrize('engine', ['jax', 'sample_level'])
@pytest.mark.parametrize('name', METHODS)
@pytest.mark.parametrize('bad', _BAD_USERS)
def test_a_client_changes_the_sum_by_at_most_the_clip(engine, name, bad):
  method = METHODS[name]
  users = [*tiny.USERS[:2], _BAD_USERS[bad]]
  run = _ENGINES[engine]
  change = run(method, users, tiny.PUBLIC) - run(method, users[:2], tiny.PUBLIC)
  # What follows the mean is linear in it: its weight, or A, at most.
  factor = {'pda': 0.25, 'semi_dp': 0.6}.get(name, 1.0)
  if name == 'adadps_back':
    public = sum(_updates(engine, tiny.PUBLIC)) / 2
    factor = tiny.scales(public, 0.3).max()
  bound = factor * tiny.CLIP / tiny.COHORT
  assert np.linalg.norm(change) <= bound * (1 + 1e-5)
  # The squares of a huge gradient of an example are infinite: it becomes zeros.
  if bad == 'opposite' or (bad == 'huge' and engine == 'jax'):
    assert np.linalg.norm(change) > 0.1 * bound


@pytest.mark.parametrize('name', ['dope', 'semi_dp', 'adadps'])
def test_a_client_in_tff_changes_the_sum_by_at_most_the_clip(name):
  users = [*tiny.USERS[:2], _BAD_USERS['opposite']]
  change = _tff_round(METHODS[name], users, tiny.PUBLIC) - _tff_round(
    METHODS[name], users[:2], tiny.PUBLIC
  )
  assert np.linalg.norm(change) <= tiny.CLIP / tiny.COHORT * (1 + 1e-5)


@pytest.mark.parametrize('engine', _ENGINES)
@pytest.mark.parametrize('name', ['cold', 'dope', 'adadps'])
def test_a_client_that_is_not_finite_takes_no_part(engine, name):
  run, users = _ENGINES[engine], tiny.USERS[:2]
  found = run(METHODS[name], [*users, _BAD_USERS['not a number']], tiny.PUBLIC)
  np.testing.assert_array_equal(found, run(METHODS[name], users, tiny.PUBLIC))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Anchor(methods.Method):
  """Descends its memory, the weights that it started with."""

  title = 'anchor'
  public = 'update'

  def initial_memory(self, weights):
    return weights

  def prepare_public(self, public, memory):
    return memory, memory

  def after_noise(self, mean, public, t):
    return methods.mix(public, mean, 1 / (1 + t)), {'weight': 1 / (1 + t)}


@pytest.mark.parametrize('engine', _ENGINES)
def test_a_method_sees_t_and_the_weights_that_were_set(engine):
  found = _ENGINES[engine](_Anchor(), tiny.USERS, tiny.PUBLIC)
  np.testing.assert_allclose(found, 0 * tiny.START, atol=1e-7)


_NO_PUBLIC = [(np.zeros_like(x), np.zeros_like(y)) for x, y in tiny.PUBLIC]
# Users whose coordinates have equal squares: both weights move alike.
_EQUAL = [(np.float32([[1, 1], [1, 1]]), np.float32([[1.1], [1.1]]))] * 2


@pytest.mark.parametrize('engine', ['jax', 'sample_level'])
@pytest.mark.parametrize(
  'method, public',
  [
    (methods.Dope(), _NO_PUBLIC),
    (methods.SemiDp(weight=1.0), tiny.PUBLIC),
    (methods.PdaDpmd(alpha=schedules.constant(1.0)), tiny.PUBLIC),
    (methods.AdaDps(), _NO_PUBLIC),
    (methods.AdaDps(), _EQUAL),
  ],
)
def test_limits_are_a_warm_start(engine, method, public):
  run = _ENGINES[engine]
  expected = run(methods.WarmStart(), tiny.USERS, public)
  np.testing.assert_allclose(
    run(method, tiny.USERS, public), expected, rtol=1e-6
  )
