"""DP-SGD with a public-data method over examples, in JAX.

"Public Data-Assisted Mirror Descent for Private Model Training" (Amid et al.,
ICML 2022, arXiv:2112.00193), section 5.4: Algorithm 1 with the first-order
mirror step of equation (3), where a round is a step, a cohort is a Poisson
batch of examples, and an update is a gradient:

    rows of a batch -> gradients of examples -> [before_clip] -> clip -> sum
      -> noise -> / expected batch -> clip once more -> [after_noise] -> SGD

where the method supplies the steps in brackets. Clipping, noise and SGD are the
same as in federated rounds. All steps of a call are one compiled program, the
data is on the device, and several runs can be computed side by side.

Several devices share the rows of a batch. Their clipped sums are reduced once
per step, in the order of devices. Each device repeats all other computations,
including the noise, which has one key.
"""

from collections.abc import Sequence
import functools
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import methods
from pda_fed.jax import aggregation
from pda_fed.jax import canaries as canaries_lib
from pda_fed.jax import clipping
from pda_fed.jax import devices as devices_lib
from pda_fed.jax import optimizers
from pda_fed.jax import rounds as rounds_lib
from pda_fed.jax.sample_level import augmentation
from pda_fed.jax.sample_level import batches as batches_lib
from pda_fed.jax.sample_level import gradients
from pda_fed.jax.sample_level import settings as settings_lib
from pda_fed.methods import arrays
from pda_fed.models import jax_layers


class SampleState(NamedTuple):
  """State that is passed from step to step.

  Example: see `SampleTrainer`.

  Attributes:
    params: The model's weights.
    momentum: The accumulator of SGD; () without momentum.
    average: Averaged weights; () without averaging.
    memory: The method's memory of public gradients.
  """

  params: jax_layers.Params
  momentum: Any
  average: Any
  memory: arrays.Update = ()


def initial_state(
  settings: settings_lib.SampleLevelSettings,
  model: jax_layers.Model,
  weights: Sequence[np.ndarray],
) -> SampleState:
  """Returns the state before the first step.

  Example: see `SampleTrainer`.

  Args:
    settings: The settings of the run.
    model: The model.
    weights: Its weights.

  Raises:
    ValueError: If the weights do not fit the model.
  """
  params = model.check_params(weights)
  return SampleState(
    params,
    tuple(map(jnp.zeros_like, params)) if settings.momentum else (),
    params if settings.averaging else (),
    settings.method.initial_memory(params),
  )


