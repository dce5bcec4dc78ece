"""Model functions and users' datasets for TFF."""

from collections.abc import Callable

import numpy as np
from pda_fed import models
from pda_fed.models import keras_names
import tensorflow as tf
import tensorflow_federated as tff


def build_model_fn(
  spec: models.ModelSpec, seed: int = 0
) -> Callable[[], tff.learning.models.VariableModel]:
  """Returns a function that creates the model, for TFF's algorithms.

  Its trainable variables have the order of the JAX model's: sorted by name.

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
    keras_model = spec.keras_model(seed)
    model = tff.learning.models.from_keras_model(
      keras_model,
      loss=spec.keras_loss(),
      input_spec=spec.keras_input_spec(),
      metrics=spec.keras_metrics(),
    )
    names = keras_names.weight_names(keras_model)
    order = sorted(range(len(names)), key=lambda i: names[i].split('/'))

    class InOrder(type(model)):
      """The model with variables in order."""

      @property
      def trainable_variables(self):
        variables = super().trainable_variables
        return [variables[i] for i in order]

    model.__class__ = InOrder
    return model

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
