"""Rounds of DP-FedAvg with a public-data method, in JAX.

"Public Data-Assisted Mirror Descent for Private Model Training" (Amid et al.,
ICML 2022, arXiv:2112.00193), Algorithm 1 with the first-order mirror step of
equation (3):

    chunks of clients -> local SGD -> [before_clip] -> clip -> sum  (per device)
      -> noise -> / qN -> [after_noise] -> server SGD

where the method supplies the steps in brackets. The computation is the same as
in `pda_tff.build_learning_process`: without noise, weights agree up to
rounding. Several rounds run as one compiled program.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
from pda_fed import methods
from pda_fed import privacy
from pda_fed.common import divergence
from pda_fed.jax import aggregation
from pda_fed.jax import canaries as canaries_lib
from pda_fed.jax import clipping
from pda_fed.jax import devices as devices_lib
from pda_fed.jax import optimizers
from pda_fed.jax import rounds as rounds_lib
from pda_fed.jax.federated import chunks as chunks_lib
from pda_fed.jax.federated import local_training
from pda_fed.jax.federated import settings as settings_lib
from pda_fed.methods import arrays


class _ClientSums(NamedTuple):
  """Clipped and summed updates of clients, and their metrics."""

  updates: aggregation.ClippedSum
  loss: jax.Array
  targets: jax.Array
  mean_loss: jax.Array
  num_diverged: jax.Array


class _ClipInputs(NamedTuple):
  """Inputs of clipping: the norm and the method's prepared public update."""

  clip_norm: jax.Array
  prepared: Any = ()


def _leaves(tree: Any) -> arrays.Update:
  return tuple(jax.tree_util.tree_leaves(tree))


def _sum_clients(
  params: settings_lib.Params,
  clients: chunks_lib.ClientChunks,
  clip: _ClipInputs,
  *,
  settings: settings_lib.FederatedSettings,
  before_clip: Optional[Callable[[arrays.Update, Any], arrays.Update]] = None,
) -> _ClientSums:
  """Trains a device's chunks one after the other and sums their updates."""
  model, dtype = settings.model, jnp.dtype(settings.compute_dtype)

  def changed(update):
    # Methods see the model's coordinates without padding.
    leaves = _leaves(model.unpad_params(update))
    return model.as_params(before_clip(leaves, clip.prepared))

  # Unpad first: padded words have huge biases.
  weights_norm = arrays.norm(_leaves(model.unpad_params(params)))

  def body(i, sums):
    present = clients.present[i]
    trained = local_training.train_clients(
      model,
      params,
      tuple(array[i] for array in clients.examples),
      clients.weights[i],
      clients.num_steps[i],
      settings.client_learning_rate,
      gradient_clip=settings.client_gradient_clip,
      dtype=dtype,
    )
    updates, stats = trained.updates, trained.stats
    diverged = divergence.has_diverged(
      trained.first_loss,
      trained.mean_loss,
      clipping.update_norms(updates),
      weights_norm,
      settings.plan.clip_norm,
    )
    if before_clip is not None:
      updates = jax.vmap(changed)(updates)
    # A non-finite client sends zeros; its loss is left out, too.
    counted = present & jnp.isfinite(stats.loss)
    chunk = _ClientSums(
      aggregation.clipped_sum(updates, present, clip.clip_norm),
      jnp.where(counted, stats.loss, 0).sum(),
      jnp.where(counted, stats.targets, 0).sum(),
      jnp.where(counted, trained.mean_loss, 0).sum(),
      (diverged & present).sum(),
    )
    return jax.tree_util.tree_map(jnp.add, sums, chunk)

  summed = params if before_clip is None else model.unpad_params(params)
  totals = jax.tree_util.tree_map(jnp.zeros_like, summed)
  zero, count = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
  start = _ClientSums(
    aggregation.ClippedSum(totals, count, count, count),
    zero,
    zero,
    zero,
    count,
  )
  return jax.lax.fori_loop(0, clients.num_chunks, body, start)


