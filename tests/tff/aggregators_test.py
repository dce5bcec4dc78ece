"""The DP aggregator: clipping and noise by hand and by statistics."""

import math

import numpy as np
from pda_fed import privacy
from pda_fed import tff as pda_tff
from pda_fed.tff import aggregators
import pytest
import tensorflow as tf
import tensorflow_federated as tff

_SIZE = 50_000
_TYPE = tff.types.to_type([(np.float32, [_SIZE]), (np.float32, [2])])


_TREE_SEEDS = tf.constant([1, 2], tf.int64)
_TREE = dict(
  population=16, expected_cohort=4, sampling='epochs', mechanism='tree'
)


def _plan(**changes):
  return privacy.PrivacyPlan(
    **(
      dict(
        population=10,
        expected_cohort=4,
        rounds=10,
        delta=1e-2,
        noise_multiplier=0.0,
        clip_norm=1.0,
      )
      | changes
    )
  )


def _value(x, y=(0.0, 0.0)):
  head = np.zeros(_SIZE, np.float32)
  head[0] = x
  return [head, np.array(y, np.float32)]


def _process(noise_seed=0, **changes):
  factory = pda_tff.build_dp_aggregator(_plan(**changes), noise_seed)
  return factory.create(_TYPE)


@pytest.fixture(scope='module')
def exact():
  return _process()


@pytest.fixture(scope='module')
def noisy():
  return _process(noise_multiplier=0.5, clip_norm=2.0, noise_seed=7)


@pytest.mark.parametrize(
  'update, clipped',
  [
    (([0.6], [0.0]), ([0.6], [0.0])),  # Inside the ball: untouched.
    (([3.0], [4.0]), ([0.6], [0.8])),  # One norm over all tensors.
    (([0.0], [0.0]), ([0.0], [0.0])),
    (([-1e18], [0.0]), ([-1.0], [0.0])),
    (([math.nan], [1.0]), ([0.0], [0.0])),
    (([1.0], [math.inf]), ([0.0], [0.0])),
    (([1e30], [1.0]), ([1.0], [1e-30])),  # Its square is no float32.
    (([3e38], [-3e38]), ([0.5**0.5], [-(0.5**0.5)])),
    (([1e-30], [0.0]), ([1e-30], [0.0])),
  ],
)
def test_clip_by_hand(update, clipped):
  update = tuple(tf.constant(leaf, tf.float32) for leaf in update)
  result = aggregators.clip_update(update, tf.constant(1.0))
  for leaf, expected in zip(result, clipped, strict=True):
    np.testing.assert_allclose(leaf, expected, rtol=1e-6)


def test_sum_of_clipped_over_the_expected_cohort(exact):
  # 0.5 stays, (3, 4) is clipped to norm 1, two of the expected four came.
  output = exact.next(exact.initialize(), [_value(0.5), _value(3.0, (0, 4.0))])
  np.testing.assert_allclose(output.result[0][0], (0.5 + 0.6) / 4, rtol=1e-6)
  np.testing.assert_allclose(output.result[1], [0, 0.8 / 4], rtol=1e-6)


@pytest.mark.parametrize('bad', [1e9, -1e9, math.nan, math.inf, 1e30])
def test_one_client_moves_the_result_by_at_most_the_sensitivity(exact, bad):
  clients = [_value(0.5), _value(-0.25)]
  state = exact.initialize()
  without = exact.next(state, clients).result
  with_bad = exact.next(state, clients + [_value(bad, (bad, 1.0))]).result
  squares = [
    np.sum((a - b) ** 2) for a, b in zip(with_bad, without, strict=True)
  ]
  assert math.sqrt(sum(squares)) <= 1.0 / 4 * (1 + 1e-5)


def test_noise_has_the_planned_size(noisy):
  output = noisy.next(noisy.initialize(), [_value(0.0)])
  noise = output.result[0]
  # sigma S / (qN) = 0.5 * 2 / 4; 50,000 draws give it to about 0.3 %.
  assert np.std(noise) == pytest.approx(0.25, rel=0.02)
  assert abs(np.mean(noise)) < 5 * 0.25 / math.sqrt(_SIZE)


