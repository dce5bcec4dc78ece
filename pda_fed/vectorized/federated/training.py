"""Rounds of DP-FedAvg with a public-data method, in JAX.

"Public Data-Assisted Mirror Descent for Private Model Training" (Amid et al.,
ICML 2022, arXiv:2112.00193), Algorithm 1 with the first-order mirror step of
equation (3):

    chunks of clients -> local SGD -> [before_clip] -> clip -> sum  (per device)
      -> noise -> / qN -> [after_noise] -> server SGD

where the brackets are the method's. The same computation as
`learning.build_learning_process`: without noise, weights agree to rounding.
Several rounds are one compiled program.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import methods
from pda_fed import privacy
from pda_fed.common import validate
from pda_fed.methods import arrays
from pda_fed.models import jax_model
from pda_fed.vectorized import aggregation
from pda_fed.vectorized import canaries as canaries_lib
from pda_fed.vectorized import clipping
from pda_fed.vectorized import devices as devices_lib
from pda_fed.vectorized import optimizers
from pda_fed.vectorized import rounds as rounds_lib
from pda_fed.vectorized.federated import chunks as chunks_lib
from pda_fed.vectorized.federated import local_training

# Weights of a model, in the structure that it has for them.
_Params = Any


class ServerState(NamedTuple):
  """What goes from round to round.

  Example: see `initial_state`.

  Attributes:
    params: The model's weights.
    momentum: The server optimizer's accumulator; () without momentum.
    clip_norm: S, which adaptive clipping moves.
    memory: What the method remembers of public updates.
  """

  params: _Params
  momentum: _Params
  clip_norm: jax.Array
  memory: arrays.Update = ()


class RoundInputs(NamedTuple):
  """The data of a round, or with one more leading axis those of several.

  Example: see `build_rounds`.

  Attributes:
    round_num: The round.
    private: Its private clients.
    public: Those whose updates make the public one; None if the method uses
      none.
    schedules: Values of the method's schedules, by field.
    canaries: The canaries of an audit; None without one.
  """

  round_num: np.ndarray
  private: chunks_lib.ClientChunks
  public: Optional[chunks_lib.ClientChunks] = None
  schedules: Mapping[str, np.ndarray] = {}
  canaries: Optional[canaries_lib.CanaryInputs] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FederatedSettings:
  """What a compiled round depends on.

  Example:

    >>> from pda_fed import models
    >>> settings = FederatedSettings(
    ...   model=models.RecurrentSpec(num_words=10).jax_model(),
    ...   plan=privacy.PrivacyPlan(
    ...     population=100, expected_cohort=10, rounds=5, delta=1e-3,
    ...     noise_multiplier=1.0, clip_norm=1.0,
    ...   ),
    ...   client_learning_rate=0.5,
    ...   server_learning_rate=1.0,
    ... )
    >>> settings.compute_dtype
    'float32'

  Attributes:
    model: The model.
    plan: Clip, noise and expected cohort, with the 'gaussian' mechanism.
    client_learning_rate: Of local SGD.
    server_learning_rate: Of the server's SGD.
    server_momentum: Of the server's SGD.
    method: The public-data method; by default none.
    public_clip_norm: An optional bound on the public update's norm.
    mean_clip_norm: An optional bound on the noised mean's norm.
    compute_dtype: Of products, 'float32' or 'bfloat16'. Weights, clipping, sums
      and noise are in float32 in any case.
    pad_to: Sizes of the model become multiples of this during local training,
      which changes no number.
    canaries: What the canaries of an audit send; None without one.
  """

  model: jax_model.Model
  plan: privacy.PrivacyPlan
  client_learning_rate: float
  server_learning_rate: float
  server_momentum: float = 0.0
  method: methods.Method = methods.ColdStart()
  public_clip_norm: Optional[float] = None
  mean_clip_norm: Optional[float] = None
  compute_dtype: str = 'float32'
  pad_to: int = 8
  canaries: Optional[canaries_lib.CanarySettings] = None

  def __post_init__(self):
    validate.one_of(('gaussian',), mechanism=self.plan.mechanism)
    validate.one_of(('float32', 'bfloat16'), compute_dtype=self.compute_dtype)
    validate.positive(
      client_learning_rate=self.client_learning_rate,
      server_learning_rate=self.server_learning_rate,
    )
    validate.non_negative(server_momentum=self.server_momentum)
    validate.integers(1, pad_to=self.pad_to)


class _ClientSums(NamedTuple):
  """Of clients: their updates, clipped and summed, and metrics."""

  updates: aggregation.ClippedSum
  loss: jax.Array
  targets: jax.Array
  mean_loss: jax.Array


class _ClipInputs(NamedTuple):
  """What clipping needs: the norm, and what the method has of public data."""

  clip_norm: jax.Array
  prepared: Any = ()


def initial_state(
  settings: FederatedSettings, weights: Sequence[np.ndarray]
) -> ServerState:
  """Returns the state before the first round.

  Example:

    >>> from pda_fed import models
    >>> spec = models.RecurrentSpec(num_words=5, embedding_size=2, lstm_size=2)
    >>> model = spec.jax_model()
    >>> settings = FederatedSettings(
    ...   model=model,
    ...   plan=privacy.PrivacyPlan(
    ...     population=100, expected_cohort=10, rounds=5, delta=1e-3,
    ...     noise_multiplier=1.0, clip_norm=0.5,
    ...   ),
    ...   client_learning_rate=0.5,
    ...   server_learning_rate=1.0,
    ... )
    >>> state = initial_state(settings, model.initial_params(0))
    >>> float(state.clip_norm), state.momentum
    (0.5, ())

  Args:
    settings: Of the run.
    weights: Of the model, in the order of the Keras model.

  Raises:
    ValueError: If they are of another model.
  """
  params = settings.model.check_params(weights)
  return ServerState(
    params,
    jax.tree_util.tree_map(jnp.zeros_like, params)
    if settings.server_momentum
    else (),
    jnp.asarray(settings.plan.clip_norm, jnp.float32),
    settings.method.initial_memory(_leaves(params)),
  )


def _leaves(tree: Any) -> arrays.Update:
  return tuple(jax.tree_util.tree_leaves(tree))


def _sum_clients(
  params: _Params,
  clients: chunks_lib.ClientChunks,
  clip: _ClipInputs,
  *,
  settings: FederatedSettings,
  before_clip: Optional[Callable[[arrays.Update, Any], arrays.Update]] = None,
) -> _ClientSums:
  """Trains a device's chunks one after the other and sums their updates."""
  model, dtype = settings.model, jnp.dtype(settings.compute_dtype)

  def changed(update):
    # A method sees the model's own coordinates, without padding.
    leaves = _leaves(model.unpad_params(update))
    return model.as_params(before_clip(leaves, clip.prepared))

  def body(i, sums):
    present = clients.present[i]
    updates, stats = local_training.train_clients(
      model,
      params,
      tuple(array[i] for array in clients.examples),
      clients.weights[i],
      clients.num_steps[i],
      settings.client_learning_rate,
      dtype=dtype,
    )
    if before_clip is not None:
      updates = jax.vmap(changed)(updates)
    # A client that diverged sends zeros; its loss is left out likewise.
    counted = present & jnp.isfinite(stats.loss)
    mean_loss = stats.batch_loss / jnp.maximum(stats.examples, 1)
    chunk = _ClientSums(
      aggregation.clipped_sum(updates, present, clip.clip_norm),
      jnp.where(counted, stats.loss, 0).sum(),
      jnp.where(counted, stats.targets, 0).sum(),
      jnp.where(counted, mean_loss, 0).sum(),
    )

    return jax.tree_util.tree_map(jnp.add, sums, chunk)

  summed = params if before_clip is None else model.unpad_params(params)
  totals = jax.tree_util.tree_map(jnp.zeros_like, summed)
  zero, count = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
  start = _ClientSums(
    aggregation.ClippedSum(totals, count, count, count), zero, zero, zero
  )
  return jax.lax.fori_loop(0, clients.num_chunks, body, start)


