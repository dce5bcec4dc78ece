"""Hand-written gradients against TensorFlow's own."""

import numpy as np
from pda_fed.models import fast_ops
import pytest
import tensorflow as tf

_RNG = np.random.default_rng(0)


def _normal(*shape):
  return tf.constant(_RNG.normal(size=shape), tf.float32)


def _value_and_gradients(function, arguments, weights):
  @tf.function  # As in a training step.
  def compute():
    with tf.GradientTape() as tape:
      tape.watch(arguments)
      value = function(*arguments)
    return [value, *tape.gradient(value, arguments, weights)]

  return compute()


def _assert_close(actual, expected):
  for a, e in zip(actual, expected, strict=True):
    np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('time', [1, 2, 7])
@pytest.mark.parametrize('batch', [0, 1, 3])
@pytest.mark.parametrize('fused_units', [0, 5], ids=['stacked', 'fused'])
def test_lstm_is_keras(monkeypatch, time, batch, fused_units):
  monkeypatch.setattr(fast_ops, '_FUSED_UNITS', fused_units)
  features, units = 4, 5
  cell = tf.keras.layers.LSTMCell(units)
  cell.build([None, features])

  def by_keras(inputs, kernel, recurrent_kernel, bias):
    cell.kernel, cell.recurrent_kernel = kernel, recurrent_kernel
    cell.bias = bias
    states = [tf.zeros([batch, units])] * 2
    outputs = []
    for x in tf.unstack(inputs):
      output, states = cell(x, states)
      outputs.append(output)
    return tf.stack(outputs)

  arguments = [
    _normal(time, batch, features),
    _normal(features, 4 * units),
    _normal(units, 4 * units),
    _normal(4 * units),
  ]
  weights = _normal(time, batch, units)
  _assert_close(
    _value_and_gradients(fast_ops.lstm, arguments, weights),
    _value_and_gradients(by_keras, arguments, weights),
  )


@pytest.mark.parametrize('scale', [1.0, 1e2, 1e4])
def test_cross_entropy_is_tensorflows(scale):
  # With large logits a target's probability is zero in float32, not its loss.
  targets = tf.constant([0, 2, 5, 2], tf.int64)
  logits, weights = scale * _normal(4, 6), _normal(4)

  def by_tensorflow(logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)

  _assert_close(
    _value_and_gradients(
      lambda x: fast_ops.cross_entropy(targets, x), [logits], weights
    ),
    _value_and_gradients(by_tensorflow, [logits], weights),
  )


def test_cross_entropy_of_what_is_no_number_is_none():
  losses = fast_ops.cross_entropy(
    tf.constant([0, 0]), tf.constant([[np.nan, 1.0], [np.inf, 1.0]])
  )
  assert not np.isfinite(losses).any()


def test_cross_entropy_refuses_classes_that_do_not_exist():
  with pytest.raises(tf.errors.InvalidArgumentError):
    fast_ops.cross_entropy(tf.constant([3]), tf.zeros([1, 3]))
