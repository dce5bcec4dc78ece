"""Local training: with models of ours and of anybody."""

import collections

import numpy as np
from pda_fed import models
from pda_fed import tff as pda_tff
from pda_fed.models import keras_names
from pda_fed.models import keras_recurrent
from pda_fed.tff import local_training
import pytest
import tensorflow as tf
import tensorflow_federated as tff

_SPEC = models.RecurrentSpec(num_words=30, embedding_size=4, lstm_size=6)
_sgd = tff.learning.optimizers.build_sgdm


class _StockLoss(tf.keras.losses.Loss):
  """The mean cross-entropy without padding."""

  def call(self, y_true, y_pred):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y_true, y_pred)
    weights = tf.cast(tf.not_equal(y_true, tf.zeros_like(y_true)), tf.float32)
    return tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)


def _stock_model_fn():
  """The model of `_SPEC`, of Keras' layers and TensorFlow's loss alone."""
  layers = tf.keras.layers
  tokens = tf.TensorSpec([None, None], tf.int64)

  return tff.learning.models.from_keras_model(
    tf.keras.Sequential(
      [
        layers.Input(shape=(None,), dtype=tf.int64),
        layers.Embedding(_SPEC.vocabulary_size, _SPEC.embedding_size),
        layers.LSTM(_SPEC.lstm_size, return_sequences=True),
        layers.Dense(_SPEC.embedding_size),
        layers.Dense(_SPEC.vocabulary_size),
      ]
    ),
    loss=_StockLoss(),
    input_spec=(tokens, tokens),
    metrics=keras_recurrent.create_metrics(_SPEC),
  )


def _weights(rng):
  with tf.Graph().as_default():
    variables = pda_tff.build_model_fn(_SPEC)().trainable_variables
    shapes = [v.shape for v in variables]
  return tff.learning.models.ModelWeights(
    [tf.constant(rng.normal(size=s), tf.float32) for s in shapes], []
  )


@pytest.mark.slow
@pytest.mark.parametrize('momentum', [None, 0.9])
def test_our_model_trains_as_the_keras_one(momentum):
  rng = np.random.default_rng(0)
  weights = _weights(rng)
  sentences = rng.integers(1, _SPEC.vocabulary_size, (7, 9))
  sentences[2:4, 5:] = 0  # Padding.
  dataset = pda_tff.make_dataset(sentences, 3)
  # Ours has its variables in the order of their names.
  names = keras_names.weight_names(_SPEC.keras_model(0))
  order = np.argsort(names)
  of_keras = [weights.trainable[i] for i in np.argsort(order)]
  ours, stock = (
    local_training.build_local_training(fn, _sgd(0.5, momentum))(
      tff.learning.models.ModelWeights(values, []), dataset
    )
    for fn, values in (
      (pda_tff.build_model_fn(_SPEC), weights.trainable),
      (_stock_model_fn, of_keras),
    )
  )
  stock_update = [stock.update[i] for i in order]
  for a, b in zip(ours.update, stock_update, strict=True):
    assert np.abs(b).max() > 1e-3
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
  assert ours.metrics.keys() == stock.metrics.keys()
  for name, metric in ours.metrics.items():
    np.testing.assert_allclose(metric, stock.metrics[name], rtol=1e-5)
  assert ours.is_finite == 1


class _Line(tff.learning.models.VariableModel):
  """y = offset + slope * x, of which only the slope is a weight."""

  def __init__(self):
    self._slope = tf.Variable(tf.fill([1], 5.0), trainable=True)
    self._offset = tf.Variable(
      lambda: tf.fill([1], 2.0), shape=[1], dtype=tf.float32, trainable=True
    )

  @property
  def trainable_variables(self):
    return [self._slope]

  @property
  def non_trainable_variables(self):
    return []

  @property
  def local_variables(self):
    return []

  @property
  def input_spec(self):
    return tf.TensorSpec([None, 1], tf.float32)

  def predict_on_batch(self, x, training=True):
    return self._offset + self._slope * x

  def forward_pass(self, batch_input, training=True):
    loss = tf.reduce_sum(tf.square(self.predict_on_batch(batch_input)))
    return tff.learning.models.BatchOutput(loss, None, 1)

  def report_local_unfinalized_metrics(self):
    return collections.OrderedDict()

  def metric_finalizers(self):
    return collections.OrderedDict()

  def reset_metrics(self):
    pass


def test_initial_values_that_are_no_weights_count():
  train = local_training.build_local_training(_Line, _sgd(0.1))
  dataset = tf.data.Dataset.from_tensors(tf.constant([[3.0]]))
  weights = tff.learning.models.ModelWeights([tf.constant([1.0])], [])
  # d/dslope (offset + slope x)^2 = 2 (2 + 1 * 3) 3
  np.testing.assert_allclose(train(weights, dataset).update[0], [0.1 * 30])


def _initial_values(model_fn):
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    model = model_fn()
    session.run(tf.compat.v1.global_variables_initializer())
    return session.run(list(model.trainable_variables))


def test_weights_that_training_overwrites_are_not_initialized():
  model_fn = pda_tff.build_model_fn(_SPEC)
  cheap = _initial_values(lambda: local_training.create_model(model_fn))
  assert not any(np.any(value) for value in cheap)
  # The same function still gives a server its initial weights.
  assert any(np.any(value) for value in _initial_values(model_fn))


@pytest.mark.parametrize('bad', [np.nan, np.inf, 1e30])
def test_an_update_without_a_finite_norm_is_zero(bad):
  train = local_training.build_local_training(_Line, _sgd(0.1))
  dataset = tf.data.Dataset.from_tensors(tf.constant([[bad]], tf.float32))
  weights = tff.learning.models.ModelWeights([tf.constant([1.0])], [])
  result = train(weights, dataset)
  np.testing.assert_array_equal(result.update[0], [0.0])
  assert result.is_finite == 0
