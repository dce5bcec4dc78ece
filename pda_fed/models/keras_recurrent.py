"""The Keras model of a `RecurrentSpec`, with its loss and metrics.

Every metric is a pair of sums, a total and a weight. Summed over clients, it is
the metric of all clients together, whatever their sizes.

TFF traces these functions in graphs where `==` and `!=` on tensors compare
object identities: always write tf.equal and tf.not_equal here.
"""

from collections.abc import Sequence
import os

# TFF needs Keras 2. TensorFlow reads this when tf.keras is first used.
os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')

# isort: split
import numpy as np
from pda_fed.models import fast_ops
from pda_fed.models import recurrent
import tensorflow as tf


class _FastLSTM(tf.keras.layers.LSTM):
  """A faster LSTM with the weights and names of Keras."""

  def call(self, inputs, mask=None, training=None, initial_state=None):
    """See the base class; [batch, time, features] to [batch, time, units]."""
    del mask, training, initial_state  # Not supported.
    cell = self.cell
    outputs = fast_ops.lstm(
      tf.transpose(inputs, [1, 0, 2]),
      tf.convert_to_tensor(cell.kernel),
      tf.convert_to_tensor(cell.recurrent_kernel),
      tf.convert_to_tensor(cell.bias),
    )
    return tf.transpose(outputs, [1, 0, 2])


def create_keras_model(
  spec: recurrent.RecurrentSpec, seed: int = 0
) -> tf.keras.Model:
  """Creates the model: tokens [batch, time] to logits [batch, time, tokens].

  Args:
    spec: The sizes.
    seed: The seed of the initial weights.

  Returns:
    An uncompiled `tf.keras.Model`.
  """
  # Each layer needs its own seed, because equal seeds give equal values. Keras
  # takes 31 bits.
  seeds = iter((np.random.SeedSequence(seed).generate_state(5) >> 1).tolist())

  def glorot():
    return tf.keras.initializers.GlorotUniform(seed=next(seeds))

  tokens = tf.keras.layers.Input(shape=(None,), dtype=tf.int64)
  x = tf.keras.layers.Embedding(
    spec.vocabulary_size,
    spec.embedding_size,
    embeddings_initializer=tf.keras.initializers.RandomUniform(
      -0.05, 0.05, seed=next(seeds)
    ),
    name='embedding',
  )(tokens)
  x = _FastLSTM(
    spec.lstm_size,
    return_sequences=True,
    kernel_initializer=glorot(),
    recurrent_initializer=tf.keras.initializers.Orthogonal(seed=next(seeds)),
    name='lstm',
  )(x)
  x = tf.keras.layers.Dense(
    spec.embedding_size, kernel_initializer=glorot(), name='projection'
  )(x)
  logits = tf.keras.layers.Dense(
    spec.vocabulary_size, kernel_initializer=glorot(), name='logits'
  )(x)
  return tf.keras.Model(tokens, logits)


def _weights(targets: tf.Tensor, masked: Sequence[int]) -> tf.Tensor:
  """Returns 1 for targets that count and 0 for masked tokens."""
  counts = tf.ones_like(targets, tf.bool)
  for token in masked:
    counts &= tf.not_equal(targets, tf.cast(token, targets.dtype))
  return tf.cast(counts, tf.float32)


def _token_losses(targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  losses = fast_ops.cross_entropy(
    tf.reshape(targets, [-1]), tf.reshape(logits, [-1, logits.shape[-1]])
  )
  return tf.reshape(losses, tf.shape(targets))


class MaskedCrossEntropy(tf.keras.losses.Loss):
  """The mean cross-entropy of a batch's tokens, without padding."""

  def __init__(self, spec: recurrent.RecurrentSpec):
    super().__init__(name='masked_cross_entropy')
    self._spec = spec

  def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """See the base class."""
    weights = _weights(y_true, [self._spec.pad])
    total = tf.reduce_sum(_token_losses(y_true, y_pred) * weights)
    return tf.math.divide_no_nan(total, tf.reduce_sum(weights))


class _TokenMean(tf.keras.metrics.Mean):
  """The mean of a value per target token, without masked tokens."""

  def __init__(self, masked: Sequence[int], name: str):
    super().__init__(name=name)
    self._masked = tuple(masked)

  def _update(self, values: tf.Tensor, targets: tf.Tensor) -> None:
    super().update_state(values, _weights(targets, self._masked))

  def get_config(self):
    """Returns the arguments from which TFF recreates the metric."""
    return {'name': self.name, 'masked': self._masked}


class TokenLoss(_TokenMean):
  """Cross-entropy per token; its exponential is the perplexity."""

  def update_state(self, y_true, y_pred, sample_weight=None):
    """See the base class; sample weights are ignored."""
    del sample_weight
    self._update(_token_losses(y_true, y_pred), y_true)


class TokenAccuracy(_TokenMean):
  """The fraction of target tokens that are predicted correctly."""

  def update_state(self, y_true, y_pred, sample_weight=None):
    """See the base class; sample weights are ignored."""
    del sample_weight
    best = tf.argmax(y_pred, axis=-1, output_type=y_true.dtype)
    self._update(tf.cast(tf.equal(best, y_true), tf.float32), y_true)


def create_metrics(
  spec: recurrent.RecurrentSpec,
) -> list[tf.keras.metrics.Metric]:
  """Creates the metrics that the paper reports.

  Args:
    spec: The specification, which defines the special tokens.

  Returns:
    `token_loss` and `accuracy_with_oov`, which ignore padding, and `accuracy`,
    which counts only words of the vocabulary.
  """
  return [
    TokenLoss([spec.pad], 'token_loss'),
    TokenAccuracy([spec.pad, spec.oov, spec.bos, spec.eos], 'accuracy'),
    TokenAccuracy([spec.pad], 'accuracy_with_oov'),
  ]
