"""Model functions and users' datasets for TFF."""

from collections.abc import Callable

import numpy as np
from pda_fed import models
import tensorflow as tf
import tensorflow_federated as tff


def build_model_fn(
  spec: models.ModelSpec, seed: int = 0
) -> Callable[[], tff.learning.models.VariableModel]:
  """Returns a function that creates the model, for TFF's algorithms.

  Example:

    >>> from pda_fed import models
    >>> spec = models.RecurrentSpec(num_words=10, embedding_size=2, lstm_size=3)
    >>> build_model_fn(spec)().input_spec[0].dtype
    tf.int64

  Args:
    spec: The model's sizes.
    seed: The seed of the initial weights.
  """

  def model_fn():
    return tff.learning.models.from_keras_model(
      spec.keras_model(seed),
      loss=spec.keras_loss(),
      input_spec=spec.keras_input_spec(),
      metrics=spec.keras_metrics(),
    )

  return model_fn


def make_dataset(sentences: np.ndarray, batch_size: int) -> tf.data.Dataset:
  """Creates one user's dataset of (tokens, next tokens) batches.

  Example:

    >>> dataset = make_dataset(np.zeros([5, 21]), batch_size=4)
    >>> [tokens.shape.as_list() for tokens, next_tokens in dataset]
    [[4, 20], [1, 20]]

  Args:
    sentences: Token ids, [sentences, length + 1], beginning with bos.
    batch_size: Number of sentences in a batch; the last batch may be smaller.

  Returns:
    A dataset for the models of `build_model_fn`.
  """
  sentences = np.asarray(sentences, np.int64)
  return tf.data.Dataset.from_tensor_slices(
    (sentences[:, :-1], sentences[:, 1:])
  ).batch(batch_size)
