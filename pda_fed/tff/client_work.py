"""The work of a private client in a round, as a TFF client work process."""

import collections
from collections.abc import Sequence
from typing import Optional

import numpy as np
from pda_fed.tff import local_training
import tensorflow as tf
import tensorflow_federated as tff


def build_client_work(
  model_fn: local_training.ModelFn,
  optimizer: tff.learning.optimizers.Optimizer,
  *,
  zero_non_finite: bool = True,
  gradient_clip: Optional[float] = None,
  clip_norm: float = 0.0,
  canary_size: Optional[int] = None,
) -> tff.learning.templates.ClientWorkProcess:
  """Builds the process that trains locally and reports metrics.

  Every client has weight 1: under DP, a weight that depends on a user's data
  would leak it. (A canary has weight 0, which marks it for the audit; no sum
  uses it.) Clients whose update is not finite send zeros; `num_non_finite` in
  the measurements counts them. `num_diverged` counts clients whose training
  diverged. Like all training metrics, both are for simulations only: DP does
  not cover them.

  Args:
    model_fn: Returns a new model.
    optimizer: The optimizer of the local training.
    zero_non_finite: Whether a client sends zeros instead of a non-finite
      update. If False, clipping replaces non-finite updates. A method that
      changes updates before clipping needs False: it would take the zeros for
      an update.
    gradient_clip: See `local_training.build_local_training`.
    clip_norm: See `local_training.build_local_training`.
    canary_size: For an audit, the number of weights. A client's data is then a
      dictionary of `data`, its dataset, and `canary`, a dataset of one vector:
      the update of a canary, or an empty vector for a client.

  Returns:
    A client work process without state.
  """
  with tf.Graph().as_default():
    model = model_fn()
  weights_type = tff.learning.models.weights_type_from_model(model)
  data_type = tff.SequenceType(tff.types.tensorflow_to_type(model.input_spec))
  if canary_size is not None:
    vectors = tff.SequenceType(tff.TensorType(np.float32, [None]))
    data_type = tff.StructWithPythonType(
      [('canary', vectors), ('data', data_type)], collections.OrderedDict
    )
  aggregate_metrics = tff.learning.metrics.sum_then_finalize(
    model.metric_finalizers()
  )

  @tff.federated_computation
  def initialize():
    return tff.federated_value((), tff.SERVER)

  @tff.tensorflow.computation(weights_type, data_type)
  def train(weights, dataset):
    train_locally = local_training.build_local_training(
      model_fn,
      optimizer,
      zero_non_finite=zero_non_finite,
      gradient_clip=gradient_clip,
      clip_norm=clip_norm,
    )
    if canary_size is None:
      result = train_locally(weights, dataset)
      update, weight = list(result.update), tf.constant(1.0)
    else:
      result = train_locally(weights, dataset['data'])
      update, weight = _with_canary(
        result.update, dataset['canary'], canary_size
      )
    client_result = tff.learning.templates.ClientResult(
      update=update, update_weight=weight
    )
    return (
      client_result,
      result.metrics,
      1 - result.is_finite,
      result.has_diverged,
    )

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(weights_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, weights, client_data):
    result, metrics, non_finite, diverged = tff.federated_map(
      train, (weights, client_data)
    )
    measurements = tff.federated_zip(
      collections.OrderedDict(
        train=aggregate_metrics(metrics),
        num_non_finite=tff.federated_sum(non_finite),
        num_diverged=tff.federated_sum(diverged),
      )
    )
    return tff.templates.MeasuredProcessOutput(state, result, measurements)

  return tff.learning.templates.ClientWorkProcess(initialize, next_fn)


def _with_canary(
  update: Sequence[tf.Tensor], canary: tf.data.Dataset, size: int
) -> tuple[list[tf.Tensor], tf.Tensor]:
  """Returns a canary's update and 0, or a client's own update and 1."""
  vector = canary.get_single_element()
  # A canary has no data, so its own update is zeros.
  flat = tf.pad(vector, [[0, size - tf.size(vector)]])
  parts = tf.split(
    tf.ensure_shape(flat, [size]),
    [leaf.shape.num_elements() for leaf in update],
  )
  sent = [
    leaf + tf.reshape(part, leaf.shape)
    for leaf, part in zip(update, parts, strict=True)
  ]
  return sent, tf.cast(tf.equal(tf.size(vector), 0), tf.float32)
