"""A step of tensorflow-privacy's DP-SGD against ours."""

import jax
import numpy as np
from pda_fed import clipping
from pda_fed.models import batches
from pda_fed.models import convolutional
from pda_fed.models import keras_names
import pytest
import tensorflow as tf
from tensorflow_privacy.privacy.optimizers import dp_optimizer_keras

pytestmark = pytest.mark.slow


def test_clipped_sums_agree():
  spec = convolutional.EMNIST
  model = spec.jax_model()
  rng = np.random.default_rng(0)
  images = rng.normal(size=(6, *spec.image_shape)).astype(np.float32)
  labels = rng.integers(0, spec.num_classes, 6)
  params = model.init(0)
  keras_model = spec.keras_model(0)
  keras_names.set_weights(keras_model, batches.named(params))
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
  sums, info = jax.jit(clipping.clipped_grad(model.loss, 1.0, has_aux=True))(
    params, images, labels
  )
  assert int(info.clipped) == 6
  found = batches.named(sums)
  names = keras_names.weight_names(keras_model)
  # tensorflow-privacy divides by the number of microbatches. Our norms are
  # rounded up.
  for name, (mean, _) in zip(names, pairs, strict=True):
    np.testing.assert_allclose(
      found[name], 6 * mean.numpy(), rtol=1e-4, atol=1e-5
    )
