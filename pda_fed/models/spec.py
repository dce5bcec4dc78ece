"""A model as one value: sizes, from which each engine makes its model."""

import abc
from typing import Any

import numpy as np


class ModelSpec(abc.ABC):
  """The sizes of a model; subclass it as a frozen dataclass.

  A run's settings hold the fields of the subclass, so that these must be
  numbers, texts, or tuples of them. The JAX engines need `jax_model`, the TFF
  engine `keras_model`; both must have the same weights in the same order.

  Example: see `RecurrentSpec`.
  """

  @abc.abstractmethod
  def jax_model(self) -> Any:
    """Returns the model of the JAX engines, a `jax_model.Model`."""

  def keras_model(self, seed: int) -> Any:
    """Returns an uncompiled Keras model with weights drawn by the seed.

    Args:
      seed: The seed of the initial weights.

    Raises:
      ValueError: If the model has none, and can be trained with JAX alone.
    """
    del seed
    raise ValueError(
      f'engine must be jax for {type(self).__name__}, which has no Keras model.'
    )

  def keras_loss(self) -> Any:
    """Returns the loss of the Keras model: by default, of classes."""
    import tensorflow as tf

    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  def keras_metrics(self) -> list[Any]:
    """Returns the metrics of the Keras model: by default, of classes."""
    import tensorflow as tf

    return [tf.keras.metrics.SparseCategoricalAccuracy(name='accuracy')]

  def keras_input_spec(self) -> Any:
    """Returns what a batch of the Keras model is: by default, of classes.

    A subclass has `input_shape`, the shape of one input, or its own function.
    """
    import tensorflow as tf

    return (
      tf.TensorSpec([None, *self.input_shape], tf.float32),
      tf.TensorSpec([None], tf.int32),
    )

  def keras_examples(self, rows: tuple[np.ndarray, ...]) -> Any:
    """Returns rows of a store as `keras_input_spec` has them.

    Args:
      rows: What the store's `read` gives.
    """
    return rows

  def check_store(self, store: Any) -> None:
    """Raises ValueError unless the model takes the examples of a store.

    Args:
      store: A store of `data_prep`.
    """
    for name in ('input_shape', 'num_classes'):
      expected, found = getattr(store, name, None), getattr(self, name, None)
      if expected is None and found is not None:
        raise ValueError(
          f'The model must be one for text, as {store.path} is. Found {self}.'
        )
      if found is not None and tuple(np.ravel(found)) != tuple(
        np.ravel(expected)
      ):
        raise ValueError(
          f'{name} of the model must be {expected}, that of the data in'
          f' {store.path}. Found {found}.'
        )
