import jax.numpy as jnp
import numpy as np
from pda_fed.common import divergence
import pytest
import tensorflow as tf

# First loss, mean loss, norm of the update; whether it diverged. The weights
# have norm 3 and the clip is 0.5.
_CASES = [
  (5.0, 4.0, 1.0, False),
  (5.0, 10.0, 1.0, False),  # Twice the first loss is the bound.
  (5.0, 10.5, 1.0, True),
  (0.01, 1.9, 1.0, False),  # A small loss may double by chance.
  (0.01, 2.1, 1.0, True),
  (5.0, 4.0, 30.0, False),  # Ten times the weights.
  (5.0, 4.0, 31.0, True),
  (5.0, np.nan, 1.0, True),
  (np.nan, np.nan, 1.0, True),
  (5.0, 4.0, np.inf, True),
  (5.0, 4.0, np.nan, True),
]


@pytest.mark.parametrize('as_array', [np.array, jnp.array, tf.constant])
def test_bounds(as_array):
  first, mean, norm, expected = map(list, zip(*_CASES, strict=True))
  found = divergence.has_diverged(
    *(as_array(values, dtype='float32') for values in (first, mean, norm)),
    3.0,
    0.5,
  )
  assert np.asarray(found).tolist() == expected


def test_the_clip_counts_where_weights_are_zero():
  found = divergence.has_diverged(
    np.ones(2), np.ones(2), np.array([4.9, 5.1]), 0.0, 0.5
  )
  assert found.tolist() == [False, True]
