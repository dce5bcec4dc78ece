"""DP aggregators for TFF, built from a privacy plan.

They clip each client's update, sum the updates, add Gaussian noise, round to a
grid that hides the low bits of float32 (see `privacy.rounding`), and divide by
the expected cohort. The queries of tensorflow_privacy draw noise without a seed
(or, for trees, seeded by the clock), so a run could not be repeated or resumed.
The queries here keep the seed and the round in their state and draw from
stateless generators.
"""

import collections
from typing import Optional

import dp_accounting
from pda_fed import privacy
from pda_fed.common import validate
from pda_fed.tff import noise
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp


def clip_update(update, clip_norm: tf.Tensor):
  """Scales a structure of tensors to a global L2 norm of at most `clip_norm`.

  A structure with a NaN or an infinity is replaced by zeros: no factor could
  bound it.

  Args:
    update: A structure of float tensors.
    clip_norm: The bound on the norm.

  Returns:
    The clipped structure.
  """
  norm = _norm(update)
  clip_norm = tf.cast(clip_norm, tf.float64)
  # For a norm of 0, divide_no_nan returns 0, which leaves the zeros unchanged.
  factor = tf.where(
    tf.math.is_finite(norm),
    tf.minimum(tf.ones_like(norm), tf.math.divide_no_nan(clip_norm, norm)),
    0.0,
  )
  return tf.nest.map_structure(
    # Not leaf * factor: nan * 0 is nan. In float64, because the factor for an
    # update of norm 1e38 may underflow float32.
    lambda leaf: tf.cast(
      tf.math.multiply_no_nan(tf.cast(leaf, tf.float64), factor), leaf.dtype
    ),
    update,
  )


def _norm(update) -> tf.Tensor:
  """Returns the global norm in float64, where squares do not overflow."""
  return tf.sqrt(
    tf.add_n(
      [
        tf.reduce_sum(tf.square(tf.cast(leaf, tf.float64)))
        for leaf in tf.nest.flatten(update)
      ]
    )
  )


class _TreeNoise(tfp.tree_aggregation.GaussianNoiseGenerator):
  """Noise of tree nodes, without clock seeds and without truncated tails."""

  def initialize(self):
    """See the base class."""
    seeds = noise.draw_seed(noise.noise_secret(self._seed), 0, 0, 1)
    return self.make_state(seeds, self._noise_std)

  def next(self, state):
    """See the base class."""
    specs = tf.nest.flatten(self._specs)
    values = [
      state.stddev
      * noise.draw_normal(spec.shape, state.seeds + [0, i], tf.float32)
      for i, spec in enumerate(specs)
    ]
    end = self.make_state(state.seeds + [0, len(specs)], state.stddev)
    return tf.nest.pack_sequence_as(self._specs, values), end