def _private_update(
  plan: privacy.PrivacyPlan,
  sums: aggregation.ClippedSum,
  clip_norm: jax.Array,
  key: jax.Array,
) -> tuple[_Params, jax.Array]:
  """The noised mean, and the clip of the next round."""
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
  """A round's public update, and what the method made of it."""

  update: arrays.Update
  prepared: Any
  memory: arrays.Update
  loss: jax.Array


def _public_update(
  state: ServerState,
  params: _Params,
  inputs: RoundInputs,
  settings: FederatedSettings,
  sum_public: Callable[..., _ClientSums],
) -> _Public:
  """The mean update of public clients, clipped as the method wants it."""
  is_clipped = settings.method.public == 'clipped_update'
  clip_norm = state.clip_norm if is_clipped else jnp.inf
  public = sum_public(params, inputs.public, _ClipInputs(clip_norm))
  count = public.updates.num_clients.astype(jnp.float32)
  update = jax.tree_util.tree_map(
    lambda leaf: leaf / count,
    settings.model.unpad_params(public.updates.total),
  )
  if settings.public_clip_norm is not None:
    update = clipping.clip_one(update, settings.public_clip_norm)
  prepared, memory = settings.method.prepare_public(
    _leaves(update), state.memory
  )
  return _Public(_leaves(update), prepared, memory, public.mean_loss / count)