def test_tree_noise_is_not_cut_where_one_user_could_be_seen(monkeypatch):
  # TensorFlow's draws end below 5.7; `tests/jax` has why this is short.
  monkeypatch.setattr(
    tf.random, 'stateless_normal', lambda shape, *_, **__: tf.fill(shape, 5.6)
  )
  tree = aggregators._TreeNoise(2.0, (tf.TensorSpec((3,)), tf.TensorSpec(())))
  noise, state = tree.next(tree.make_state(_TREE_SEEDS, 2.0))
  assert [n.shape for n in noise] == [(3,), ()]
  assert min(n.numpy().min() for n in noise) > 2 * 10
  # The next node has other seeds: the secret, and the number of the draw.
  np.testing.assert_array_equal(state.seeds, [1, 4])


def test_arrays_and_nodes_of_a_tree_do_not_share_noise():
  tree = aggregators._TreeNoise(2.0, (tf.TensorSpec((50,)),) * 2)
  first, state = tree.next(tree.make_state(_TREE_SEEDS, 2.0))
  second, _ = tree.next(state)
  correlations = np.corrcoef([*first, *second]) - np.eye(4)
  assert np.abs(correlations).max() < 0.6


def test_noise_repeats_by_seed_and_changes_by_round(noisy):
  state = noisy.initialize()
  first = noisy.next(state, [_value(0.0)])
  again = noisy.next(state, [_value(0.0)])
  second = noisy.next(first.state, [_value(0.0)])
  np.testing.assert_array_equal(first.result[0], again.result[0])
  correlation = np.corrcoef(first.result[0], second.result[0])[0, 1]
  assert abs(correlation) < 0.03
  # Tensors of one round do not share noise either.
  assert not np.array_equal(first.result[0][:2], first.result[1])


@pytest.mark.slow
@pytest.mark.parametrize('tree', [False, True])
def test_without_a_seed_every_initialization_has_its_own_noise(tree):
  # The noise of two runs of one process, were it the same, would cancel.
  process = _process(None, noise_multiplier=1.0, **(_TREE if tree else {}))
  first, second = (
    process.next(process.initialize(), []).result[0] for _ in range(2)
  )
  assert np.std(first - second) == pytest.approx(
    math.sqrt(2) * np.std(first), rel=0.05
  )


def test_empty_cohort_still_adds_noise(noisy):
  output = noisy.next(noisy.initialize(), [])
  assert np.std(output.result[0]) == pytest.approx(0.25, rel=0.02)


# Each pair had the same noise when 32 bits of the secret were left.
@pytest.mark.parametrize(
  'first, second',
  [
    ((9188392838758454684, 0), (567188964777435378, 0)),
    ((2560227466742157443, 957), (2560227466742157443, 1306)),
    ((77115124465186994, 305), (77115124465186994, 550)),
  ],
)
def test_seeds_and_rounds_that_once_shared_their_noise(first, second):
  noise = []
  for seed, round_num in (first, second):
    factory = pda_tff.build_dp_aggregator(_plan(noise_multiplier=1.0), seed)
    process = factory.create(tff.TensorType(np.float32, [1000]))
    state = process.initialize()
    query = state.query_state
    at_round = query.numerator_state._replace(round_num=np.int32(round_num))
    state = state._replace(query_state=query._replace(numerator_state=at_round))
    noise.append(process.next(state, []).result)
  assert abs(np.corrcoef(noise)[0, 1]) < 0.2


@pytest.mark.parametrize('adaptive', [None, privacy.AdaptiveClipping()])
def test_no_draw_of_a_run_has_the_seed_of_another(monkeypatch, adaptive):
  seeds = []

  def record(shape, seed, dtype):
    seeds.append(tuple(seed.numpy().tolist()))
    return tf.zeros(shape, dtype)

  monkeypatch.setattr(aggregators.noise, 'draw_normal', record)
  plan = _plan(noise_multiplier=0.3, adaptive_clipping=adaptive)
  query = aggregators.PlannedSumQuery(plan, 2**63 + 5)
  state = query.initial_global_state()
  sums = query.initial_sample_state([tf.TensorSpec([3]), tf.TensorSpec([2])])
  for _ in range(3):
    _, state, _ = query.get_noised_result(sums, state)
  # Two arrays, and the count of adaptive clipping.
  draws = 3 * (2 if adaptive is None else 3)
  assert len(seeds) == len(set(seeds)) == draws
  assert {np.uint64(secret % 2**64) for secret, _ in seeds} == {2**63 + 5}


@pytest.mark.parametrize('seed', [-1, 2**64])
def test_bad_seeds(seed):
  with pytest.raises(ValueError, match='noise_seed'):
    pda_tff.build_dp_aggregator(_plan(), seed)


_COUNTED = privacy.AdaptiveClipping(
  target_quantile=0.5, learning_rate=0.2, count_stddev=1e-6
)


