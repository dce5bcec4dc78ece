"""Tests for pda_fed.jax.clipping."""

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.jax import clipping
import pytest

from tests.jax import small_updates

_INF = float('inf')
# The largest float32 is 3.4e38; the smallest normal one is 1.2e-38.
_HUGE = 3e38


class TestClipByNorm:
  def test_by_hand(self):
    # The norm is that of the whole tree: 5, 0.5, 0 and 10.
    updates = {
      'a': np.array([[3.0], [0.3], [0.0], [-6.0]]),
      'b': np.array([[[4.0]], [[0.4]], [[0.0]], [[8.0]]]),
    }
    result = clipping.clip_by_norm(updates, 1.0)
    np.testing.assert_allclose(
      small_updates.flat(result.updates),
      [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [-0.6, 0.8]],
      rtol=1e-6,
    )
    assert result.was_clipped.tolist() == [True, False, False, True]
    assert result.was_non_finite.tolist() == [False] * 4

  def test_norm_equal_to_the_bound_is_not_clipped(self):
    updates = np.array([[3.0, 4.0]], np.float32)
    result = clipping.clip_by_norm(updates, 5.0)
    np.testing.assert_array_equal(result.updates, updates)
    assert not result.was_clipped[0]

  @pytest.mark.parametrize('bad', [np.nan, _INF, -_INF])
  def test_non_finite_updates_become_zeros(self, bad):
    updates = small_updates.random_updates(3)
    updates['kernel'][1, 2, 3] = bad
    result = clipping.clip_by_norm(updates, 100.0)
    assert result.was_non_finite.tolist() == [False, True, False]
    assert result.was_clipped.tolist() == [False] * 3
    expected = small_updates.flat(updates)
    expected[1] = 0.0
    np.testing.assert_array_equal(small_updates.flat(result.updates), expected)

  @pytest.mark.parametrize('clip_norm', [1e-20, 0.3, 1e20])
  @pytest.mark.parametrize(
    'size', [1e-37, 1e-30, 1e-15, 1e-10, 1.0, 1e10, 1e15, 1e30, _HUGE]
  )
  def test_any_magnitude(self, size, clip_norm):
    updates = np.array([[size, -size], [size, 0.0]], np.float32)
    result = clipping.clip_by_norm(updates, clip_norm)
    norms = size * np.array([np.sqrt(2), 1])
    np.testing.assert_allclose(
      small_updates.norms(result.updates),
      np.minimum(norms, clip_norm),
      rtol=1e-6,
    )
    assert result.was_clipped.tolist() == (norms > clip_norm).tolist()
    assert not result.was_non_finite.any()

  def test_low_precision_is_clipped_in_float32(self):
    updates = jnp.full((1, 1000), 0.1, jnp.bfloat16)
    clipped = clipping.clip_by_norm(updates, 1.0).updates
    assert clipped.dtype == jnp.float32
    assert small_updates.norms(clipped)[0] == pytest.approx(1.0, rel=1e-6)

  def test_mixed_precision(self):
    jax.config.update('jax_enable_x64', True)
    try:
      updates = {
        'a': np.array([[3e30], [3.0]], np.float32),
        'b': np.array([[4e30], [4.0]], np.float64),
      }
      result = clipping.clip_by_norm(updates, 1.0)
      np.testing.assert_allclose(
        small_updates.flat(result.updates), [[0.6, 0.8], [0.6, 0.8]], rtol=1e-6
      )
      huge = clipping.clip_by_norm(np.array([[3e300, 4e300]]), 1.0)
      np.testing.assert_allclose(huge.updates, [[0.6, 0.8]], rtol=1e-12)
    finally:
      jax.config.update('jax_enable_x64', False)

  def test_large_model(self):
    # The sum of millions of squares must not lose the small ones.
    updates = np.full((1, 4_000_000), 0.0101, np.float32)
    clipped = clipping.clip_by_norm(updates, 1.0).updates
    assert small_updates.norms(clipped)[0] == pytest.approx(1.0, rel=1e-5)

  @pytest.mark.parametrize('shape', [(1, 96, 2680), (1, 300, 300)])
  def test_small_numbers_beside_large_ones_count(self, shape):
    # Summed over both axes at once the small squares were lost beside 1: the
    # norm came out by 3e-5 too large.
    updates = np.full(shape, 2**-12.05, np.float32)
    updates[:, ::32, ::32] = 1
    clipped = clipping.clip_by_norm(updates, 0.5).updates
    assert small_updates.norms(clipped)[0] == pytest.approx(0.5, rel=5e-6)

  @hypothesis.settings(max_examples=50)
  @hypothesis.given(
    rows=st.lists(
      st.lists(st.floats(width=32), min_size=3, max_size=3),
      min_size=4,
      max_size=4,
    ),
    clip_norm=st.floats(1e-6, 1e6),
  )
  def test_properties(self, rows, clip_norm):
    updates = np.array(rows, np.float32)
    result = clipping.clip_by_norm(updates, clip_norm)
    assert np.all(small_updates.norms(result.updates) <= clip_norm * (1 + 1e-6))
    finite = np.isfinite(updates).all(axis=1)
    assert result.was_non_finite.tolist() == (~finite).tolist()
    kept = finite & ~np.asarray(result.was_clipped)
    # XLA may flush subnormal numbers to 0.
    np.testing.assert_allclose(
      result.updates[kept], updates[kept], rtol=0, atol=1.2e-38
    )
    # A clipped update keeps its direction.
    for row, clipped in zip(updates, result.updates, strict=True):
      if np.isfinite(row).all():
        largest = np.argmax(np.abs(row))
        assert np.sign(clipped[largest]) in (np.sign(row[largest]), 0)

  @pytest.mark.parametrize(
    ('updates', 'error', 'message'),
    [
      ({}, ValueError, 'updates must have at least one array'),
      ({'a': np.float32(1)}, ValueError, r"updates\['a'\] .* client axis"),
      (
        {'a': np.ones((2, 1)), 'b': np.ones((3, 1))},
        ValueError,
        r"updates\['b'\] .* other arrays, 2\. Found shape \(3, 1\)",
      ),
      ({'a': np.ones((2, 1), int)}, TypeError, r"updates\['a'\] .* int"),
    ],
  )
  def test_bad_updates(self, updates, error, message):
    with pytest.raises(error, match=message):
      clipping.clip_by_norm(updates, 1.0)

  @pytest.mark.parametrize('clip_norm', [0.0, -1.0, np.nan, jnp.array(-1.0)])
  def test_bad_clip_norm(self, clip_norm):
    with pytest.raises(ValueError, match='clip_norm must be positive'):
      clipping.clip_by_norm(np.ones((1, 1)), clip_norm)
