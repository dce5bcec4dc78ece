"""The grid of noised sums: the rule, and the attack that it closes.

The attack is a likelihood-ratio test on low bits. "Nobody" is a sum of zeros
with noise; "somebody" adds one update of norm 0.001 S, which epsilon says is
all but invisible. Without rounding the bits tell which it was.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pda_fed import linear_regression
from pda_fed import privacy
from pda_fed import tff as pda_tff
from pda_fed.jax import aggregation
from pda_fed.privacy import rounding
from pda_fed.tff import noise
import pytest
import tensorflow as tf
import tensorflow_federated as tff

_COORDINATES = 480
_TRIALS = 2000
_UPDATE = np.float32(0.001 / np.sqrt(_COORDINATES))


@pytest.mark.parametrize(
  'stddev, step',
  [
    (1.0, 2.0**-12),
    (1.99, 2.0**-12),
    (2.0, 2.0**-11),
    (0.12, 2.0**-16),
    (0, 0),
  ],
)
def test_the_same_power_of_two_everywhere(stddev, step):
  assert rounding.grid_step(stddev) == step
  values = np.float32([0.3, -7.7, 1e-9, 250.25])
  expected = np.round(values / step) * step if step else values
  for found in (
    rounding.round_noised(values, stddev),
    rounding.round_noised(values, np.full(4, stddev)),
    aggregation.round_noised(jnp.asarray(values), stddev),
    noise.round_noised(tf.constant(values), stddev),
  ):
    np.testing.assert_array_equal(np.asarray(found), expected)


def _jax_sums(total, seed):
  plan = privacy.PrivacyPlan(
    population=10,
    expected_cohort=1,
    rounds=1,
    delta=0.1,
    noise_multiplier=1.0,
    clip_norm=1.0,
  )
  key = jax.random.PRNGKey(seed)
  return aggregation.noised_mean(plan, jnp.asarray(total), 1.0, key)


def _tf_sums(total, seed):
  drawn = noise.draw_normal(
    tf.constant(total.shape), tf.constant([seed, 7]), tf.float32
  )
  return noise.round_noised(tf.constant(total) + drawn, 1.0)


def _jax_weights(total, seed):
  """A step from weights that are known, and zero as a new embedding is."""
  mean = _jax_sums(total, seed)
  changes, _ = optax.sgd(0.5).update(mean, optax.sgd(0.5).init(mean))
  return optax.apply_updates(jnp.zeros_like(mean), changes)


def _features(values):
  """The exponent of each number, and how many of its last bits are zero."""
  bits = np.asarray(values, np.float32).view(np.uint32)
  mantissa = (bits & 0x7FFFFF) | 0x800000
  zeros = np.zeros_like(mantissa)
  for i in range(1, 24):
    zeros += mantissa % (1 << i) == 0
  return ((bits >> 23) & 0xFF) * 24 + zeros


def _accuracy(sums):
  """How often the likelihood ratio of low bits tells nobody from somebody."""
  shape = (_TRIALS, _COORDINATES)
  totals = np.zeros(shape, np.float32), np.full(shape, _UPDATE)
  learned = [
    np.bincount(_features(sums(t, i)).ravel(), minlength=256 * 24) + 1
    for i, t in enumerate(totals)
  ]
  ratio = np.log(learned[1]) - np.log(learned[0])
  seen = [_features(sums(t, 2 + i)) for i, t in enumerate(totals)]
  nobody, somebody = (ratio[features].sum(axis=1) for features in seen)
  return ((nobody < 0).mean() + (somebody > 0).mean()) / 2


@pytest.fixture
def without_rounding(monkeypatch):
  monkeypatch.setattr(rounding, 'GRID_STEP', 0.0)
  jax.clear_caches()
  yield
  monkeypatch.undo()
  jax.clear_caches()


_RELEASES = pytest.mark.parametrize(
  'sums', [_jax_sums, _tf_sums, _jax_weights], ids=['jax', 'tf', 'weights']
)


@pytest.mark.slow
@_RELEASES
def test_low_bits_tell_nothing(sums):
  assert 0.47 <= _accuracy(sums) <= 0.53


@pytest.mark.slow
@_RELEASES
def test_without_rounding_low_bits_tell_all(sums, without_rounding):
  del without_rounding
  assert _accuracy(sums) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
  'query', ['fixed', 'adaptive', 'tree'], ids=lambda q: q
)
def test_every_tff_query_releases_multiples_of_its_step(query):
  options = {
    'fixed': {},
    'adaptive': {'adaptive_clipping': privacy.AdaptiveClipping()},
    'tree': {'mechanism': 'tree', 'sampling': 'epochs'},
  }[query]
  plan = privacy.PrivacyPlan(
    population=16,
    expected_cohort=4,
    rounds=4,
    delta=1e-2,
    noise_multiplier=0.3,
    clip_norm=1.5,
    **options,
  )
  process = pda_tff.build_dp_aggregator(plan, noise_seed=3).create(
    tff.TensorType(np.float32, [500])
  )
  state = process.initialize()
  stddev = plan.clip_norm * plan.update_noise_multiplier
  for _ in range(3):
    if query == 'adaptive':
      clip = state.query_state.numerator_state.clip_norm
      stddev = float(clip) * plan.update_noise_multiplier
    client = np.random.default_rng(0).normal(size=500).astype(np.float32)
    output = process.next(state, [client])
    state = output.state
    steps = np.asarray(output.result) * 4 / rounding.grid_step(stddev)
    np.testing.assert_array_equal(steps, np.round(steps))


def test_linear_regression_steps_on_multiples():
  seen = []

  class Map(linear_regression.EuclideanMirrorMap):
    def step(self, theta, gradient, *others, **options):
      seen.append(gradient)
      return super().step(theta, gradient, *others, **options)

  linear_regression.mirror_descent(
    Map(np.zeros(3)),
    linear_regression.LeastSquares(np.eye(3), np.ones(3)).full_batch(),
    [
      linear_regression.Setting(
        learning_rate=0.1, clip_norm=1.0, num_steps=4, noise_stddev=s
      )
      for s in (0.2, 3.0)
    ],
    np.random.default_rng(0),
  )
  steps = np.stack(seen) / rounding.grid_step(np.array([0.2, 3.0]))
  np.testing.assert_array_equal(steps, np.round(steps))


def test_noise_is_still_normal():
  noised = np.asarray(_jax_sums(np.zeros(200_000, np.float32), 5))
  assert noised.std() == pytest.approx(1, rel=0.01)
  assert np.abs(noised).max() > 4
