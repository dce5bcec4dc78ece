"""Warm start: training on the public data alone, until it stops helping.

In "Public Data-Assisted Mirror Descent for Private Model Training" (Amid et
al., ICML 2022, arXiv:2112.00193) warm-start DP-FedAvg and PDA-DPMD both begin
at a model that was pre-trained on the public data to convergence. What that is
gets judged on a part of the public data that is held out.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, Optional, Union

import numpy as np
from pda_fed import _validate
from pda_fed.learning import local_training
from pda_fed.learning import public_update
from pda_fed.privacy import seeds
import tensorflow as tf
import tensorflow_federated as tff

_EVALUATION_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A model that public data gave.

  Attributes:
    weights: For `process.set_model_weights`.
    epochs: After how many epochs they were best.
    held_out_losses: The loss on held-out examples before the first epoch and
      after each.
  """

  weights: tff.learning.models.ModelWeights
  epochs: int
  held_out_losses: tuple[float, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingConfig:
  """Settings of pre-training.

  Attributes:
    batch_size: Examples in a step.
    held_out: The share of examples that judge convergence.
    patience: Epochs without a better held-out loss after which it stops.
    max_epochs: After which it stops in any case.
    seed: Of the held-out part and of the order of examples.
  """

  batch_size: int = 16
  held_out: float = 0.1
  patience: int = 3
  max_epochs: int = 100
  seed: int = 0

  def __post_init__(self):
    _validate.integers(
      1,
      batch_size=self.batch_size,
      patience=self.patience,
      max_epochs=self.max_epochs,
    )
    _validate.between(0, 1, held_out=self.held_out)
    _validate.integers(0, seed=self.seed)


class _Trainer:
  """A model in this process, with an epoch of training and an evaluation."""

  def __init__(
    self,
    model_fn: local_training.ModelFn,
    optimizer: tff.learning.optimizers.Optimizer,
  ):
    self._model = model_fn()
    self.variables = tff.learning.models.ModelWeights.from_model(self._model)
    self._optimizer = optimizer
    specs = [tf.TensorSpec(v.shape, v.dtype) for v in self.variables.trainable]
    self._state = optimizer.initialize(tuple(specs))

  def weights(self) -> tff.learning.models.ModelWeights:
    return tf.nest.map_structure(lambda v: v.numpy(), self.variables)

  def train(self, dataset: tf.data.Dataset) -> None:
    self._state = self._epoch(self._state, dataset)

  @tf.function
  def _epoch(self, state, dataset):
    for batch in dataset:
      state = local_training.step(
        self._model, self.variables, self._optimizer, state, batch
      )
    return state

  @tf.function
  def loss(self, dataset) -> tf.Tensor:
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
    optimizer: Of this training; Adam is a good choice.
    config: See `PretrainingConfig`.
    on_epoch: Called with the number of epochs and the held-out loss.

  Returns:
    The weights with the lowest held-out loss.

  Raises:
    ValueError: If the data are too few to hold some out, or the loss is not
      finite.
  """
  config = config or PretrainingConfig()
  if not isinstance(public_data, public_update.PublicData):
    public_data = public_update.PublicData.from_users(public_data)
  order = seeds.generator('shuffling', config.seed, 0).permutation(
    public_data.num_examples
  )
  num_held_out = round(config.held_out * len(order))
  if not 0 < num_held_out < len(order):
    raise ValueError(
      f'held_out must leave examples on both sides of {len(order)}. Found'
      f' {config.held_out}.'
    )

  def dataset(rows: np.ndarray, batch_size: int) -> tf.data.Dataset:
    chosen = tf.nest.map_structure(lambda a: a[rows], public_data.examples)
    return tf.data.Dataset.from_tensor_slices(chosen).batch(batch_size)

  held_out = dataset(order[:num_held_out], _EVALUATION_BATCH)
  training_rows = order[num_held_out:]
  trainer = _Trainer(model_fn, optimizer)
  best, best_epoch = trainer.weights(), 0
  losses = [float(trainer.loss(held_out))]
  for epoch in range(1, config.max_epochs + 1):
    rng = seeds.generator('shuffling', config.seed, epoch)
    trainer.train(dataset(rng.permutation(training_rows), config.batch_size))
    losses.append(float(trainer.loss(held_out)))
    if not np.isfinite(losses[-1]):
      raise ValueError(
        f'optimizer must keep the loss finite. Found {losses[-1]} after epoch'
        f' {epoch}: lower its learning rate.'
      )
    if losses[-1] < losses[best_epoch]:
      best, best_epoch = trainer.weights(), epoch
    if on_epoch is not None:
      on_epoch(epoch, losses[-1])
    if epoch - best_epoch >= config.patience:
      break
  return Pretrained(best, best_epoch, tuple(losses))
