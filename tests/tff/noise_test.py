"""Noise in TensorFlow: seeds that are one to one, and long tails."""

import numpy as np
from pda_fed.jax import philox
from pda_fed.tff import noise
import pytest
from scipy import stats
import tensorflow as tf

_SEED = tf.constant([1, 2], tf.int64)


def _inverse_of_philox(outputs: np.ndarray) -> np.ndarray:
  """Decrypts TensorFlow's scrambled seeds, uint32 [n, 4]."""
  inverses = [np.uint64(pow(int(m), -1, 2**32)) for m in philox._MULTIPLIERS]
  steps = [int(step) for step in philox._KEY_STEPS]
  a, b, c, d = outputs.astype(np.uint64).T
  mask = np.uint64(0xFFFFFFFF)
  for i in reversed(range(philox._ROUNDS)):
    k0, k1 = (
      np.uint64((key + i * step) % 2**32)
      for key, step in zip(philox._SCRAMBLING_KEY, steps, strict=True)
    )
    left = d * inverses[0] & mask
    right = b * inverses[1] & mask
    high_left = left * philox._MULTIPLIERS[0] >> np.uint64(32)
    high_right = right * philox._MULTIPLIERS[1] >> np.uint64(32)
    a, b, c, d = left, a ^ high_right ^ k0, right, c ^ high_left ^ k1
  return np.stack([a, b, c, d], axis=1)


def test_the_inverse_decrypts():
  counters = np.arange(40, dtype=np.uint32).reshape(10, 4) * 2**26 + 7
  key = np.array(philox._SCRAMBLING_KEY, np.uint32)
  found = _inverse_of_philox(philox._philox(counters, key))
  np.testing.assert_array_equal(found, counters)


_EXTREMES = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
_ANY = np.random.default_rng(0).integers(2**63, size=3).tolist()


@pytest.mark.parametrize('secret', [*_EXTREMES, *_ANY])
def test_secret_round_and_draw_follow_from_the_seed(secret):
  rounds, draws = 10_000, 100
  word = noise.noise_secret(secret)
  round_num = tf.range(rounds)  # int32, as in the aggregator's state.
  for index in range(draws):
    seed = noise.draw_seed(
      tf.fill([rounds], word), round_num, index, draws
    ).numpy()
    assert seed.dtype == np.int64
    np.testing.assert_array_equal(seed[0].astype(np.uint64), secret)
    np.testing.assert_array_equal(seed[1] // draws, round_num)
    np.testing.assert_array_equal(seed[1] % draws, index)


@pytest.mark.parametrize('secret', [0, 2**63 - 1, 0xFEDCBA9876543210])
@pytest.mark.parametrize('round_num, index', [(0, 0), (9999, 99), (2**31, 3)])
def test_the_generators_key_and_counter_keep_the_whole_seed(
  secret, round_num, index
):
  seed = noise.draw_seed(noise.noise_secret(secret), round_num, index, 100)
  key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
  words = np.array(
    [*key.numpy().view(np.uint32), *counter.numpy()[1:].view(np.uint32)]
  )
  # The lower half of the counter counts blocks within a draw, from 0.
  assert counter.numpy()[0] == 0
  found = _inverse_of_philox(words[None])[0].astype('<u4').view('<u8')
  assert found.tolist() == [secret, round_num * 100 + index]


def test_streams_are_those_of_the_key_and_counter():
  # So that the test above is about the numbers that are drawn.
  key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=_SEED)
  expected = tf.raw_ops.StatelessRandomNormalV2(
    shape=[4, 5], key=key, counter=counter, alg=1
  )
  drawn = noise.draw_normal((5,), _SEED, tf.float32)
  np.testing.assert_array_equal(drawn, tf.reduce_sum(expected, axis=0) / 2)


def test_without_a_seed_the_secret_is_of_the_systems_entropy(monkeypatch):
  # TensorFlow's own entropy is 32 bits, whatever it returns.
  monkeypatch.setattr(
    tf.raw_ops, 'NonDeterministicInts', lambda **_: tf.constant([6], tf.int64)
  )
  monkeypatch.setattr(noise.secrets, 'randbits', lambda bits: 2**bits - 1)
  assert noise.noise_secret(None).numpy() == ~6


def test_without_a_seed_each_call_of_a_function_has_a_secret_of_its_own():
  function = tf.function(lambda: noise.noise_secret(None))
  found = {int(function()) for _ in range(5)}
  assert len(found) == 5
  assert max(abs(word) for word in found) > 2**55


def test_noise_is_not_cut_where_one_user_could_be_seen(monkeypatch):
  # TensorFlow's draws end below 5.7; `tests/jax` has why this is short.
  monkeypatch.setattr(
    tf.random, 'stateless_normal', lambda shape, *_, **__: tf.fill(shape, 5.6)
  )
  assert noise.draw_normal((3,), _SEED, tf.float32).numpy().min() > 10


def test_noise_is_normal():
  draws = noise.draw_normal((200_000,), _SEED, tf.float32).numpy()
  assert stats.kstest(draws, 'norm').pvalue > 0.01
  assert stats.kurtosis(draws) == pytest.approx(0, abs=0.05)
