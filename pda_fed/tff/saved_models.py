"""Saves Keras models as files that `tff.learning.models` can load."""

import os
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff


def save_functional_model(
  keras_model: tf.keras.Model,
  loss: tf.keras.losses.Loss,
  input_spec: Any,
  path: os.PathLike | str,
) -> None:
  """Writes a model for `tff.learning.models.load_functional_model`.

  The model is saved as a functional model: learning processes build models in a
  graph, where TFF cannot load a variable model. TFF does not save metrics.

  Args:
    keras_model: An uncompiled model with the weights to save. Do not use it
      afterwards: TFF copies it in a graph, which invalidates Keras models built
      before.
    loss: The training loss.
    input_spec: The type of a batch.
    path: A new folder.
  """
  model = tff.learning.models.functional_model_from_keras(
    keras_model, loss_fn=loss, input_spec=input_spec
  )
  tff.learning.models.save_functional_model(model, os.fspath(path))
