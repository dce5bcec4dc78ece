"""Tests for pda_fed.jax.aggregation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.jax import aggregation
from pda_fed.privacy import presets
import pytest
from scipy import stats

from tests.jax import small_updates

_INF = float('inf')
# The largest float32 is 3.4e38; the smallest normal one is 1.2e-38.
_HUGE = 3e38


def _private_mean(updates, mask, *, clip_norm, **settings):
  sums = aggregation.clipped_sum(updates, mask, clip_norm)
  mean = aggregation.noised_mean(sums.total, clip_norm=clip_norm, **settings)
  return mean, sums._replace(total=None)


def _mean(updates, mask=None, **overrides):
  num_clients = jax.tree_util.tree_leaves(updates)[0].shape[0]
  settings = {
    'clip_norm': 1.0,
    'noise_multiplier': 0.0,
    'expected_cohort': 1.0,
    'key': jax.random.PRNGKey(0),
    **overrides,
  }
  mask = np.ones(num_clients) if mask is None else mask
  return _private_mean(updates, mask, **settings)


@pytest.mark.parametrize('plan', [p.plan for p in presets.PRESETS.values()])
def test_noise_is_not_cut_where_one_example_could_be_seen(plan, monkeypatch):
  # Both ends of one draw in float32, which a test would never see drawn.
  uniforms = np.array([np.nextafter(np.float32(-1), np.float32(0)), 1 - 2**-23])
  ends = np.sqrt(2) * jax.lax.erf_inv(jnp.asarray(uniforms, jnp.float32))
  monkeypatch.setattr(
    jax.random, 'normal', lambda key, shape, _: jnp.broadcast_to(ends, shape)
  )
  reach = abs(aggregation.draw_normal(None, (2,), jnp.float32)).min()
  # An example moves the sum by 1 / sigma standard deviations. What goes beyond
  # the end of the noise could not have come without it.
  beyond = stats.norm.sf(reach - 1 / plan.noise_multiplier)
  assert plan.rounds * plan.sampling_rate * beyond < 1e-3 * plan.delta


def test_noise_is_normal():
  draws = aggregation.draw_normal(jax.random.key(0), (200_000,), jnp.float32)
  assert stats.kstest(draws, 'norm').pvalue > 0.01
  assert stats.kurtosis(draws) == pytest.approx(0, abs=0.05)


class TestNoisedMean:
  def test_by_hand(self):
    updates = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 0.0]], np.float32)
    mean, counts = _mean(updates, expected_cohort=10.0)
    # (0.6, 0.8) + (0.3, 0.4) + 0, over the *expected* cohort.
    np.testing.assert_allclose(mean, [0.09, 0.12], rtol=1e-6)
    assert counts == (None, 3, 1, 1)

  def test_plain_mean_without_clipping_and_noise(self):
    updates = small_updates.random_updates(8)
    mean, counts = _mean(updates, clip_norm=_INF, expected_cohort=8)
    for name, leaf in updates.items():
      np.testing.assert_allclose(mean[name], leaf.mean(axis=0), atol=1e-6)
      assert mean[name].shape == leaf.shape[1:]
    assert counts.num_clipped == 0

  @pytest.mark.parametrize('filling', [0.0, 1e30, np.nan, _INF])
  @pytest.mark.parametrize('dtype', [bool, np.int32, np.float32])
  def test_padding_contributes_nothing(self, filling, dtype):
    updates = small_updates.random_updates(5)
    mask = np.array([1, 0, 1, 1, 0], dtype)
    for leaf in updates.values():
      leaf[mask == 0] = filling
    present = {name: leaf[mask != 0] for name, leaf in updates.items()}
    settings = {'clip_norm': 2.0, 'noise_multiplier': 0.5, 'expected_cohort': 3}
    padded, padded_counts = _mean(updates, mask, **settings)
    plain, plain_counts = _mean(present, **settings)
    for name in updates:
      np.testing.assert_allclose(padded[name], plain[name], atol=1e-6)
    assert padded_counts == plain_counts

  def test_mask_is_no_weight(self):
    updates = np.array([[3.0, 4.0]], np.float32)
    mean, _ = _mean(updates, np.array([1000.0]))
    np.testing.assert_allclose(mean, [0.6, 0.8], rtol=1e-6)

  @pytest.mark.parametrize('num_clients', [0, 3])
  def test_empty_cohort_gives_pure_noise(self, num_clients):
    updates = {'w': np.ones((num_clients, 100_000), np.float32)}
    mean, counts = _mean(
      updates,
      np.zeros(num_clients),
      clip_norm=0.5,
      noise_multiplier=2.0,
      expected_cohort=4.0,
    )
    assert np.std(mean['w']) == pytest.approx(0.25, rel=0.02)
    assert abs(np.mean(mean['w'])) < 5 * 0.25 / np.sqrt(100_000)
    assert counts == (None, 0, 0, 0)

  def test_noise_does_not_depend_on_the_cohort(self):
    settings = {
      'clip_norm': 0.3,
      'noise_multiplier': 0.4,
      'expected_cohort': 5.0,
    }
    differences = []
    for num_clients in (2, 9):
      updates = small_updates.random_updates(num_clients)
      noisy, _ = _mean(updates, **settings)
      exact, _ = _mean(updates, **{**settings, 'noise_multiplier': 0.0})
      differences.append(
        jax.tree_util.tree_map(lambda a, b: a - b, noisy, exact)
      )
    for name in differences[0]:
      np.testing.assert_allclose(
        # To rounding, a step of the grid: 2^-12 of the noise.
        differences[0][name],
        differences[1][name],
        atol=0.3 * 0.4 * 2**-12 / 5,
      )

  def test_standard_deviation_of_the_noise(self):
    updates = {
      'a': np.zeros((2, 400, 500), np.float32),
      'b': np.zeros((2, 200_000), np.float32),
    }
    mean, _ = _mean(
      updates,
      clip_norm=0.3,
      noise_multiplier=0.4,
      expected_cohort=100.0,
      key=jax.random.PRNGKey(1),
    )
    expected = 0.4 * 0.3 / 100
    a, b = (np.asarray(mean[name]).ravel() for name in ('a', 'b'))
    for noise in (a, b):
      assert noise.std() == pytest.approx(expected, rel=0.02)
      assert abs(noise.mean()) < 5 * expected / np.sqrt(noise.size)
    # No two leaves may share their noise.
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(a.size)

  def test_key_decides_the_noise(self):
    updates = np.zeros((1, 10), np.float32)
    draw = functools.partial(_mean, updates, noise_multiplier=1.0)
    first, again, other = (
      np.asarray(draw(key=key)[0])
      for key in (jax.random.key(1), jax.random.key(1), jax.random.key(2))
    )
    np.testing.assert_array_equal(first, again)
    assert np.all(first != other)

  @pytest.mark.parametrize(
    'adversary',
    [
      'huge',
      'negated',
      'nan',
      'inf',
      'mixed infinities',
      'nearly overflowing norm',
    ],
  )
  @pytest.mark.parametrize('clip_norm', [0.3, 50.0])
  def test_sensitivity(self, adversary, clip_norm):
    updates = small_updates.random_updates(6)
    rest = small_updates.flat(updates)[1:].sum(axis=0)
    attack = {
      'huge': np.full(17, _HUGE),
      'negated': -1000 * rest,
      'nan': np.full(17, np.nan),
      'inf': np.full(17, _INF),
      'mixed infinities': np.where(np.arange(17) % 2, _INF, -_INF),
      'nearly overflowing norm': np.full(17, 1.8e19),
    }[adversary]
    # As `small_updates.flat` does, in the order of the names.
    pieces = np.split(attack, [4, 16])
    for name, piece in zip(sorted(updates), pieces, strict=True):
      updates[name][0] = piece.reshape(updates[name][0].shape)

    settings = {'clip_norm': clip_norm, 'expected_cohort': 4.0}
    present, _ = _mean(updates, **settings)
    absent, _ = _mean(updates, np.array([0, 1, 1, 1, 1, 1]), **settings)
    removed, _ = _mean(
      jax.tree_util.tree_map(lambda leaf: leaf[1:], updates), **settings
    )
    for neighbour in (absent, removed):
      difference = np.concatenate(
        [
          np.ravel(np.asarray(present[n], np.float64) - neighbour[n])
          for n in present
        ]
      )
      assert np.linalg.norm(difference) <= clip_norm / 4.0 * (1 + 1e-5)
    if adversary in ('huge', 'negated', 'nearly overflowing norm'):
      # And the bound is reached, so it is no accident.
      assert np.linalg.norm(difference) >= clip_norm / 4.0 * (1 - 1e-5)

  @pytest.mark.parametrize('traced', [False, True])
  def test_jit(self, traced):
    updates = small_updates.random_updates(6)
    updates['bias'][2] = np.nan
    mask = np.array([1, 1, 1, 0, 1, 1])
    settings = {
      'clip_norm': 0.5,
      'noise_multiplier': 0.7,
      'expected_cohort': 3.0,
    }
    key = jax.random.PRNGKey(3)
    expected = _private_mean(updates, mask, **settings, key=key)
    if traced:
      compiled = jax.jit(_private_mean)
      found = compiled(updates, mask, **settings, key=key)
    else:
      bound = functools.partial(_private_mean, **settings)
      found = jax.jit(bound)(updates, mask, key=key)
    jax.tree_util.tree_map(
      functools.partial(np.testing.assert_allclose, atol=1e-6),
      found,
      expected,
    )

  def test_traced_zero_noise_and_infinite_norm(self):
    updates = small_updates.random_updates(4)
    mean, _ = jax.jit(_private_mean)(
      updates,
      np.ones(4),
      clip_norm=_INF,
      noise_multiplier=0.0,
      expected_cohort=4.0,
      key=jax.random.PRNGKey(0),
    )
    np.testing.assert_allclose(
      mean['bias'], updates['bias'].mean(axis=0), atol=1e-6
    )

  def test_vmap_over_settings(self):
    updates = small_updates.random_updates(4)
    clip_norms = jnp.array([0.1, 1.0, 10.0])

    def run(clip_norm):
      return _mean(updates, clip_norm=clip_norm)[0]

    batched = jax.vmap(run)(clip_norms)
    for i, clip_norm in enumerate((0.1, 1.0, 10.0)):
      np.testing.assert_allclose(
        batched['kernel'][i], run(clip_norm)['kernel'], atol=1e-6
      )

  def test_low_precision_updates_are_summed_in_float32(self):
    # In bfloat16 a sum of ones stops at 256.
    mean, _ = _mean(
      jnp.ones((1000, 2), jnp.bfloat16), clip_norm=_INF, expected_cohort=1000
    )
    assert mean.dtype == jnp.float32
    np.testing.assert_allclose(mean, 1.0)

  @pytest.mark.parametrize(
    ('overrides', 'message'),
    [
      ({'clip_norm': 0.0}, 'clip_norm must be positive'),
      ({'noise_multiplier': -0.1}, r'noise_multiplier .* Found -0\.1'),
      ({'noise_multiplier': np.nan}, 'noise_multiplier .* Found nan'),
      ({'expected_cohort': 0}, 'expected_cohort .* Found 0'),
      ({'expected_cohort': _INF}, 'expected_cohort .* Found inf'),
      (
        {'clip_norm': _INF, 'noise_multiplier': 0.1},
        'clip_norm must be finite .*clip_norm=inf, noise_multiplier=0.1',
      ),
      ({'mask': np.ones(3)}, r'mask .*\(2,\).* Found \(3,\)'),
      ({'mask': np.ones((2, 1))}, r'mask .*\(2,\).* Found \(2, 1\)'),
    ],
  )
  def test_bad_arguments(self, overrides, message):
    with pytest.raises(ValueError, match=message):
      _mean(np.ones((2, 3), np.float32), **overrides)
