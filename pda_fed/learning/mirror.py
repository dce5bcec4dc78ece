"""The mirror step of PDA-DPMD, at the server.

"Public Data-Assisted Mirror Descent for Private Model Training" (Amid et al.,
ICML 2022, arXiv:2112.00193), equation (3), its first-order mirror step:

    theta_{t+1} = theta_t - eta (alpha_t (g_t + b_t)
                                 + (1 - alpha_t) grad Psi(theta_t)).

g_t + b_t is the noised mean of the private updates, as it leaves the DP
aggregator: everything here is post-processing and cannot change epsilon.
"""

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np
from pda_fed.common import validate
from pda_fed.learning import public_update as public_update_lib
import tensorflow as tf
import tensorflow_federated as tff


def mix(private: Any, public: Any, alpha: tf.Tensor) -> Any:
  """Returns alpha * private + (1 - alpha) * public.

  At alpha 1 it is `private` and at 0 `public`, bit for bit: the other one is
  not touched, whatever it holds.

  Args:
    private: A structure of tensors.
    public: The same structure.
    alpha: A scalar in [0, 1].
  """

  def mixed(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    weight = tf.cast(alpha, a.dtype)
    both = weight * a + (1 - weight) * b
    return tf.where(weight >= 1, a, tf.where(weight <= 0, b, both))

  return tf.nest.map_structure(mixed, private, public)


def _dot(a: Sequence[tf.Tensor], b: Sequence[tf.Tensor]) -> tf.Tensor:
  return tf.add_n([tf.reduce_sum(x * y) for x, y in zip(a, b, strict=True)])


def mirror_step(
  private: Sequence[tf.Tensor],
  public: public_update_lib.PublicResult,
  alpha: tf.Tensor,
) -> tuple[list[tf.Tensor], collections.OrderedDict]:
  """Mixes a public update at theta_t into the noised private one.

  Args:
    private: g_t + b_t.
    public: grad Psi(theta_t), in the unit of the private update.
    alpha: alpha_t.

  Returns:
    What the server optimizer descends, and measurements of it.
  """
  private_leaves, public_leaves = list(private), list(public.update)
  mixed = mix(private_leaves, public_leaves, alpha)
  private_norm = tf.linalg.global_norm(private_leaves)
  public_norm = tf.linalg.global_norm(public_leaves)
  return mixed, collections.OrderedDict(
    alpha=alpha,
    public_loss=public.loss,
    private_update_norm=private_norm,
    public_update_norm=public_norm,
    mixed_update_norm=tf.linalg.global_norm(mixed),
    cosine=tf.math.divide_no_nan(
      _dot(private_leaves, public_leaves), private_norm * public_norm
    ),
  )


def alpha_at(alphas: tf.Tensor, round_num: tf.Tensor) -> tf.Tensor:
  """Returns alpha of a round; the last of `alphas` holds from then on."""
  return alphas[tf.minimum(round_num, tf.shape(alphas)[0] - 1)]


def build_mirror_finalizer(
  inner_finalizer: tff.learning.templates.FinalizerProcess,
  public_update: public_update_lib.PublicUpdate,
  alpha: Sequence[float],
) -> tff.learning.templates.FinalizerProcess:
  """Wraps a finalizer: it gets the mixed update instead of the private one.

  Example:

  ```
  sgd = tff.learning.optimizers.build_sgdm(1.0)
  inner = tff.learning.templates.build_apply_optimizer_finalizer(
      sgd, model_weights_type)
  finalizer = build_mirror_finalizer(
      inner, public_update, schedules.cosine(K=100).values(100))
  ```

  Args:
    inner_finalizer: Applies an update to the model, by an optimizer for
      example.
    public_update: How the public update is computed.
    alpha: alpha_0, alpha_1, ..., as from `schedules.cosine(K).values(T)`; the
      last one holds from then on.

  Returns:
    A finalizer whose state holds the inner one's and the round, and whose
    measurements are the inner one's and alpha, the public loss, the norms of
    the three updates and the cosine between the private and the public one.

  Raises:
    ValueError: If `alpha` is empty or outside [0, 1].
  """
  alphas = np.asarray(alpha, np.float32)
  if alphas.ndim != 1 or not alphas.size:
    raise ValueError(
      'alpha must be a list of numbers, or a schedule where one is taken,'
      f' schedules.constant(0.5) for example. Found {alpha!r}.'
    )
  validate.in_range(0, 1, alpha=float(alphas.min()))
  validate.in_range(0, 1, alpha=float(alphas.max()))
  _, weights_type, update_type = inner_finalizer.next.type_signature.parameter

  @tff.tensorflow.computation(np.int32)
  def increment(round_num):
    return round_num + 1

  # A computation of its own, which needs nothing of the private clients: TFF
  # runs it while they train.
  @tff.tensorflow.computation(weights_type.member, np.int32)
  def compute_public(weights, round_num):
    update, loss = public_update.build()(weights, round_num)
    return list(update), loss

  @tff.tensorflow.computation(
    update_type.member, compute_public.type_signature.result, np.int32
  )
  def step(private, public, round_num):
    return mirror_step(
      private,
      public_update_lib.PublicResult(*public),
      alpha_at(tf.constant(alphas), round_num),
    )

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(
      collections.OrderedDict(
        inner=inner_finalizer.initialize(),
        round_num=tff.federated_value(0, tff.SERVER),
      )
    )

  @tff.federated_computation(
    initialize.type_signature.result, weights_type, update_type
  )
  def next_fn(state, weights, update):
    public = tff.federated_map(compute_public, (weights, state['round_num']))
    mixed, measurements = tff.federated_map(
      step, (update, public, state['round_num'])
    )
    inner = inner_finalizer.next(state['inner'], weights, mixed)
    return tff.templates.MeasuredProcessOutput(
      tff.federated_zip(
        collections.OrderedDict(
          inner=inner.state,
          round_num=tff.federated_map(increment, state['round_num']),
        )
      ),
      inner.result,
      tff.federated_zip(
        collections.OrderedDict(mirror=measurements, inner=inner.measurements)
      ),
    )

  return tff.learning.templates.FinalizerProcess(initialize, next_fn)
