"""The Keras classifier against its JAX twin."""

import dataclasses
import math

import jax
import numpy as np
from pda_fed.models import batches
from pda_fed.models import convolutional
from pda_fed.models import keras_classifier
from pda_fed.models import keras_names
import pytest
import tensorflow as tf

_LINEAR = convolutional.linear((7,), 3)
_SPECS = {
  'digits': convolutional.DIGITS,
  'emnist': convolutional.EMNIST,
  'relu': dataclasses.replace(convolutional.DIGITS, activation='relu'),
  'linear': _LINEAR,
  'linear_images': convolutional.linear((4, 5, 2), 3),
  'mlp': dataclasses.replace(_LINEAR, dense_sizes=(6, 5), activation='relu'),
}


@pytest.fixture(name='spec', params=_SPECS)
def fixture_spec(request):
  return _SPECS[request.param]


def _loss_and_gradients(model, inputs, labels):
  with tf.GradientTape() as tape:
    logits = model(inputs)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    loss = tf.reduce_mean(losses)
  return logits, tape.gradient(loss, model.trainable_variables)


def _gradients_agree(spec, seed):
  """Compares logits, and returns whether gradients agree for a draw."""
  rng = np.random.default_rng(seed)
  # Dense enough that no pooling window has two equal maxima.
  inputs = rng.normal(size=(5, *spec.image_shape)).astype(np.float32)
  labels = rng.integers(0, spec.num_classes, 5)
  ours = spec.jax_model()
  params = ours.init(3)
  model = keras_classifier.create_keras_model(spec)
  keras_names.set_weights(model, batches.named(params))
  logits, gradients = _loss_and_gradients(model, inputs, labels)
  names = keras_names.weight_names(model)
  expected_logits = jax.vmap(ours.logits, in_axes=(None, 0))(params, inputs)
  _, expected = batches.gradients(
    ours, params, (inputs, labels), np.ones(5, np.float32)
  )
  expected = [batches.named(expected)[name] for name in names]
  assert logits.shape == (5, spec.num_classes)
  np.testing.assert_allclose(logits, expected_logits, rtol=0, atol=1e-5)
  assert all(np.abs(array).max() > 1e-3 for array in expected)
  return all(
    np.allclose(found, array, rtol=0, atol=1e-5)
    for found, array in zip(gradients, expected, strict=True)
  )


def test_logits_and_gradients_are_those_of_jax(spec):
  # In one draw, rounding may choose another maximum of a pooling window, which
  # then gets the gradient: that depends on the processor.
  assert sum(_gradients_agree(spec, seed) for seed in range(3)) >= 2


def test_weights_are_those_of_the_spec(spec):
  model = keras_classifier.create_keras_model(spec, 1)
  weights = model.get_weights()
  names = keras_names.weight_names(model)
  shapes = {n: w.shape for n, w in zip(names, weights, strict=True)}
  assert shapes == batches.named_shapes(spec.jax_model())
  assert model.count_params() == spec.num_parameters
  for kernel, bias in zip(weights[::2], weights[1::2], strict=True):
    field = math.prod(kernel.shape[:-2])
    limit = math.sqrt(6 / (field * sum(kernel.shape[-2:])))
    assert 0.7 * limit < np.abs(kernel).max() <= limit
    assert not bias.any()


def test_parameter_counts_are_the_papers():
  counts = {
    convolutional.CIFAR10: 550_570,
    convolutional.EMNIST: 27_231,
    convolutional.DIGITS: 4_858,
  }
  for spec, count in counts.items():
    model = keras_classifier.create_keras_model(spec)
    assert model.count_params() == count


def test_each_layer_and_seed_has_its_own_weights():
  square = dataclasses.replace(
    convolutional.linear((4,), 4), dense_sizes=(4, 4)
  )
  first, again, other = (
    keras_classifier.create_keras_model(square, seed).get_weights()[::2]
    for seed in (1, 1, 2)
  )
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)
  assert len({kernel.tobytes() for kernel in first}) == 3