def _private_update(
  plan: privacy.PrivacyPlan,
  sums: aggregation.ClippedSum,
  clip_norm: jax.Array,
  key: jax.Array,
) -> tuple[settings_lib.Params, jax.Array]:
  """Returns the noised mean and the clipping norm of the next round."""
  update_key, count_key = jax.random.split(key)
  mean = aggregation.noised_mean(
    sums.total,
    clip_norm=clip_norm,
    noise_multiplier=plan.update_noise_multiplier,
    expected_cohort=plan.expected_cohort,
    key=update_key,
  )
  if plan.adaptive_clipping is None:
    return mean, clip_norm
  return mean, aggregation.adapted_clip_norm(
    clip_norm,
    sums,
    target_quantile=plan.adaptive_clipping.target_quantile,
    learning_rate=plan.adaptive_clipping.learning_rate,
    count_stddev=plan.count_stddev,
    expected_cohort=plan.expected_cohort,
    key=count_key,
  )


class _Public(NamedTuple):
  """A round's public update, and what the method derived from it."""

  update: arrays.Update
  prepared: Any
  memory: arrays.Update
  loss: jax.Array


def _public_update(
  state: settings_lib.ServerState,
  params: settings_lib.Params,
  inputs: settings_lib.RoundInputs,
  settings: settings_lib.FederatedSettings,
  sum_public: Callable[..., _ClientSums],
) -> _Public:
  """Returns the public clients' mean update, clipped as the method requires."""
  is_clipped = settings.method.public == 'clipped_update'
  clip_norm = state.clip_norm if is_clipped else jnp.inf
  public = sum_public(params, inputs.public, _ClipInputs(clip_norm))
  count = public.updates.num_clients.astype(jnp.float32)
  update = jax.tree_util.tree_map(
    lambda leaf: leaf / count,
    settings.model.unpad_params(public.updates.total),
  )
  if settings.public_clip_norm is not None:
    is_private = settings.public_clip_norm == 'private'
    bound = state.clip_norm if is_private else settings.public_clip_norm
    update = clipping.clip_one(update, bound)
  prepared, memory = settings.method.prepare_public(
    _leaves(update), state.memory
  )
  return _Public(_leaves(update), prepared, memory, public.mean_loss / count)


def _with_canaries(
  sums: aggregation.ClippedSum,
  inputs: settings_lib.RoundInputs,
  signs: jax.Array,
  state: settings_lib.ServerState,
  settings: settings_lib.FederatedSettings,
  public: _Public,
) -> aggregation.ClippedSum:
  """Adds canaries to the clients' sum."""
  method, before_clip = settings.method, None
  if method.acts_before_clip:
    before_clip = functools.partial(method.before_clip, public=public.prepared)
  return canaries_lib.add_canaries(
    sums,
    inputs.canaries,
    signs,
    settings.canaries,
    state.clip_norm,
    before_clip,
  )


