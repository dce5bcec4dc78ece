"""A linear model for TFF, and the same training written in numpy."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

Weights = list[np.ndarray]  # kernel [features, 1], bias [1]
Examples = tuple[np.ndarray, np.ndarray]


def build_model_fn(features: int):
  def model_fn():
    inputs = tf.keras.layers.Input([features])
    outputs = tf.keras.layers.Dense(1, kernel_initializer='zeros')(inputs)
    return tff.learning.models.from_keras_model(
      tf.keras.Model(inputs, outputs),
      loss=tf.keras.losses.MeanSquaredError(),
      input_spec=(
        tf.TensorSpec([None, features], tf.float32),
        tf.TensorSpec([None, 1], tf.float32),
      ),
    )

  return model_fn


def make_examples(rng: np.random.Generator, count: int, features: int):
  x = rng.normal(size=(count, features)).astype(np.float32)
  y = rng.normal(size=(count, 1)).astype(np.float32)
  return x, y


def make_dataset(examples: Examples, batch_size: int) -> tf.data.Dataset:
  return tf.data.Dataset.from_tensor_slices(examples).batch(batch_size)


def local_delta(
  weights: Weights, examples: Examples, batch_size: int, rate: float
) -> Weights:
  """Weights before less weights after an epoch of SGD on the squared error."""
  kernel, bias = (w.astype(np.float64) for w in weights)
  for start in range(0, len(examples[0]), batch_size):
    x, y = (a[start : start + batch_size] for a in examples)
    error = x @ kernel + bias - y
    kernel = kernel - rate * 2 * x.T @ error / len(x)
    bias = bias - rate * 2 * error.sum(axis=0) / len(x)
  return [weights[0] - kernel, weights[1] - bias]


def clipped(update: Weights, clip_norm: float) -> Weights:
  norm = np.sqrt(sum(np.sum(u**2) for u in update))
  return [u * min(1.0, clip_norm / max(norm, 1e-30)) for u in update]
