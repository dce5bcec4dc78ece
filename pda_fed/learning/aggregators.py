"""DP aggregation for TFF, from a privacy plan.

Clip each client's update, sum, add Gaussian noise, divide by the expected
cohort. tensorflow_privacy's query for this draws noise that no seed controls,
so a run could not be repeated or resumed; ours keeps (seed, round) in its
state and draws from stateless generators.
"""

import collections
import secrets
from typing import Optional

import dp_accounting
from pda_fed import _validate
from pda_fed import privacy
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp


def clip_update(update, clip_norm: tf.Tensor):
  """Scales a structure of tensors to a global L2 norm of at most `clip_norm`.

  A structure whose norm is not a finite number becomes zero: no factor could
  bound it.

  Args:
    update: A structure of float tensors.
    clip_norm: The bound.

  Returns:
    The clipped structure.
  """
  norm = tf.linalg.global_norm(tf.nest.flatten(update))
  factor = tf.minimum(1.0, tf.math.divide_no_nan(clip_norm, norm))
  # A norm of 0 divides to 0, and 0 times zero is the right answer.
  return tf.nest.map_structure(
    # Not factor * leaf alone: 0 * nan is nan.
    lambda leaf: tf.where(
      tf.math.is_finite(norm), factor * leaf, tf.zeros_like(leaf)
    ),
    update,
  )


class SeededGaussianSumQuery(tfp.GaussianSumQuery):
  """A Gaussian sum whose noise is a function of a seed and the round."""

  _GlobalState = collections.namedtuple(
    '_GlobalState', ['l2_norm_clip', 'stddev', 'seed', 'round_num']
  )

  def __init__(self, l2_norm_clip: float, stddev: float, seed: int):
    """Initializes the query.

    Args:
      l2_norm_clip: The bound on the norm of a record.
      stddev: The standard deviation of the noise that the sum gets.
      seed: 64 bits.
    """
    super().__init__(l2_norm_clip, stddev)
    self._seed = seed

  def initial_global_state(self):
    """See the base class."""
    return self._GlobalState(
      tf.constant(self._l2_norm_clip, tf.float32),
      tf.constant(self._stddev, tf.float32),
      tf.bitcast(
        tf.constant([self._seed & 0xFFFFFFFF, self._seed >> 32], tf.uint32),
        tf.int32,
      ),
      tf.constant(0, tf.int32),
    )

  def preprocess_record(self, params, record):
    """See the base class."""
    return clip_update(record, params)

  def get_noised_result(self, sample_state, global_state):
    """See the base class."""
    fold_in = tf.random.experimental.stateless_fold_in
    round_seed = fold_in(global_state.seed, global_state.round_num)
    noised = [
      total
      + tf.random.stateless_normal(
        tf.shape(total), fold_in(round_seed, index), dtype=total.dtype
      )
      * tf.cast(global_state.stddev, total.dtype)
      for index, total in enumerate(tf.nest.flatten(sample_state))
    ]
    event = dp_accounting.GaussianDpEvent(
      global_state.stddev / global_state.l2_norm_clip
    )
    return (
      tf.nest.pack_sequence_as(sample_state, noised),
      global_state._replace(round_num=global_state.round_num + 1),
      event,
    )


def build_dp_aggregator(
  plan: privacy.PrivacyPlan, noise_seed: Optional[int] = None
) -> tff.aggregators.UnweightedAggregationFactory:
  """Builds the aggregator that does what the plan says.

  Args:
    plan: Gives the clip, the noise and the expected cohort.
    noise_seed: 64 bits from which all noise follows. Whoever knows it can take
      the noise off again. By default it is drawn from the system's entropy
      and kept nowhere but in the process's state.

  Returns:
    A factory of unweighted aggregation processes: under DP every client counts
    the same.

  Raises:
    ValueError: If `noise_seed` does not fit into 64 bits.
  """
  if noise_seed is None:
    noise_seed = secrets.randbits(64)
  _validate.integers(0, noise_seed=noise_seed)
  _validate.in_range(0, 2**64 - 1, noise_seed=noise_seed)
  query = tfp.NormalizedQuery(
    SeededGaussianSumQuery(
      plan.clip_norm, plan.clip_norm * plan.noise_multiplier, noise_seed
    ),
    denominator=float(plan.expected_cohort),
  )
  return tff.aggregators.DifferentiallyPrivateFactory(query)
