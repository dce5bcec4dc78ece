"""Gaussian noise in TensorFlow: its seeds, its draws and its rounding.

Every draw of a run has a seed of its own, two 64-bit integers: the run's secret
and the number of the draw. TensorFlow's stateless generators encrypt these 128
bits by Philox with a fixed key, which is a permutation, into a key and the
upper half of a counter. So draws never share a key and a counter: the map from
secret, round and tensor to the generator's stream is one to one.

Not `tf.random.experimental.stateless_fold_in`: it returns `[uniform(seed),
data]` in the dtype of `data`. With int32 rounds, only 32 bits of the secret are
left, and two rounds of a run may have the same noise.
"""

import secrets
from typing import Optional

from pda_fed.privacy import rounding
import tensorflow as tf


def noise_secret(seed: Optional[int]) -> tf.Tensor:
  """Returns the secret of a run's noise, an int64 with 64 bits.

  Args:
    seed: 64 bits, or None for system entropy. Then the machine that traces the
      computation draws 64 bits, and each call gets a secret of its own.
  """
  bits = secrets.randbits(64) if seed is None else seed
  secret = tf.constant(bits - 2**64 if bits >= 2**63 else bits, tf.int64)
  if seed is not None:
    return secret
  # A process may be initialized many times. This op tells the calls apart. It
  # cannot be the secret: all that it ever returns follows from 32 bits, with
  # which TensorFlow seeds its generator when the program starts.
  call = tf.raw_ops.NonDeterministicInts(shape=[1], dtype=tf.int64)[0]
  return tf.bitwise.bitwise_xor(secret, call)


def draw_seed(
  secret: tf.Tensor, round_num: tf.Tensor, index: int, draws_per_round: int
) -> tf.Tensor:
  """Returns the seed of one draw; different draws have different seeds.

  Args:
    secret: The result of `noise_secret`.
    round_num: Index of the round, below 2^31.
    index: Index of the draw in its round, below `draws_per_round`.
    draws_per_round: Number of draws in each round, the same in all rounds.

  Returns:
    int64 [2]: the secret and the number of the draw. Both are exact, so secret,
    round and index can be computed from them.
  """
  draw = tf.cast(round_num, tf.int64) * draws_per_round + index
  return tf.stack([secret, draw])


def draw_normal(
  shape: tf.Tensor, seed: tf.Tensor, dtype: tf.DType
) -> tf.Tensor:
  """Draws normal samples whose tails are long enough for privacy.

  One draw never exceeds 5.7 standard deviations.
  `pda_jax.aggregation.draw_normal` explains why that is too short, and why
  half the sum of four draws is not.

  Args:
    shape: Shape of the result.
    seed: Two int64, used only for these samples; see `draw_seed`.
    dtype: Dtype of the result.

  Returns:
    Independent samples with mean 0 and variance 1.
  """
  four = tf.concat([[4], shape], axis=0)
  draws = tf.random.stateless_normal(four, seed, dtype=dtype)
  return tf.reduce_sum(draws, axis=0) / 2


def round_noised(values: tf.Tensor, stddev: tf.Tensor) -> tf.Tensor:
  """Rounds noised values to the grid of their noise.

  The low bits of float32 noise reveal where a sum is exactly zero; see
  `privacy.rounding`.

  Args:
    values: Values with noise.
    stddev: Standard deviation of the noise. If 0, values are not rounded.

  Returns:
    Multiples of a power of two, at most 2^-12 of `stddev`.
  """
  # Take the power of two below from the bits: logarithms are not exact.
  bits = tf.bitcast(tf.cast(stddev, tf.float32), tf.int32)
  power = tf.bitcast(tf.bitwise.bitwise_and(bits, 0x7F800000), tf.float32)
  step = tf.cast(power * rounding.GRID_STEP, values.dtype)
  safe = tf.where(step > 0, step, tf.ones_like(step))
  # The step is a power of two, so division and product are exact.
  return tf.where(step > 0, tf.round(values / safe) * step, values)
