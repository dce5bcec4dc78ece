"""What TFF's library builds runs in process: algorithms, aggregators."""

import collections

import numpy as np
from pda_fed.tff import runtime
import pytest
import tensorflow as tf
import tensorflow_federated as tff

_SGD = tff.learning.optimizers.build_sgdm(0.1)
_SPEC = (
  tf.TensorSpec([None, 3], tf.float32),
  tf.TensorSpec([None, 1], tf.float32),
)


def _keras_model() -> tf.keras.Model:
  inputs = tf.keras.layers.Input([3])
  outputs = tf.keras.layers.Dense(1, kernel_initializer='zeros')(inputs)
  return tf.keras.Model(inputs, outputs)


def _model_fn():
  return tff.learning.models.from_keras_model(
    _keras_model(),
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=_SPEC,
    metrics=[tf.keras.metrics.MeanAbsoluteError()],
  )


def _functional_model():
  return tff.learning.models.functional_model_from_keras(
    _keras_model(), tf.keras.losses.MeanSquaredError(), _SPEC
  )


def _reconstruction_model():
  inputs = tf.keras.layers.Input([3])
  local = tf.keras.layers.Dense(2)
  output = tf.keras.layers.Dense(1)
  model = tf.keras.Model(inputs, output(local(inputs)))
  return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
    keras_model=model,
    global_layers=[output],
    local_layers=[local],
    input_spec=_SPEC,
  )


def _users(count: int = 3) -> list[tf.data.Dataset]:
  rng = np.random.default_rng(0)
  found = []
  for size in range(2, 2 + count):
    x = rng.normal(size=(size, 3)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1)[:, np.newaxis]))
    found.append(data.batch(2))
  return found


_ALGORITHMS = {
  'weighted FedAvg': lambda a: a.build_weighted_fed_avg(_model_fn, _SGD),
  'functional model': lambda a: a.build_weighted_fed_avg(
    _functional_model(), _SGD
  ),
  'FedProx': lambda a: a.build_weighted_fed_prox(
    _model_fn, proximal_strength=0.1, client_optimizer_fn=_SGD
  ),
  'FedSGD': lambda a: a.build_fed_sgd(_model_fn, _SGD),
  'MimeLite': lambda a: a.build_weighted_mime_lite(_model_fn, _SGD),
  'robust': lambda a: a.build_weighted_fed_avg(
    _model_fn, _SGD, model_aggregator=tff.learning.robust_aggregator()
  ),
  'compression': lambda a: a.build_weighted_fed_avg(
    _model_fn, _SGD, model_aggregator=tff.learning.compression_aggregator()
  ),
  'secure': lambda a: a.build_weighted_fed_avg(
    _model_fn, _SGD, model_aggregator=tff.learning.secure_aggregator()
  ),
  'DP, adaptive clipping': lambda a: a.build_unweighted_fed_avg(
    _model_fn, _SGD, model_aggregator=tff.learning.dp_aggregator(0.5, 100.0)
  ),
  'reconstruction': lambda a: a.build_fed_recon(
    _reconstruction_model,
    loss_fn=tf.keras.losses.MeanSquaredError,
    client_optimizer_fn=_SGD,
    reconstruction_optimizer_fn=_SGD,
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', _ALGORITHMS)
def test_algorithms(name):
  process = _ALGORITHMS[name](tff.learning.algorithms)
  with runtime.in_process():
    state = process.initialize()
    before = process.get_model_weights(state)
    for _ in range(2):
      state = process.next(state, _users()).state
    after = process.get_model_weights(state)
  pairs = zip(tf.nest.flatten(before), tf.nest.flatten(after), strict=True)
  assert any(np.abs(b - a).max() > 0 for a, b in pairs)
  assert all(np.isfinite(w).all() for w in tf.nest.flatten(after))


def test_k_means():
  process = tff.learning.algorithms.build_fed_kmeans(
    num_clusters=2, data_shape=(1,)
  )
  users = [
    tf.data.Dataset.from_tensor_slices(np.float32([[x], [x + 1]]))
    for x in (0, 100)
  ]
  with runtime.in_process():
    state = process.initialize()
    for _ in range(3):
      state = process.next(state, users).state
    assert np.isfinite(process.get_model_weights(state)).all()


def test_evaluation_is_over_all_examples():
  process = tff.learning.algorithms.build_fed_eval(_model_fn)
  with runtime.in_process():
    state = process.initialize()
    output = process.next(state, _users())
  targets = np.concatenate([y for user in _users() for _, y in user])
  found = output.metrics['client_work']['eval']['current_round_metrics']
  assert found['mean_absolute_error'] == pytest.approx(
    np.abs(targets).mean(), rel=1e-5
  )


_AGGREGATORS = {
  'sum': tff.aggregators.SumFactory(),
  'unweighted mean': tff.aggregators.UnweightedMeanFactory(),
  'clipping': tff.aggregators.clipping_factory(
    1.0, tff.aggregators.SumFactory()
  ),
  'zeroing': tff.aggregators.zeroing_factory(1.0, tff.aggregators.SumFactory()),
  'secure sum': tff.aggregators.SecureSumFactory(10.0, -10.0),
  'secure, modular': tff.aggregators.EncodedSumFactory.quantize_above_threshold(
    quantization_bits=8, threshold=1
  ),
  'quantized secure': tff.aggregators.SecureSumFactory(
    tff.aggregators.PrivateQuantileEstimationProcess.no_noise(4.0, 0.9, 0.1)
  ),
  'Gaussian': tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
    0.1, 2, 1.0
  ),
  'tree': tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation(
    0.1, 2, 1.0, tf.TensorSpec([3], tf.float32)
  ),
  'concat': tff.aggregators.concat_factory(tff.aggregators.SumFactory()),
}


@pytest.mark.parametrize('name', _AGGREGATORS)
def test_aggregators(name):
  process = _AGGREGATORS[name].create(tff.TensorType(np.float32, [3]))
  clients = [np.float32([1, 2, 3]), np.float32([0.1, 0.2, 0.3])]
  with runtime.in_process():
    output = process.next(process.initialize(), clients)
  assert np.isfinite(output.result).all()
  if name in ('sum', 'concat'):
    np.testing.assert_allclose(output.result, [1.1, 2.2, 3.3], rtol=1e-6)
  if name == 'secure sum':
    np.testing.assert_allclose(output.result, [1.1, 2.2, 3.3], atol=1e-3)


@pytest.mark.slow
def test_sampling_and_personalization():
  sampling = tff.aggregators.UnweightedReservoirSamplingFactory(2).create(
    tff.TensorType(np.float32)
  )
  evaluate = tff.learning.algorithms.build_personalization_eval_computation(
    _model_fn,
    collections.OrderedDict(same=lambda: _metrics_of_a_model),
    _metrics_of_a_model,
  )
  with runtime.in_process():
    output = sampling.next(sampling.initialize(), [1.0, 2.0, 3.0])
    assert len(output.result) == 2
    weights = tff.learning.models.ModelWeights.from_model(_model_fn())
    weights = tff.learning.models.ModelWeights(
      [w.numpy() for w in weights.trainable], []
    )
    users = [
      collections.OrderedDict(train_data=u, test_data=u)
      for u in (user.unbatch() for user in _users())
    ]
    assert 'baseline_metrics' in evaluate(weights, users)


def _metrics_of_a_model(model, *data, **options):
  del model, options
  total = data[-1].reduce(0.0, lambda a, b: a + tf.reduce_sum(b[1]))
  return collections.OrderedDict(total=total)
