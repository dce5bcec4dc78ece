import numpy as np
from pda_fed import tff as pda_tff
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff import linear_model

_MODEL_FN = linear_model.build_model_fn(2)
_ADAM = tff.learning.optimizers.build_adam(0.05)
_TRUTH = np.array([[1.0], [-2.0]], np.float32)


def _users(count=4, noise=0.0):
  rng = np.random.default_rng(0)
  users = []
  for _ in range(count):
    x, error = linear_model.make_examples(rng, 25, 2)
    users.append((x, x @ _TRUTH + noise * error))
  return users


@pytest.mark.slow
def test_converges_to_the_truth():
  epochs = []
  result = pda_tff.pretrain(
    _MODEL_FN, _users(), _ADAM, on_epoch=lambda *a: epochs.append(a)
  )
  np.testing.assert_allclose(result.weights.trainable[0], _TRUTH, atol=0.02)
  assert result.held_out_losses[0] > 1 > result.held_out_losses[-1]
  assert [e for e, _ in epochs] == list(range(1, len(epochs) + 1))
  assert [loss for _, loss in epochs] == list(result.held_out_losses[1:])


def test_stops_and_returns_the_best():
  # Labels are noise: whatever is learnt is wrong for held-out examples.
  rng = np.random.default_rng(1)
  users = [linear_model.make_examples(rng, 6, 2) for _ in range(3)]
  config = pda_tff.PretrainingConfig(patience=2, max_epochs=50, held_out=0.4)
  result = pda_tff.pretrain(_MODEL_FN, users, _ADAM, config)
  losses = result.held_out_losses
  assert losses[result.epochs] == min(losses)
  assert len(losses) == result.epochs + 2 + 1 < 50


@pytest.mark.slow
def test_seed_repeats():
  config = pda_tff.PretrainingConfig(max_epochs=2)
  first, again = (
    pda_tff.pretrain(_MODEL_FN, _users(), _ADAM, config) for _ in range(2)
  )
  assert first.held_out_losses == again.held_out_losses


@pytest.mark.slow
def test_weights_start_a_process():
  from pda_fed import privacy

  warm = pda_tff.pretrain(_MODEL_FN, _users(), _ADAM)
  plan = privacy.PrivacyPlan(
    population=10,
    expected_cohort=2,
    rounds=1,
    delta=1e-2,
    noise_multiplier=0.0,
    clip_norm=1.0,
  )
  sgd = tff.learning.optimizers.build_sgdm(0.1)
  process = pda_tff.build_dp_fedavg(_MODEL_FN, plan, sgd, sgd)
  state = process.set_model_weights(process.initialize(), warm.weights)
  np.testing.assert_array_equal(
    process.get_model_weights(state).trainable[0], warm.weights.trainable[0]
  )
  # Nothing is left to learn, so a round moves nothing.
  cohort = [linear_model.make_dataset(_users()[0], 16)]
  after = process.get_model_weights(process.next(state, cohort).state)
  np.testing.assert_allclose(after.trainable[0], _TRUTH, atol=0.02)


@pytest.mark.parametrize(
  'options, message',
  [
    (dict(held_out=0.0), 'held_out must be in'),
    (dict(held_out=1.0), 'held_out must be in'),
    (dict(batch_size=0), 'batch_size must be at least 1'),
    (dict(patience=0), 'patience must be at least 1'),
    (dict(seed=-1), 'seed must be at least 0'),
  ],
)
def test_bad_config(options, message):
  with pytest.raises(ValueError, match=message):
    pda_tff.PretrainingConfig(**options)


def test_bad_input():
  with pytest.raises(ValueError, match='public_data must have at least one'):
    pda_tff.pretrain(_MODEL_FN, [], _ADAM)
  one = [linear_model.make_examples(np.random.default_rng(0), 1, 2)]
  with pytest.raises(ValueError, match='held_out must split'):
    pda_tff.pretrain(_MODEL_FN, one, _ADAM)
  wild = tff.learning.optimizers.build_sgdm(1e30)
  with pytest.raises(ValueError, match='lower the learning rate'):
    pda_tff.pretrain(_MODEL_FN, _users(), wild)


def test_keras_models_are_refused_with_what_to_do():
  with pytest.raises(TypeError, match='from_keras_model.*Found Sequential'):
    pda_tff.pretrain(
      lambda: tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])]),
      _users(),
      _ADAM,
    )