def _round(
  state: settings_lib.ServerState,
  inputs: settings_lib.RoundInputs,
  key: jax.Array,
  signs: Optional[jax.Array] = None,
  *,
  settings: settings_lib.FederatedSettings,
  sum_private: Callable[..., _ClientSums],
  sum_public: Callable[..., _ClientSums],
) -> tuple[settings_lib.ServerState, dict[str, jax.Array]]:
  """Runs one round."""
  model = settings.model
  method = settings.method.with_schedules_at(inputs.schedules)
  params = model.pad_params(state.params, settings.pad_to)
  public = _Public((), (), state.memory, jnp.zeros(()))
  if method.uses_public:
    public = _public_update(state, params, inputs, settings, sum_public)
  private = sum_private(
    params, inputs.private, _ClipInputs(state.clip_norm, public.prepared)
  )
  sums = private.updates
  if not method.acts_before_clip:
    # Noise applies to the model's coordinates only, so unpad first.
    sums = sums._replace(total=model.unpad_params(sums.total))
  everybody = sums
  if settings.canaries is not None:
    everybody = _with_canaries(sums, inputs, signs, state, settings, public)
  mean, clip_norm = _private_update(
    settings.plan,
    everybody,
    state.clip_norm,
    jax.random.fold_in(key, inputs.round_num),
  )
  scores = {}
  if settings.canaries is not None:
    scores[canaries_lib.SCORES] = canaries_lib.scores_of(
      mean,
      sums,
      signs,
      settings.canaries,
      clip_norm=state.clip_norm,
      expected_cohort=settings.plan.expected_cohort,
    )
  if settings.mean_clip_norm is not None:
    mean = clipping.clip_one(mean, settings.mean_clip_norm)
  metrics = {
    'train_loss': private.loss / private.targets,
    'clients': sums.num_clients,
    'non_finite_clients': sums.num_non_finite,
    'diverged_clients': private.num_diverged,
    'clipped_fraction': sums.num_clipped / jnp.maximum(sums.num_clients, 1),
    'clip_norm': clip_norm,
    **scores,
  }
  update, measured = methods.server_step(
    method,
    _leaves(mean),
    inputs.round_num.astype(jnp.float32),
    public.update,
    public.prepared,
  )
  metrics |= measured
  if method.uses_public:
    metrics['public_loss'] = public.loss
  params, momentum, squares = optimizers.server_step(
    settings.server_optimizer,
    state.params,
    state.momentum,
    state.squares,
    model.as_params(update),
    step=inputs.round_num + 1,
    learning_rate=settings.server_learning_rate,
    momentum_rate=settings.server_momentum,
  )
  metrics['weights_norm'] = arrays.norm(_leaves(params))
  state = settings_lib.ServerState(
    params, momentum, clip_norm, public.memory, squares
  )
  return state, metrics


def build_rounds(
  settings: settings_lib.FederatedSettings, devices: Sequence[jax.Device]
) -> Callable[..., tuple[settings_lib.ServerState, dict[str, jax.Array]]]:
  """Builds the compiled function that runs rounds.

  Example:

  ```
  run = build_rounds(settings, jax.devices()[:1])
  inputs = [RoundInputs(np.int32(t), chunks[t]) for t in range(5)]
  state, metrics = run(
      initial_state(settings, weights), stack_rounds(inputs, 5), 5,
      noise_key(seed))
  ```

  Args:
    settings: Settings of the run.
    devices: Devices that share the clients of a round. If they are on several
      hosts, each host calls the function with the clients of its own devices.

  Returns:
    A function of the state, `RoundInputs` of several rounds, the number of
    rounds to run, the `noise_key` and, for an audit, the canaries' signs. It
    returns the new state and metrics. Each metric is a vector with one value
    per round; canary scores have one more axis.
  """
  method = settings.method
  before_clip = method.before_clip if method.acts_before_clip else None
  sum_public = functools.partial(_sum_clients, settings=settings)
  sum_private = functools.partial(sum_public, before_clip=before_clip)
  one_round = functools.partial(
    _round,
    settings=settings,
    sum_private=devices_lib.map_over_devices(sum_private, devices),
    sum_public=devices_lib.map_over_devices(sum_public, devices),
  )

  def run(
    state, inputs: settings_lib.RoundInputs, num_rounds, key_data, signs=None
  ):
    key = jax.random.wrap_key_data(key_data, impl='threefry2x32')

    def one(state, at_round):
      return one_round(state, at_round, key, signs)

    return rounds_lib.run_rounds(one, state, inputs, num_rounds)

  compiled = jax.jit(run)

  def run_on_devices(state, inputs, num_rounds, key_data, signs=None):
    # Results are on all devices. Inputs must be too, or the second call would
    # compile again.
    state = devices_lib.replicate(state, devices)
    inputs = inputs._replace(
      private=devices_lib.split(inputs.private, devices),
      public=devices_lib.split(inputs.public, devices),
    )
    with rounds_lib.lasting_noise():
      return compiled(state, inputs, num_rounds, key_data, signs)

  return run_on_devices