class SampleTrainer:
  """Runs training steps of a model, compiled on first use.

  Example:

  ```
  trainer = SampleTrainer(model, settings, standardization)
  state, metrics = trainer.run(
      state, TrainingArrays(...), StepInputs(...), num_rounds=20,
      noise_multiplier=plan.noise_multiplier, key_data=noise_key(seed))
  ```
  """

  def __init__(
    self,
    model: jax_layers.Model,
    settings: settings_lib.SampleLevelSettings,
    standardization: Optional[augmentation.Standardization] = None,
    devices: Sequence[jax.Device] = (),
  ):
    """Prepares the steps.

    Args:
      model: The model.
      settings: The settings of the run.
      standardization: How images or tables are standardized; None for tokens.
      devices: Devices that share the examples of a step. If they are on several
        hosts, all hosts call `run` with the same arguments. With one device or
        none, steps run where the data is.
    """
    self._model = model
    self._settings = settings
    self._gradients = gradients.Gradients(model, settings, standardization)
    self._devices = tuple(devices)
    run = self._run
    if len(self._devices) > 1:
      run = devices_lib.run_on_each(
        functools.partial(self._run, num_devices=len(self._devices)),
        self._devices,
        devices_lib.EXAMPLES,
      )
    self._one = jax.jit(run)
    # All runs share the data and the number of rounds.
    axes = (0, None, 0, None, 0, 0)
    self._many = jax.jit(jax.vmap(self._run, in_axes=axes))
    self._evaluate = jax.jit(self._evaluate_batches)

  def run(
    self,
    state: SampleState,
    data: batches_lib.TrainingArrays,
    inputs: batches_lib.StepInputs,
    num_rounds: int,
    noise_multiplier: float,
    key_data: np.ndarray,
    signs: Optional[np.ndarray] = None,
  ) -> tuple[SampleState, dict[str, jax.Array]]:
    """Runs the first steps of `inputs`.

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
    if len(self._devices) > 1:
      # Results are on all devices. Inputs must be too, or the second call would
      # compile again.
      state, data = devices_lib.replicate(
        (state, data), self._devices, devices_lib.EXAMPLES
      )
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

  def prepare(
    self,
    examples: batches_lib.ExampleArrays,
    key: Optional[jax.Array] = None,
  ) -> batches_lib.ExampleArrays:
    """Returns examples as model inputs, augmented if a key is given.

    Args:
      examples: A batch.
      key: The random key of the augmentation.
    """
    return self._gradients.prepare(examples, key)

  def _step(
    self, state, data, inputs, noise_multiplier, key, signs, num_devices
  ):
    settings = self._settings
    method = settings.method.with_schedules_at(inputs.schedules)
    keys = jax.random.split(jax.random.fold_in(key, inputs.round_num), 3)
    public = prepared = ()
    memory = state.memory
    if method.uses_public:
      varied = keys[2] if settings.augmentation != 'none' else None
      batch = self.prepare(data.public.take(inputs.public_rows), varied)
      public, public_loss = self._gradients.public_update(state.params, batch)
      prepared, memory = method.prepare_public(public, memory)
    before_clip = None
    if method.acts_before_clip:
      before_clip = functools.partial(method.before_clip, public=prepared)
    sums, stats = self._gradients.private_sums(
      state.params, data.private, inputs, keys[1], before_clip, num_devices
    )
    everybody, audited = sums, settings.canaries
    if audited is not None:
      everybody = canaries_lib.add_canaries(
        sums, inputs.canaries, signs, audited, settings.clip_norm, before_clip
      )
    mean = aggregation.noised_mean(
      everybody.total,
      clip_norm=settings.clip_norm,
      noise_multiplier=noise_multiplier,
      expected_cohort=settings.expected_batch,
      key=keys[0],
    )
    scores = {}
    if audited is not None:
      scores[canaries_lib.SCORES] = canaries_lib.scores_of(
        mean,
        sums,
        signs,
        audited,
        clip_norm=settings.clip_norm,
        expected_cohort=settings.expected_batch,
      )
    if settings.mean_clip_norm is not None:
      mean = clipping.clip_one(mean, settings.mean_clip_norm)
    count = jnp.maximum(sums.num_clients, 1)
    metrics = {
      'train_loss': stats.loss / count,
      'clients': sums.num_clients,
      'non_finite_clients': sums.num_non_finite,
      'clipped_fraction': sums.num_clipped / count,
      'example_norm': jnp.sqrt(jnp.maximum(stats.squared_norm / count, 0)),
      **scores,
    }
    update, measured = methods.server_step(
      method, mean, inputs.epoch.astype(jnp.float32), public, prepared
    )
    metrics |= measured
    if method.uses_public:
      metrics['public_loss'] = public_loss
    params, momentum = optimizers.sgd_step(
      state.params,
      state.momentum,
      update,
      inputs.learning_rate,
      settings.momentum,
    )
    average = state.average
    if settings.averaging:
      average = averaged(average, params, settings.averaging, inputs.round_num)
    metrics['weights_norm'] = arrays.norm(params)
    return SampleState(params, momentum, average, memory), metrics

  def evaluate(
    self,
    params: Sequence[jax.Array],
    examples: batches_lib.ExampleArrays,
    batch_size: int = 500,
  ) -> dict[str, float]:
    """Returns the mean `loss` of targets and their `accuracy`.

    Args:
      params: The weights.
      examples: The examples to evaluate.
      batch_size: Number of examples evaluated at a time.
    """
    count = len(examples.targets)
    size = min(batch_size, count)
    batches = -(-count // size)
    rows = np.arange(batches * size).reshape(batches, size)
    loss, hits = self._evaluate(
      tuple(jnp.asarray(w) for w in params),
      examples,
      np.minimum(rows, count - 1),
      rows < count,
    )
    targets = examples.targets.size
    # Sums over many batches need float64.
    return {
      'loss': float(np.asarray(loss, np.float64).sum() / count),
      'accuracy': float(np.asarray(hits, np.float64).sum() / targets),
    }

  def _evaluate_batches(self, params, examples, rows, present):
    """Returns the sums of losses and of hits of each batch."""

    def one(batch):
      rows, present = batch
      trace = self._model.run(params, *self.prepare(examples.take(rows)))
      losses = jnp.where(present, trace.token_losses, 0).sum()
      return losses, jnp.where(present, trace.hits, 0).sum()

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
  return jax.tree_util.tree_map(
    lambda a, w: kept * a + (1 - kept) * w, average, params
  )
