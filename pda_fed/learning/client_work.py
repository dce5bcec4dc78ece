"""What a private client does in a round, as a TFF client work process."""

import collections

from pda_fed.learning import local_training
import tensorflow as tf
import tensorflow_federated as tff


def build_client_work(
  model_fn: local_training.ModelFn,
  optimizer: tff.learning.optimizers.Optimizer,
  *,
  zero_non_finite: bool = True,
) -> tff.learning.templates.ClientWorkProcess:
  """Builds the process that trains locally and reports metrics.

  Every client has weight 1: under DP a weight that depends on a user's data
  would leak it. Clients whose update is not finite send zeros; their number is
  `num_non_finite` in the measurements, which, as all training metrics, is for
  the simulation and not covered by DP.

  Args:
    model_fn: Returns a new model.
    optimizer: The optimizer of the local training.
    zero_non_finite: Whether a client sends zeros for an update that is not
      finite. A method that changes updates before the clip leaves that to the
      clip, or it would see zeros as an update.

  Returns:
    A client work process without state.
  """
  with tf.Graph().as_default():
    model = model_fn()
  weights_type = tff.learning.models.weights_type_from_model(model)
  data_type = tff.SequenceType(tff.types.tensorflow_to_type(model.input_spec))
  aggregate_metrics = tff.learning.metrics.sum_then_finalize(
    model.metric_finalizers()
  )

  @tff.federated_computation
  def initialize():
    return tff.federated_value((), tff.SERVER)

  @tff.tensorflow.computation(weights_type, data_type)
  def train(weights, dataset):
    train_locally = local_training.build_local_training(
      model_fn, optimizer, zero_non_finite=zero_non_finite
    )
    result = train_locally(weights, dataset)
    client_result = tff.learning.templates.ClientResult(
      update=list(result.update), update_weight=tf.constant(1.0)
    )
    return client_result, result.metrics, 1 - result.is_finite

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(weights_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, weights, client_data):
    result, metrics, non_finite = tff.federated_map(
      train, (weights, client_data)
    )
    measurements = tff.federated_zip(
      collections.OrderedDict(
        train=aggregate_metrics(metrics),
        num_non_finite=tff.federated_sum(non_finite),
      )
    )
    return tff.templates.MeasuredProcessOutput(state, result, measurements)

  return tff.learning.templates.ClientWorkProcess(initialize, next_fn)