class PlannedSumQuery(tfp.SumAggregationDPQuery):
  """The clipped and noised sum of a plan with the Gaussian mechanism.

  With adaptive clipping ("Differentially Private Learning with Adaptive
  Clipping", Andrew et al., NeurIPS 2021, arXiv:1905.03871, Algorithm 1) a
  record has a second value: +1/2 if its norm was at most the clipping norm,
  else -1/2. The noised sum of these values sets the clipping norm of the next
  round.
  """

  _GlobalState = collections.namedtuple(
    '_GlobalState', ['clip_norm', 'secret', 'round_num']
  )

  def __init__(self, plan: privacy.PrivacyPlan, seed: Optional[int]):
    """Initializes the query.

    Args:
      plan: A plan with the 'gaussian' mechanism.
      seed: 64 bits, or None for fresh noise at each initialization.
    """
    self._plan = plan
    self._adaptive = plan.adaptive_clipping
    self._seed = seed

  def initial_global_state(self):
    """See the base class."""
    return self._GlobalState(
      tf.constant(self._plan.clip_norm, tf.float32),
      noise.noise_secret(self._seed),
      tf.constant(0, tf.int32),
    )

  def derive_sample_params(self, global_state):
    """See the base class."""
    return global_state.clip_norm

  def initial_sample_state(self, template=None):
    """See the base class."""
    zeros = super().initial_sample_state(template)
    return (zeros, tf.constant(0.0)) if self._adaptive else zeros

  def preprocess_record(self, params, record):
    """See the base class."""
    clipped = clip_update(record, params)
    if not self._adaptive:
      return clipped
    norm = _norm(record)
    # Non-finite updates become zeros, which are below the clipping norm.
    is_below = norm <= tf.cast(params, tf.float64)
    is_below |= ~tf.math.is_finite(norm)
    below = tf.where(is_below, 0.5, -0.5)
    return clipped, below

  def get_noised_result(self, sample_state, global_state):
    """See the base class."""
    total, below = sample_state if self._adaptive else (sample_state, None)
    leaves = tf.nest.flatten(total)
    draws = len(leaves) + bool(self._adaptive)

    def noised(value: tf.Tensor, index: int, stddev: tf.Tensor) -> tf.Tensor:
      seed = noise.draw_seed(
        global_state.secret, global_state.round_num, index, draws
      )
      drawn = noise.draw_normal(tf.shape(value), seed, value.dtype)
      return noise.round_noised(
        value + drawn * tf.cast(stddev, value.dtype), stddev
      )

    stddev = global_state.clip_norm * self._plan.update_noise_multiplier
    result = tf.nest.pack_sequence_as(
      total, [noised(leaf, i, stddev) for i, leaf in enumerate(leaves)]
    )
    clip_norm = global_state.clip_norm
    if self._adaptive:
      count = noised(below, len(leaves), self._plan.count_stddev)
      share = count / self._plan.expected_cohort + 0.5
      clip_norm *= tf.exp(
        -self._adaptive.learning_rate * (share - self._adaptive.target_quantile)
      )
    state = global_state._replace(
      clip_norm=clip_norm, round_num=global_state.round_num + 1
    )
    event = dp_accounting.GaussianDpEvent(
      tf.constant(self._plan.noise_multiplier, tf.float32)
    )
    return result, state, event

  def derive_metrics(self, global_state):
    """See the base class; DP covers releasing the clipping norm."""
    return collections.OrderedDict(clip_norm=global_state.clip_norm)


class _TreeQuery(tfp.TreeResidualSumQuery):
  """Tree aggregation whose releases are rounded to the grid of a node."""

  def __init__(
    self, record_specs, generator: _TreeNoise, plan: privacy.PrivacyPlan
  ):
    super().__init__(
      record_specs, generator, clip_fn=clip_update, clip_value=plan.clip_norm
    )
    self._node_stddev = plan.clip_norm * plan.noise_multiplier

  def get_noised_result(self, sample_state, global_state):
    """See the base class; each release has the noise of at least one node."""
    result, *others = super().get_noised_result(sample_state, global_state)
    rounded = tf.nest.map_structure(
      lambda leaf: noise.round_noised(leaf, self._node_stddev), result
    )
    return rounded, *others


class _TreeFactory(tff.aggregators.UnweightedAggregationFactory):
  """Tree aggregation with a new tree each epoch."""

  def __init__(
    self,
    plan: privacy.PrivacyPlan,
    seed: Optional[int],
    mean_clip_norm: Optional[float],
  ):
    self._plan = plan
    self._seed = seed
    self._mean_clip_norm = mean_clip_norm

  def create(self, value_type):
    """See the base class."""
    plan = self._plan
    record_specs = tff.types.type_to_tf_tensor_specs(value_type)
    generator = _TreeNoise(
      plan.clip_norm * plan.noise_multiplier, record_specs, self._seed
    )
    query = tfp.RestartQuery(
      _TreeQuery(record_specs, generator, plan),
      tfp.restart_query.PeriodicRoundRestartIndicator(plan.rounds_per_epoch),
    )
    return _mean_factory(query, plan, self._mean_clip_norm).create(value_type)


class _MeanQuery(tfp.NormalizedQuery):
  """A noised sum divided by a constant, optionally clipped again."""

  def __init__(self, query, denominator, mean_clip_norm: Optional[float]):
    super().__init__(query, denominator)
    self._mean_clip_norm = mean_clip_norm

  def get_noised_result(self, sample_state, global_state):
    """See the base class; clipping here is post-processing."""
    mean, state, event = super().get_noised_result(sample_state, global_state)
    if self._mean_clip_norm is not None:
      mean = clip_update(mean, tf.constant(self._mean_clip_norm))
    return mean, state, event


def _mean_factory(
  query: tfp.SumAggregationDPQuery,
  plan: privacy.PrivacyPlan,
  mean_clip_norm: Optional[float],
) -> tff.aggregators.UnweightedAggregationFactory:
  return tff.aggregators.DifferentiallyPrivateFactory(
    _MeanQuery(query, float(plan.expected_cohort), mean_clip_norm)
  )


