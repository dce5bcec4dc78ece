"""Warm start of federated models; `models.convergence` decides when to stop."""

from collections.abc import Callable
import functools
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pda_fed.common import validate
from pda_fed.models import batches
from pda_fed.models import convergence
from pda_fed.models import model as model_lib

_EVALUATION_BATCH = 256


@functools.partial(jax.jit, static_argnames=('optimizer', 'model', 'dtype'))
def _epoch(params, state, examples, weights, *, optimizer, model, dtype):
  """Takes one step per batch.

  Args:
    params: The weights.
    state: The state of the optimizer.
    examples: Arrays [steps, batch, ...].
    weights: [steps, batch]: 1 for an example, 0 for padding.
    optimizer: The optimizer.
    model: The model.
    dtype: Dtype of the forward and backward pass.

  Returns:
    The new weights and state.
  """

  def step(carry, batch):
    params, state = carry
    _, gradients = batches.gradients(model, params, *batch, dtype)
    changes, state = optimizer.update(gradients, state, params)
    return (optax.apply_updates(params, changes), state), None

  return jax.lax.scan(step, (params, state), (examples, weights))[0]


@functools.partial(jax.jit, static_argnames=('model', 'dtype'))
def _mean_loss(params, examples, weights, *, model, dtype):
  """Returns the example-weighted mean of batch losses, as in TFF's trainer."""

  def loss(batch):
    _, stats = batches.batch_stats(model, params, *batch, dtype)
    return stats.batch_loss, stats.examples

  totals, counts = jax.lax.map(loss, (examples, weights))
  return totals.sum() / counts.sum()


class _Trainer:
  """See `convergence.Trainer`."""

  def __init__(self, model, params, examples, optimizer, batch_size, dtype):
    self._model = model
    self._params = batches.check_params(params, model)
    self._state = optimizer.init(self._params)
    self._examples = examples
    self._optimizer = optimizer
    self._batch_size = batch_size
    self._options = {'model': model, 'dtype': dtype}

  def weights(self) -> Any:
    return jax.tree.map(np.array, self._params)

  def train(self, rows: np.ndarray) -> None:
    self._params, self._state = _epoch(
      self._params,
      self._state,
      *self._batches(rows, self._batch_size),
      optimizer=self._optimizer,
      **self._options,
    )

  def loss(self, rows: np.ndarray) -> float:
    batches = self._batches(rows, _EVALUATION_BATCH)
    return float(_mean_loss(self._params, *batches, **self._options))

  def _batches(self, rows: np.ndarray, size: int):
    steps = -(-len(rows) // size)
    padded = []
    for array in self._examples:
      batches = np.zeros((steps * size, *array.shape[1:]), array.dtype)
      batches[: len(rows)] = array[rows]
      padded.append(batches.reshape(steps, size, *array.shape[1:]))
    weights = (np.arange(steps * size) < len(rows)).astype(np.float32)
    return tuple(padded), weights.reshape(steps, size)


def pretrain(
  model: model_lib.Model,
  params: Any,
  examples: tuple[np.ndarray, ...],
  optimizer: optax.GradientTransformation,
  config: Optional[convergence.PretrainingConfig] = None,
  *,
  compute_dtype: str = 'float32',
  on_epoch: Optional[Callable[[int, float], None]] = None,
) -> convergence.Pretrained:
  """Trains on the examples of all public users together.

  Takes the same steps as `pda_tff.pretrain` from the same weights.

  Example:

  ```
  warm = pretrain(model, params, (public_sentences,), optax.adam(1e-2))
  state = trainer.init(warm.weights)
  ```

  Args:
    model: The model.
    params: The initial weights.
    examples: Arrays with one row per example, in the model's input format.
    optimizer: The optimizer, any of optax; Adam is a good choice.
    config: The stopping rule and the batch size; not its optimizer.
    compute_dtype: Dtype of matrix products.
    on_epoch: Called with the number of epochs and the held-out loss.

  Returns:
    The weights with the lowest held-out loss.

  Raises:
    ValueError: If there are too few examples to hold some out, or the loss is
      not finite.
  """
  validate.instances(optax.GradientTransformation, optimizer=optimizer)
  config = config or convergence.PretrainingConfig()
  trainer = _Trainer(
    model,
    params,
    examples,
    optimizer,
    config.batch_size,
    jnp.dtype(compute_dtype),
  )
  return convergence.train_to_convergence(
    trainer, len(examples[0]), config, on_epoch
  )
