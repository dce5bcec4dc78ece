"""Warm start of TFF models; `models.convergence` decides when to stop."""

from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import numpy as np
from pda_fed.models import convergence
from pda_fed.models.convergence import Pretrained
from pda_fed.models.convergence import PretrainingConfig
from pda_fed.tff import local_training
from pda_fed.tff import public_update
import tensorflow as tf
import tensorflow_federated as tff

_EVALUATION_BATCH = 256


class _Trainer:
  """A model in this process; see `convergence.Trainer`."""

  def __init__(
    self,
    model_fn: local_training.ModelFn,
    examples: Any,
    optimizer: tff.learning.optimizers.Optimizer,
    batch_size: int,
  ):
    self._model = local_training.call_model_fn(model_fn)
    self._variables = tff.learning.models.ModelWeights.from_model(self._model)
    self._examples = examples
    self._optimizer = optimizer
    self._batch_size = batch_size
    specs = [tf.TensorSpec(v.shape, v.dtype) for v in self._variables.trainable]
    self._state = optimizer.initialize(tuple(specs))

  def weights(self) -> tff.learning.models.ModelWeights:
    return tf.nest.map_structure(lambda v: v.numpy(), self._variables)

  def train(self, rows: np.ndarray) -> None:
    dataset = self._dataset(rows, self._batch_size)
    self._state = self._epoch(self._state, dataset)

  def loss(self, rows: np.ndarray) -> float:
    return float(self._loss(self._dataset(rows, _EVALUATION_BATCH)))

  def _dataset(self, rows: np.ndarray, batch_size: int) -> tf.data.Dataset:
    chosen = tf.nest.map_structure(lambda a: a[rows], self._examples)
    return tf.data.Dataset.from_tensor_slices(chosen).batch(batch_size)

  @tf.function
  def _epoch(self, state, dataset):
    for batch in dataset:
      state, _ = local_training.step(
        self._model, self._variables, self._optimizer, state, batch
      )
    return state

  @tf.function
  def _loss(self, dataset) -> tf.Tensor:
    total, count = tf.constant(0.0), tf.constant(0.0)
    for batch in dataset:
      output = self._model.forward_pass(batch, training=False)
      size = tf.cast(output.num_examples, tf.float32)
      total += output.loss * size
      count += size
    return total / count


def pretrain(
  model_fn: local_training.ModelFn,
  public_data: Union[public_update.PublicData, Sequence[Any]],
  optimizer: tff.learning.optimizers.Optimizer,
  config: Optional[PretrainingConfig] = None,
  *,
  on_epoch: Optional[Callable[[int, float], None]] = None,
) -> Pretrained:
  """Trains on the examples of all public users together.

  Example:

  ```
  adam = tff.learning.optimizers.build_adam(1e-2)
  warm = pretrain(model_fn, public_users, adam)
  state = process.set_model_weights(process.initialize(), warm.weights)
  ```

  Args:
    model_fn: Returns a new model.
    public_data: Public users, as for `build_pda_dpmd`.
    optimizer: Optimizer of the warm start; Adam is a good choice.
    config: See `PretrainingConfig`.
    on_epoch: Called with the number of epochs and the held-out loss.

  Returns:
    The weights with the lowest held-out loss, for `process.set_model_weights`.

  Raises:
    TypeError: If `model_fn` does not return a `tff.learning` model.
    ValueError: If there are too few examples to hold some out, or the loss is
      not finite.
  """
  config = config or PretrainingConfig()
  if not isinstance(public_data, public_update.PublicData):
    public_data = public_update.PublicData.from_users(public_data)
  trainer = _Trainer(
    model_fn, public_data.examples, optimizer, config.batch_size
  )
  return convergence.train_to_convergence(
    trainer, public_data.num_examples, config, on_epoch
  )
