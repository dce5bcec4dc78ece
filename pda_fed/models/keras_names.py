"""Names of a Keras model's weights, which are those of the JAX model."""

from collections.abc import Mapping
from typing import Any

import numpy as np

# Keras' words for what Flax names otherwise.
_NAMES = {'embeddings': 'embedding', 'gamma': 'scale', 'beta': 'bias'}


def weight_names(keras_model: Any) -> list[str]:
  """Returns the name of each trainable weight, such as 'dense_1/kernel'.

  Args:
    keras_model: A Keras model. Its layers have the names of the JAX model's.
  """
  names = []
  for layer in keras_model.layers:
    for weight in layer.trainable_weights:
      last = weight.name.split('/')[-1].removesuffix(':0')
      names.append(f'{layer.name}/{_NAMES.get(last, last)}')
  return names


def set_weights(keras_model: Any, weights: Mapping[str, np.ndarray]) -> None:
  """Gives a Keras model the weights of these names."""
  keras_model.set_weights([weights[n] for n in weight_names(keras_model)])
