"""The base class of model specifications."""

import abc
from typing import Any

import numpy as np


class ModelSpec(abc.ABC):
  """The sizes of a model, from which each engine builds its model.

  Subclass it as a frozen dataclass. A run's settings store the fields, so these
  must be numbers, strings, or tuples of them. The JAX engines need `jax_model`,
  the TFF engine `keras_model`. Both models must have the same weights, by
  name: name Keras' layers as the JAX model names their weights.

  Example: see `RecurrentSpec`.
  """

  @abc.abstractmethod
  def jax_model(self) -> Any:
    """Returns the model of the JAX engines, a `Model`."""

  def keras_model(self, seed: int) -> Any:
    """Returns an uncompiled Keras model with initial weights.

    Args:
      seed: The seed of the initial weights.

    Raises:
      ValueError: If there is no Keras model. Such a model can be trained only
        with JAX.
    """
    del seed
    raise ValueError(
      f'engine must be jax for {type(self).__name__}, which has no Keras model.'
    )

  @property
  def num_parameters(self) -> int:
    """The number of weights."""
    from pda_fed.models import batches

    return batches.num_weights(self.jax_model())

  def keras_loss(self) -> Any:
    """Returns the loss of the Keras model; by default, for classification."""
    import tensorflow as tf

    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  def keras_metrics(self) -> list[Any]:
    """Returns the Keras model's metrics; by default, for classification."""
    import tensorflow as tf

    return [tf.keras.metrics.SparseCategoricalAccuracy(name='accuracy')]

  def keras_input_spec(self) -> Any:
    """Returns the type of a Keras batch; by default, for classification.

    A subclass defines `input_shape`, the shape of one input, or overrides this.
    """
    import tensorflow as tf

    spec: Any = self
    return (
      tf.TensorSpec([None, *spec.input_shape], tf.float32),
      tf.TensorSpec([None], tf.int32),
    )

  def keras_examples(self, rows: tuple[np.ndarray, ...]) -> Any:
    """Returns rows of a store in the format of `keras_input_spec`.

    Args:
      rows: The result of the store's `read`.
    """
    return rows

  def check_store(self, store: Any) -> None:
    """Raises ValueError if the model cannot take the examples of a store.

    Args:
      store: A store of `data_prep`.
    """
    for name in ('input_shape', 'num_classes'):
      expected, found = getattr(store, name, None), getattr(self, name, None)
      if expected is None and found is not None:
        raise ValueError(
          f'The model must be for text: {store.path} holds text. Found {self}.'
        )
      if found is not None and tuple(np.ravel(found)) != tuple(
        np.ravel(expected)
      ):
        raise ValueError(
          f'{name} of the model must be {expected}, as in the data in'
          f' {store.path}. Found {found}.'
        )