def build_dp_aggregator(
  plan: privacy.PrivacyPlan,
  noise_seed: Optional[int] = None,
  *,
  mean_clip_norm: Optional[float] = None,
) -> tff.aggregators.UnweightedAggregationFactory:
  """Builds the aggregator of a privacy plan.

  Example:

  ```
  factory = build_dp_aggregator(plan)
  process = factory.create(tff.TensorType(np.float32, [20]))
  with runtime.in_process():
    output = process.next(process.initialize(), client_updates)
  ```

  Args:
    plan: Sets the clipping norm, the noise and the expected cohort.
    noise_seed: 64-bit seed of all noise. Keep it secret: anyone who knows it
      can remove the noise. By default the process draws 64 bits from system
      entropy when it is built, and each call of `initialize` makes a seed of
      its own from them; do not publish the process then. The noise is a
      function of the state, so calling `next` twice on one state repeats it.
      This makes a run resumable, but it must not be done with different
      clients.
    mean_clip_norm: Clips the noised mean again, as the paper does in its image
      tasks. This is post-processing.

  Returns:
    A factory of unweighted aggregation processes: under DP all clients have the
    same weight.

  Raises:
    ValueError: If `noise_seed` does not fit into 64 bits, or `mean_clip_norm`
      is not positive.
  """
  if mean_clip_norm is not None:
    validate.positive(mean_clip_norm=mean_clip_norm)
  if noise_seed is not None:
    validate.integers(0, noise_seed=noise_seed)
    validate.in_range(0, 2**64 - 1, noise_seed=noise_seed)
  if plan.mechanism == 'tree':
    return _TreeFactory(plan, noise_seed, mean_clip_norm)
  return _mean_factory(PlannedSumQuery(plan, noise_seed), plan, mean_clip_norm)


def clip_norm_of(
  plan: privacy.PrivacyPlan, state_type: tff.Type
) -> tff.Computation:
  """Returns a computation that reads the clipping norm from the state.

  Args:
    plan: The plan of the aggregator.
    state_type: The type of the aggregator's state.
  """

  @tff.tensorflow.computation(state_type)
  def compute(state):
    if plan.adaptive_clipping is None:
      return tf.constant(plan.clip_norm, tf.float32)
    return state.query_state.numerator_state.clip_norm

  return compute


def with_audit(
  aggregator: tff.templates.AggregationProcess,
  plan: privacy.PrivacyPlan,
  mean_clip_norm: Optional[float] = None,
) -> tff.templates.AggregationProcess:
  """Returns an aggregator that also measures the inputs of an audit.

  Differential privacy holds against an adversary who knows all other data. So
  the sum without canaries is measured, too. It is not private.

  Args:
    aggregator: An aggregator of values and weights. Weights are 1 for a client
      and 0 for a canary; the aggregator ignores them.
    plan: The plan of the aggregator.
    mean_clip_norm: Clips the result after it was measured.

  Returns:
    An aggregator whose measurements are `inner`, `noised_mean` and `known_sum`.
  """
  state_type, value_type, weight_type = aggregator.next.type_signature.parameter
  find_clip_norm = clip_norm_of(plan, state_type.member)

  @tff.tensorflow.computation(
    value_type.member, weight_type.member, find_clip_norm.type_signature.result
  )
  def clip_unless_canary(value, weight, clip_norm):
    return tf.nest.map_structure(
      lambda leaf: tf.where(weight > 0, leaf, tf.zeros_like(leaf)),
      clip_update(value, clip_norm),
    )

  @tff.tensorflow.computation(value_type.member)
  def clip_mean(mean):
    if mean_clip_norm is None:
      return mean
    return clip_update(mean, tf.constant(mean_clip_norm))

  @tff.federated_computation(state_type, value_type, weight_type)
  def next_fn(state, value, weight):
    output = aggregator.next(state, value, weight)
    clip_norm = tff.federated_map(find_clip_norm, state)
    clipped = tff.federated_map(
      clip_unless_canary, (value, weight, tff.federated_broadcast(clip_norm))
    )
    measured = collections.OrderedDict(
      inner=output.measurements,
      noised_mean=output.result,
      known_sum=tff.federated_sum(clipped),
    )
    return tff.templates.MeasuredProcessOutput(
      output.state,
      tff.federated_map(clip_mean, output.result),
      tff.federated_zip(measured),
    )

  return tff.templates.AggregationProcess(aggregator.initialize, next_fn)
