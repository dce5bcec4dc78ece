"""TensorFlow's stateless numbers without TensorFlow."""

import numpy as np
from pda_fed.jax import philox
import pytest
import tensorflow as tf

_SEEDS = [(0, 0), (123_456_789_012_345_678, 7), (2**63 - 1, 1599)]


@pytest.mark.parametrize('seed', _SEEDS)
@pytest.mark.parametrize('count', [1, 4, 100, 5003])
def test_numbers_are_tensorflows(seed, count):
  tf_seed = tf.constant(seed, tf.int64)
  np.testing.assert_array_equal(
    philox.uniform(seed, count), tf.random.stateless_uniform([count], tf_seed)
  )
  np.testing.assert_array_equal(
    philox.integers(seed, count, 16_656),
    tf.random.stateless_uniform([count], tf_seed, 0, 16_656, tf.int32),
  )


def test_a_known_number():
  # So that a change shows without TensorFlow, too.
  assert philox.integers((1, 2), 3, 1000).tolist() == [140, 849, 294]
