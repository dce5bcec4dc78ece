"""The Keras model of a `ConvolutionalSpec`; see `flax_convolutional`."""

import os

# TFF needs Keras 2. TensorFlow reads this when tf.keras is first used.
os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')

# isort: split
import numpy as np
from pda_fed.models import convolutional
import tensorflow as tf


def create_keras_model(
  spec: convolutional.ConvolutionalSpec, seed: int = 0
) -> tf.keras.Model:
  """Creates the model: inputs [batch, *image_shape] to logits [batch, classes].

  Its weights have the names and shapes of the JAX model's. Its initial weights
  have the same distributions but not the same values.

  Args:
    spec: The sizes.
    seed: The seed of the initial weights.

  Returns:
    An uncompiled `tf.keras.Model` with float32 inputs.
  """
  layers = tf.keras.layers
  num_layers = len(spec.convolutions) + len(spec.dense_sizes) + 1
  # Each layer needs its own seed, because equal seeds give equal values. Keras
  # takes 31 bits.
  state = np.random.SeedSequence(seed).generate_state(num_layers) >> 1
  glorot = map(tf.keras.initializers.GlorotUniform, state.tolist())
  x = inputs = layers.Input(spec.image_shape, dtype=tf.float32)
  for i, c in enumerate(spec.convolutions):
    x = layers.Conv2D(
      c.filters,
      c.size,
      c.stride,
      c.padding,
      activation=spec.activation,
      kernel_initializer=next(glorot),
      name=f'conv_{i + 1}',
    )(x)
    if c.pool_size is not None:
      x = layers.MaxPool2D(c.pool_size, c.pool_stride)(x)
  x = layers.Flatten()(x)
  for i, size in enumerate(spec.dense_sizes):
    x = layers.Dense(
      size,
      spec.activation,
      kernel_initializer=next(glorot),
      name=f'dense_{i + 1}',
    )(x)
  logits = layers.Dense(
    spec.num_classes, kernel_initializer=next(glorot), name='logits'
  )(x)
  return tf.keras.Model(inputs, logits)
