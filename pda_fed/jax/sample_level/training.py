"""DP-SGD with a public-data method over examples, in JAX.

"Public Data-Assisted Mirror Descent for Private Model Training" (Amid et al.,
ICML 2022, arXiv:2112.00193), section 5.4: Algorithm 1 with the first-order
mirror step of equation (3), where a round is a step, a cohort is a Poisson
batch of examples, and an update is a gradient:

    rows of a batch -> gradients of examples -> [before_clip] -> clip -> sum
      -> server_round: noise -> / expected batch -> clip -> [after_noise]
      -> optimizer

where the method supplies the steps in brackets. All steps of a call are one
compiled program, the data is on the device, and several runs can be computed
side by side.

Several devices share the rows of a batch. Their clipped sums are reduced once
per step, in the order of devices. Each device repeats all other computations,
including the noise, which has one key.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pda_fed import privacy
from pda_fed.jax import canaries as canaries_lib
from pda_fed.jax import devices as devices_lib
from pda_fed.jax import rounds as rounds_lib
from pda_fed.jax import server_round as server_lib
from pda_fed.jax.sample_level import augmentation
from pda_fed.jax.sample_level import batches as batches_lib
from pda_fed.jax.sample_level import gradients
from pda_fed.jax.sample_level import settings as settings_lib
from pda_fed.models import batches as model_batches
from pda_fed.models import model as model_lib


class SampleTrainer:
  """Runs training steps of a model, compiled on first use.

  `prepare` is that of `Gradients`: it standardizes and augments examples.

  Example:

  ```
  trainer = SampleTrainer(model, settings, standardization)
  state, metrics = trainer.run(
      trainer.init(model.init(0)), TrainingArrays(...),
      StepInputs(...), num_rounds=20, noise_multiplier=plan.noise_multiplier,
      key_data=noise_key(seed))
  ```
  """

  def __init__(
    self,
    model: Union[model_lib.Model, Callable[..., Any]],
    settings: settings_lib.SampleLevelSettings,
    standardization: Optional[augmentation.Standardization] = None,
    devices: Sequence[jax.Device] = (),
  ):
    """Prepares the steps.

    Args:
      model: The model, or the loss of one example.
      settings: The settings of the run.
      standardization: How images or tables are standardized; None for tokens.
      devices: Devices that share the examples of a step. If they are on several
        hosts, all hosts call `run` with the same arguments. With one device or
        none, steps run where the data is.
    """
    self._model = model = model_lib.as_model(model)
    self._settings = settings
    self._gradients = gradients.Gradients(model, settings, standardization)
    self.prepare = self._gradients.prepare
    self._devices = tuple(devices)
    run = self._run
    if len(self._devices) > 1:
      run = devices_lib.run_on_each(
        functools.partial(self._run, num_devices=len(self._devices)),
        self._devices,
      )
    self._one = jax.jit(run)
    # All runs share the data and the number of rounds.
    axes = (0, None, 0, None, 0, 0)
    self._many = jax.jit(jax.vmap(self._run, in_axes=axes))
    self._evaluate = jax.jit(self._evaluate_batches)

  def init(self, params: Any) -> server_lib.ServerState:
    """Returns the state before the first step.

    Args:
      params: The model's weights.

    Raises:
      ValueError: If the weights do not fit the model.
    """
    settings = self._settings
    state = server_lib.initial_state(
      settings.plan,
      settings.method,
      self._optimizer(1.0),
      model_batches.check_params(params, self._model),
    )
    return state._replace(average=state.params) if settings.averaging else state

  def _optimizer(self, rate) -> optax.GradientTransformation:
    """Returns the optimizer at a rate, which is not in its state."""
    return optax.chain(self._settings.optimizer, optax.scale(rate))

  def step(
    self,
    state: server_lib.ServerState,
    data: batches_lib.TrainingArrays,
    cohort: privacy.Cohort,
    public_batch_size: int = 256,
  ) -> tuple[server_lib.ServerState, dict[str, float]]:
    """Runs one step.

    Args:
      state: The state before the step.
      data: Private and public examples.
      cohort: The rows of the batch and their secret: a cohort of
        `plan.cohorts(range(number of private examples))`.
      public_batch_size: Number of public examples that the step draws.

    Returns:
      The new state, and metrics. Only the state is private.

    Raises:
      ReusedNoiseError: If the step ran before from another state, with other
        examples or with another result: the same noise would reveal the
        difference.
      ValueError: If the plan has fewer rounds, or private examples of the
        cohort are missing.
    """
    settings, t, seeds = self._settings, cohort.round_num, cohort.seeds
    rounds_lib.check_round(settings.plan, t)
    rows = cohort.indices
    if rows.size and rows.max() >= len(data.private.targets):
      # JAX would take the last example for each row that is missing.
      raise ValueError(
        f'data.private must have an example for row {rows.max()} of the cohort.'
        f' Found {len(data.private.targets)} examples.'
      )
    batch = data.private.take(rows)
    before = *server_lib.leaves_of(state), *map(np.asarray, batch)
    inputs = batches_lib.inputs_of_step(settings, t, rows)
    if settings.method.uses_public:
      count = len(data.public.targets)
      drawn = rounds_lib.draw_rows(seeds.public, t, count, public_batch_size)
      inputs = inputs._replace(public_rows=drawn)
    state, metrics = self.run(
      state,
      data,
      rounds_lib.stack_rounds([inputs], 1),
      1,
      settings.plan.noise_multiplier,
      rounds_lib.noise_key(seeds.noise),
    )
    # Other settings or public examples make another sum of the same examples.
    cohort.claim(*before, *server_lib.leaves_of(state))
    found = {n: float(v[0]) for n, v in jax.device_get(metrics).items()}
    rounds_lib.warn_non_finite(
      found['clients'],
      found['non_finite_clients'],
      'Look at the loss of one example and at the weights.',
    )
    return state, found

  def run(
    self,
    state: server_lib.ServerState,
    data: batches_lib.TrainingArrays,
    inputs: batches_lib.StepInputs,
    num_rounds: int,
    noise_multiplier: float,
    key_data: np.ndarray,
    signs: Optional[np.ndarray] = None,
  ) -> tuple[server_lib.ServerState, dict[str, jax.Array]]:
    """Runs the first steps of `inputs` in one call; `step` is simpler.

    Args:
      state: State before the first step.
      data: Private and public examples. `devices.replicate` puts them on
        several devices, once for many calls.
      inputs: The batches of several steps.
      num_rounds: Number of steps to run.
      noise_multiplier: sigma.
      key_data: See `noise_key`.
      signs: Random signs of an audit's canaries.

    Returns:
      The new state, and metrics with one value per step each. Canary scores
      have one more axis.
    """
    for name, examples in data._asdict().items():
      if examples is not None:
        batches_lib.check_lengths(name, examples)
    if len(self._devices) > 1:
      # Results are on all devices. Inputs must be too, or the second call would
      # compile again.
      state, data = devices_lib.replicate((state, data), self._devices)
    with rounds_lib.lasting_noise():
      return self._one(
        state, data, inputs, num_rounds, noise_multiplier, key_data, signs
      )

  def run_side_by_side(self, state, data, inputs, num_rounds, noise, key_data):
    """Runs the steps of several runs at once, on one device.

    Args:
      state: State with an additional leading axis, the run. All arguments but
        `data` and `num_rounds` have it.
      data: See `run`.
      inputs: See `run`.
      num_rounds: See `run`.
      noise: sigma of each run.
      key_data: The noise key of each run.

    Returns:
      State and metrics, with the run axis.
    """
    with rounds_lib.lasting_noise():
      return self._many(state, data, inputs, num_rounds, noise, key_data)

  def _run(
    self,
    state,
    data,
    inputs,
    num_rounds,
    noise_multiplier,
    key_data,
    signs=None,
    num_devices=1,
  ):
    key = jax.random.wrap_key_data(key_data, impl='threefry2x32')

    def one(state, at_round):
      return self._step(
        state, data, at_round, noise_multiplier, key, signs, num_devices
      )

    return rounds_lib.run_rounds(one, state, inputs, num_rounds)

  def _step(
    self, state, data, inputs, noise_multiplier, key, signs, num_devices
  ):
    settings = self._settings
    method = settings.method.with_schedules_at(inputs.schedules)
    key = jax.random.fold_in(key, inputs.round_num)
    # The first of three keys makes the noise, in `server_round`.
    _, private_key, public_key = jax.random.split(key, 3)
    public = server_lib.PublicUpdate()
    if method.uses_public:
      varied = public_key if settings.augmentation != 'none' else None
      batch = self.prepare(data.public.take(inputs.public_rows), varied)
      public = server_lib.public_update(
        method, state, *self._gradients.public_update(state.params, batch)
      )
    sums, stats = self._gradients.private_sums(
      state.params,
      data.private,
      inputs,
      private_key,
      state.clip_norm,
      server_lib.before_clip(method, public),
      num_devices,
    )
    canaries = settings.canaries and canaries_lib.Canaries(
      settings.canaries, inputs.canaries, signs
    )
    state, metrics = server_lib.server_round(
      settings.plan,
      method,
      self._optimizer(inputs.learning_rate),
      state,
      sums,
      public,
      key=key,
      t=inputs.epoch,
      noise_multiplier=noise_multiplier,
      mean_clip_norm=settings.mean_clip_norm,
      canaries=canaries,
    )
    count = jnp.maximum(sums.num_clients, 1)
    metrics['train_loss'] = stats.loss / count
    squared_norm = jnp.maximum(stats.squared_norm / count, 0)
    metrics['example_norm'] = jnp.sqrt(squared_norm)
    if settings.averaging:
      average = averaged(
        state.average, state.params, settings.averaging, inputs.round_num
      )
      state = state._replace(average=average)
    return state, metrics

  def evaluate(
    self,
    params: Any,
    examples: batches_lib.ExampleArrays,
    batch_size: int = 500,
  ) -> dict[str, float]:
    """Returns the model's metrics, such as `loss` and `accuracy` of targets.

    Args:
      params: The weights.
      examples: The examples to evaluate.
      batch_size: Number of examples evaluated at a time.
    """
    count = len(examples.targets)
    size = min(batch_size, count)
    batches = -(-count // size)
    rows = np.arange(batches * size).reshape(batches, size)
    sums = self._evaluate(
      params, examples, np.minimum(rows, count - 1), rows < count
    )
    found = {}
    for name, pair in sums.items():
      # Sums over many batches need float64.
      value, weight = (np.asarray(s, np.float64).sum() for s in pair)
      found[name] = float(value / max(weight, 1))
    return found

  def _evaluate_batches(self, params, examples, rows, present):
    """Returns the sums of metrics of each batch."""

    def one(batch):
      rows, present = batch
      sums = model_batches.metric_sums(
        self._model, params, self.prepare(examples.take(rows))
      )
      return jax.tree.map(lambda s: jnp.where(present, s, 0).sum(), sums)

    return jax.lax.map(one, (rows, present))


def averaged(
  average: Any, params: Any, decay: float, round_num: jax.Array
) -> Any:
  """Updates an exponential average that forgets the first weights quickly.

  The decay grows with the number of steps, (1 + t) / (10 + t), up to `decay`.

  Args:
    average: The average so far.
    params: The new weights.
    decay: The largest decay, in [0, 1).
    round_num: t, the index of the step.
  """
  t = jnp.asarray(round_num, jnp.float32)
  kept = jnp.minimum(decay, (1 + t) / (10 + t))
  return optax.incremental_update(params, average, 1 - kept)
