"""A step of tensorflow-privacy's DP-SGD against ours."""

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.jax.sample_level import layer_sums
from pda_fed.jax.sample_level import per_example
from pda_fed.models import convolutional
from pda_fed.models import jax_convolutional
import pytest
import tensorflow as tf
from tensorflow_privacy.privacy.optimizers import dp_optimizer_keras

pytestmark = pytest.mark.slow


def _keras_model(spec):
  """The same model of Keras' layers."""
  layers = [tf.keras.layers.Input(spec.image_shape)]
  for c in spec.convolutions:
    layers += [
      tf.keras.layers.Conv2D(
        c.filters, c.size, c.stride, c.padding, activation=spec.activation
      ),
      tf.keras.layers.MaxPool2D(c.pool_size, c.pool_stride),
    ]
  layers.append(tf.keras.layers.Flatten())
  for size in spec.dense_sizes:
    layers.append(tf.keras.layers.Dense(size, spec.activation))
  layers.append(tf.keras.layers.Dense(spec.num_classes))
  return tf.keras.Sequential(layers)


@pytest.mark.parametrize('rounds_up', [False, True])
def test_clipped_sums_agree(monkeypatch, rounds_up):
  if not rounds_up:  # But for what is added to norms, they are the same.
    monkeypatch.setattr(layer_sums, '_ROUNDING', 0.0)
  spec = convolutional.EMNIST
  model = jax_convolutional.ConvolutionalModel(spec)
  rng = np.random.default_rng(0)
  images = rng.normal(size=(6, *spec.image_shape)).astype(np.float32)
  labels = rng.integers(0, spec.num_classes, 6)
  params = model.initial_params(0)
  keras_model = _keras_model(spec)
  keras_model.set_weights(params)
  optimizer = dp_optimizer_keras.DPKerasSGDOptimizer(
    l2_norm_clip=1.0, noise_multiplier=0.0, num_microbatches=6
  )
  with tf.GradientTape(persistent=True) as tape:
    losses = tf.keras.losses.sparse_categorical_crossentropy(
      labels, keras_model(images), from_logits=True
    )
  pairs = optimizer._compute_gradients(
    losses, keras_model.trainable_variables, tape=tape
  )
  ours, _ = jax.jit(
    lambda p: per_example.clipped_sum(
      model, p, jnp.asarray(images), jnp.asarray(labels), np.ones(6), 1.0
    )
  )(tuple(map(jnp.asarray, params)))
  assert int(ours.num_clipped) == 6
  # tensorflow-privacy divides by the number of microbatches.
  for found, (mean, _) in zip(ours.total, pairs, strict=True):
    # Ours are shorter by 8e-5, which rounding could have taken off norms.
    rtol = 1e-4 if rounds_up else 0
    np.testing.assert_allclose(found, 6 * mean.numpy(), rtol=rtol, atol=1e-5)