@pytest.fixture(scope='module')
def adaptive():
  # Without noise, the clip moves by hand-computed steps.
  return _process(adaptive_clipping=_COUNTED)


def test_adaptive_clip_by_hand(adaptive):
  # Clip 1: three of four below it, so it shrinks by exp(-0.2 (3/4 - 1/2)).
  values = [_value(0.1), _value(0.5), _value(1.0), _value(5.0)]
  output = adaptive.next(adaptive.initialize(), values)
  clip = output.measurements['dp_query_metrics']['clip_norm']
  assert clip == pytest.approx(math.exp(-0.05), rel=1e-5)
  np.testing.assert_allclose(output.result[0][0], (0.1 + 0.5 + 1 + 1) / 4)
  # The next round clips to the new norm.
  second = adaptive.next(output.state, [_value(5.0)] * 4)
  np.testing.assert_allclose(second.result[0][0], math.exp(-0.05), rtol=1e-5)


@pytest.mark.parametrize('bad', [math.nan, math.inf])
def test_not_finite_counts_as_below_the_clip(adaptive, bad):
  # As the zeros that it becomes: the share is 0.5 + 1/2 over the expected four.
  output = adaptive.next(adaptive.initialize(), [_value(bad)])
  clip = output.measurements['dp_query_metrics']['clip_norm']
  assert clip == pytest.approx(math.exp(-0.2 * 0.125), rel=1e-5)
  assert not np.any(output.result[0])


def test_adaptive_noise_follows_the_clip():
  plan = dict(
    noise_multiplier=0.5,
    clip_norm=2.0,
    adaptive_clipping=privacy.AdaptiveClipping(count_stddev=0.5),
  )
  process = _process(**plan)
  first = process.next(process.initialize(), [])
  expected = _plan(**plan).update_noise_multiplier
  assert expected == pytest.approx(0.5 / math.sqrt(0.75))
  assert np.std(first.result[0]) == pytest.approx(expected * 2 / 4, rel=0.02)
  clip = first.measurements['dp_query_metrics']['clip_norm']
  assert clip != 2.0
  second = process.next(first.state, [])
  assert np.std(second.result[0]) == pytest.approx(
    expected * clip / 4, rel=0.02
  )


def test_the_event_in_the_state_is_the_accounted_one(noisy):
  output = noisy.next(noisy.initialize(), [_value(0.0)])
  assert output.state.dp_event.noise_multiplier == pytest.approx(0.5)


def test_tree_without_noise_is_the_mean():
  process = _process(**_TREE)
  output = process.next(
    process.initialize(), [_value(0.5), _value(3.0, (0, 4.0)), _value(math.nan)]
  )
  np.testing.assert_allclose(output.result[0][0], (0.5 + 0.6) / 4, rtol=1e-6)


@pytest.mark.slow
def test_tree_noise_is_of_nodes_and_restarts():
  process = _process(noise_multiplier=0.5, **_TREE)
  state = process.initialize()
  results = []
  for _ in range(5):  # An epoch has four rounds.
    output = process.next(state, [])
    state = output.state
    results.append(output.result[0])
  node = 0.5 / 4  # sigma S / (qN)
  assert np.std(results[0]) == pytest.approx(node, rel=0.02)
  # Independent noise would add up to 2 nodes over four rounds; a tree's sum is
  # one node, and the efficient estimator makes it less.
  assert np.std(np.sum(results[:4], axis=0)) < 1.01 * node
  # The fifth round begins a new tree, which knows nothing of the old one.
  assert np.std(results[4]) == pytest.approx(node, rel=0.02)
  old = np.sum(results[:4], axis=0)
  assert abs(np.corrcoef(old, results[4])[0, 1]) < 0.03
  again = _process(noise_multiplier=0.5, **_TREE)
  repeated = again.next(again.initialize(), []).result[0]
  np.testing.assert_array_equal(repeated, results[0])


def test_the_noised_mean_can_be_clipped_once_more():
  factory = pda_tff.build_dp_aggregator(
    _plan(noise_multiplier=1.0), 0, mean_clip_norm=0.5
  )
  process = factory.create(_TYPE)
  result = process.next(process.initialize(), [_value(1.0)]).result
  norm = math.sqrt(sum(np.sum(np.square(leaf)) for leaf in result))
  assert norm == pytest.approx(0.5, rel=1e-5)
  with pytest.raises(ValueError, match='mean_clip_norm must be positive'):
    pda_tff.build_dp_aggregator(_plan(), 0, mean_clip_norm=0.0)
