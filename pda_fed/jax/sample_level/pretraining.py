"""Warm start on public examples; `models.convergence` decides when to stop."""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pda_fed.jax import optimizers
from pda_fed.jax.sample_level import augmentation
from pda_fed.jax.sample_level import batches as batches_lib
from pda_fed.jax.sample_level import training
from pda_fed.models import batches as model_batches
from pda_fed.models import convergence
from pda_fed.models import model as model_lib


class _State(NamedTuple):
  params: Any
  optimizer: Any
  average: Any
  step: jax.Array


class _Trainer:
  """See `convergence.Trainer`."""

  def __init__(
    self,
    model: model_lib.Model,
    steps: training.SampleTrainer,
    params: Any,
    examples: batches_lib.ExampleArrays,
    config: convergence.PretrainingConfig,
    optimizer: Optional[optax.GradientTransformation] = None,
  ):
    self._optimizer = optimizer or optimizers.build_optimizer(
      config, config.clip_norm
    )
    self._model = model
    self._steps = steps
    self._examples = examples
    self._config = config
    self._epochs = 0
    self._key = jax.random.key(config.seed % 2**32)
    params = model_batches.check_params(params, model)
    self._state = _State(
      params=params,
      optimizer=self._optimizer_at(1.0).init(params),
      average=params,
      step=jnp.zeros((), jnp.int32),
    )
    self._epoch = jax.jit(self._run_epoch)

  @property
  def _best_params(self):
    averaged = self._config.averaging > 0
    return self._state.average if averaged else self._state.params

  def weights(self) -> Any:
    return jax.tree.map(np.array, self._best_params)

  def train(self, rows: np.ndarray) -> None:
    size = min(self._config.batch_size, len(rows))
    # Left-over rows may be used in another epoch's order.
    batches = rows[: len(rows) // size * size].reshape(-1, size)
    decay = 1.0
    if self._config.decay == 'cosine':
      decay = 0.5 * (1 + np.cos(np.pi * self._epochs / self._config.max_epochs))
    self._state = self._epoch(self._state, batches, self._examples, decay)
    self._epochs += 1

  def loss(self, rows: np.ndarray) -> float:
    held_out = self._examples.take(rows)
    return self._steps.evaluate(self._best_params, held_out)['loss']

  def _run_epoch(self, state, batches, examples, decay):
    def step(state, rows):
      return self._step(state, examples.take(rows), decay), None

    return jax.lax.scan(step, state, batches)[0]

  def _optimizer_at(self, decay) -> optax.GradientTransformation:
    return optax.chain(self._optimizer, optax.scale(decay))

  def _varied(self, batch, key) -> batches_lib.ExampleArrays:
    """Returns a batch as model inputs, augmented as configured."""
    augmented = self._config.augmentation
    batch = self._steps.prepare(batch, key if augmented == 'standard' else None)
    if augmented != 'strong':
      return batch
    return batch._replace(inputs=augmentation.vary_strongly(batch.inputs, key))

  def _gradient(self, loss, params, batch, key):
    """Returns the gradient of a loss, of blended pairs if mixup is used."""
    if not self._config.mixup:
      return jax.grad(loss)(params, *batch)
    inputs, others, weight = augmentation.mix_up(
      batch.inputs, key, self._config.mixup
    )

    def mixed(params):
      first = loss(params, inputs, batch.targets)
      second = loss(params, inputs, batch.targets[others])
      return weight * first + (1 - weight) * second

    return jax.grad(mixed)(params)

  def _step(self, state: _State, batch, decay) -> _State:
    options = self._config
    step_key = jax.random.fold_in(self._key, state.step)
    augment_key, drop_key = jax.random.split(step_key)
    mix_key = jax.random.fold_in(step_key, 2)
    batch = self._varied(batch, augment_key)

    def loss(params, inputs, targets):
      dropped = {'dropout': options.dropout, 'key': drop_key}
      values, weights = model_batches.metric_sums(
        self._model,
        params,
        (inputs, targets),
        **(dropped if options.dropout else {}),
      )['loss']
      return values.sum() / weights.sum()

    gradients = self._gradient(loss, state.params, batch, mix_key)
    changes, optimizer = self._optimizer_at(decay).update(
      gradients, state.optimizer, state.params
    )
    params = optax.apply_updates(state.params, changes)
    average = state.average
    if options.averaging:
      average = training.averaged(
        average, params, options.averaging, state.step
      )
    return _State(params, optimizer, average, state.step + 1)


def pretrain(
  model: model_lib.Model,
  steps: training.SampleTrainer,
  examples: batches_lib.ExampleArrays,
  config: convergence.PretrainingConfig,
  *,
  initialization_seed: int,
  optimizer: Optional[optax.GradientTransformation] = None,
  on_epoch: Optional[Callable[[int, float], None]] = None,
) -> convergence.Pretrained:
  """Trains on public examples until the held-out loss stops improving.

  Args:
    model: The model.
    steps: The trainer, which prepares and evaluates examples.
    examples: Public examples.
    config: The optimizer, the stopping rule, and how many candidates, each from
      different initial weights, to train. The one with the lowest held-out loss
      is returned.
    initialization_seed: Seed of the initial weights.
    optimizer: The optimizer, instead of the one that `config` names and the
      clip before it.
    on_epoch: Called with the number of epochs and the held-out loss.

  Returns:
    The weights with the lowest held-out loss.

  Raises:
    ValueError: If there are too few examples to hold some out, or the loss is
      not finite.
  """
  train = functools.partial(
    convergence.train_to_convergence,
    num_examples=len(examples.targets),
    config=config,
    on_epoch=on_epoch,
  )
  found = []
  for i in range(config.candidates):
    # The first candidate is the same whatever the number of candidates.
    seed = initialization_seed if i == 0 else (initialization_seed + i) % 2**63
    trainer = _Trainer(
      model, steps, model.init(seed), examples, config, optimizer
    )
    found.append(train(trainer))
  return min(found, key=lambda done: done.held_out_losses[done.epochs])