def _with_canaries(
  sums: aggregation.ClippedSum,
  inputs: RoundInputs,
  signs: jax.Array,
  state: ServerState,
  settings: FederatedSettings,
  public: _Public,
) -> aggregation.ClippedSum:
  """Adds canaries to the sum of clients."""
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
  state: ServerState,
  inputs: RoundInputs,
  key: jax.Array,
  signs: Optional[jax.Array] = None,
  *,
  settings: FederatedSettings,
  sum_private: Callable[..., _ClientSums],
  sum_public: Callable[..., _ClientSums],
) -> tuple[ServerState, dict[str, jax.Array]]:
  """One round."""
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
    # Noise is for the model's own coordinates, so padding goes first.
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
  params, momentum = optimizers.sgd_step(
    state.params,
    state.momentum,
    model.as_params(update),
    settings.server_learning_rate,
    settings.server_momentum,
  )
  metrics['weights_norm'] = arrays.norm(_leaves(params))
  return ServerState(params, momentum, clip_norm, public.memory), metrics


def build_rounds(
  settings: FederatedSettings, devices: Sequence[jax.Device]
) -> Callable[..., tuple[ServerState, dict[str, jax.Array]]]:
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
    settings: Of the run.
    devices: Share the clients of a round.

  Returns:
    A function of the state, `RoundInputs` of several rounds, of how many of
    these to run, of the `noise_key` and, for an audit, of the canaries' signs.
    It returns the new state and metrics, each a vector of one number a round;
    the canaries' scores have one more axis.
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

  def run(state, inputs: RoundInputs, num_rounds, key_data, signs=None):
    key = jax.random.wrap_key_data(key_data, impl='threefry2x32')

    def one(state, at_round):
      return one_round(state, at_round, key, signs)

    return rounds_lib.run_rounds(one, state, inputs, num_rounds)

  compiled = jax.jit(run)

  def run_on_devices(state, inputs, num_rounds, key_data, signs=None):
    # What a call returns is on all devices; what it gets must be, too, or the
    # second call would be compiled again.
    state = devices_lib.replicate(state, devices)
    with rounds_lib.lasting_noise():
      return compiled(state, inputs, num_rounds, key_data, signs)

  return run_on_devices
