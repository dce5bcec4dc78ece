"""Rounds of DP-FedAvg and PDA-DPMD in JAX.

"Public Data-Assisted Mirror Descent for Private Model Training" (Amid et al.,
ICML 2022, arXiv:2112.00193), Algorithm 1 with the first-order mirror step of
equation (3):

    chunks of clients -> local SGD -> clip -> sum  (per device)
      -> noise -> / qN -> [mix with the public update] -> server SGD

The same computation as `learning.build_dp_fedavg` and `build_pda_dpmd`: without
noise, weights agree to rounding. Several rounds are one compiled program.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import models
from pda_fed import privacy
from pda_fed.common import validate
from pda_fed.models import jax_recurrent
from pda_fed.vectorized import aggregation
from pda_fed.vectorized import clipping
from pda_fed.vectorized import devices as devices_lib
from pda_fed.vectorized import rounds as rounds_lib
from pda_fed.vectorized import server_step
from pda_fed.vectorized.federated import chunks as chunks_lib
from pda_fed.vectorized.federated import local_training

_Params = jax_recurrent.RecurrentParams


class ServerState(NamedTuple):
  """What goes from round to round.

  Example: see `initial_state`.

  Attributes:
    params: The model's weights.
    momentum: The server optimizer's accumulator; () without momentum.
    clip_norm: S, which adaptive clipping moves.
  """

  params: _Params
  momentum: Union[_Params, tuple]
  clip_norm: jax.Array


class RoundInputs(NamedTuple):
  """The data of a round, or with one more leading axis those of several.

  Example: see `build_rounds`.

  Attributes:
    round_num: The round.
    private: Its private clients.
    public: Those whose updates make the public one; None for DP-FedAvg.
    alpha: The weight of the private update; None for DP-FedAvg.
  """

  round_num: np.ndarray
  private: chunks_lib.ClientChunks
  public: Optional[chunks_lib.ClientChunks] = None
  alpha: Optional[np.ndarray] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FederatedSettings:
  """What a compiled round depends on.

  Example:

    >>> settings = FederatedSettings(
    ...   spec=models.RecurrentSpec(num_words=10),
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
    spec: The model's sizes.
    plan: Clip, noise and expected cohort, with the 'gaussian' mechanism.
    client_learning_rate: Of local SGD.
    server_learning_rate: Of the server's SGD.
    server_momentum: Of the server's SGD.
    public_clip_norm: An optional bound on the public update's norm.
    mean_clip_norm: An optional bound on the noised mean's norm.
    compute_dtype: Of products, 'float32' or 'bfloat16'. Weights, clipping, sums
      and noise are in float32 in any case.
    pad_to: Sizes of the model become multiples of this during local training,
      which changes no number.
  """

  spec: models.RecurrentSpec
  plan: privacy.PrivacyPlan
  client_learning_rate: float
  server_learning_rate: float
  server_momentum: float = 0.0
  public_clip_norm: Optional[float] = None
  mean_clip_norm: Optional[float] = None
  compute_dtype: str = 'float32'
  pad_to: int = 8

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
  tokens: jax.Array
  mean_loss: jax.Array


def initial_state(
  settings: FederatedSettings, weights: Sequence[np.ndarray]
) -> ServerState:
  """Returns the state before the first round.

  Example:

    >>> from pda_fed.models import jax_recurrent
    >>> spec = models.RecurrentSpec(num_words=5, embedding_size=2, lstm_size=2)
    >>> settings = FederatedSettings(
    ...   spec=spec,
    ...   plan=privacy.PrivacyPlan(
    ...     population=100, expected_cohort=10, rounds=5, delta=1e-3,
    ...     noise_multiplier=1.0, clip_norm=0.5,
    ...   ),
    ...   client_learning_rate=0.5,
    ...   server_learning_rate=1.0,
    ... )
    >>> state = initial_state(settings, jax_recurrent.initial_params(spec))
    >>> float(state.clip_norm), state.momentum
    (0.5, ())

  Args:
    settings: Of the run.
    weights: Of the model, in the order of the Keras model.

  Raises:
    ValueError: If they are of another model.
  """
  params = jax_recurrent.check_params(settings.spec, weights)
  params = _Params(*(jnp.asarray(w, jnp.float32) for w in params))
  return ServerState(
    params,
    jax.tree_util.tree_map(jnp.zeros_like, params)
    if settings.server_momentum
    else (),
    jnp.asarray(settings.plan.clip_norm, jnp.float32),
  )


def noise_key(seed: int) -> np.ndarray:
  """Returns the key of all noise; all 64 bits of the seed count.

  `jax.random.PRNGKey` takes 32 bits unless JAX is set to 64.

  Example:

    >>> noise_key(2**32 + 7)
    array([1, 7], dtype=uint32)

  Args:
    seed: 64 bits.

  Raises:
    ValueError: If it is negative or has more bits.
  """
  validate.integers(0, noise_seed=seed)
  validate.in_range(0, 2**64 - 1, noise_seed=seed)
  return np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)


def _sum_clients(
  params: _Params,
  clients: chunks_lib.ClientChunks,
  clip_norm: jax.Array,
  *,
  settings: FederatedSettings,
) -> _ClientSums:
  """Trains a device's chunks one after the other and sums their updates."""
  dtype = jnp.dtype(settings.compute_dtype)
  zero = jnp.zeros((), jnp.float32)
  count = jnp.zeros((), jnp.int32)
  totals = jax.tree_util.tree_map(jnp.zeros_like, params)
  start = _ClientSums(
    aggregation.ClippedSum(totals, count, count, count), zero, zero, zero
  )

  def body(i, sums):
    present = clients.present[i]
    updates, stats = local_training.train_clients(
      params,
      clients.tokens[i],
      clients.weights[i],
      clients.num_steps[i],
      settings.client_learning_rate,
      dtype=dtype,
    )
    # A client that diverged sends zeros; its loss is left out likewise.
    counted = present & jnp.isfinite(stats.loss)
    mean_loss = stats.batch_loss / jnp.maximum(stats.sentences, 1)
    chunk = _ClientSums(
      aggregation.clipped_sum(updates, present, clip_norm),
      jnp.where(counted, stats.loss, 0).sum(),
      jnp.where(counted, stats.tokens, 0).sum(),
      jnp.where(counted, mean_loss, 0).sum(),
    )
    return jax.tree_util.tree_map(jnp.add, sums, chunk)

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


def _round(
  state: ServerState,
  inputs: RoundInputs,
  key: jax.Array,
  *,
  settings: FederatedSettings,
  sum_clients: Callable[..., _ClientSums],
) -> tuple[ServerState, dict[str, jax.Array]]:
  """One round."""
  spec = settings.spec
  params = jax_recurrent.pad_params(state.params, settings.pad_to)
  private = sum_clients(params, inputs.private, state.clip_norm)
  # Noise is for the model's own coordinates, so padding goes first.
  clipped = private.updates._replace(
    total=jax_recurrent.unpad_params(private.updates.total, spec)
  )
  update, clip_norm = _private_update(
    settings.plan,
    clipped,
    state.clip_norm,
    jax.random.fold_in(key, inputs.round_num),
  )
  if settings.mean_clip_norm is not None:
    update = clipping.clip_one(update, settings.mean_clip_norm)
  metrics = {
    'train_loss': private.loss / private.tokens,
    'clients': clipped.num_clients,
    'non_finite_clients': clipped.num_non_finite,
    'clipped_fraction': (
      clipped.num_clipped / jnp.maximum(clipped.num_clients, 1)
    ),
    'clip_norm': clip_norm,
  }
  if inputs.public is None:
    metrics['private_norm'] = server_step.global_norm(update)
  else:
    public = sum_clients(params, inputs.public, jnp.inf)
    count = public.updates.num_clients.astype(jnp.float32)
    public_update = jax.tree_util.tree_map(
      lambda leaf: leaf / count,
      jax_recurrent.unpad_params(public.updates.total, spec),
    )
    if settings.public_clip_norm is not None:
      public_update = clipping.clip_one(
        public_update, settings.public_clip_norm
      )
    update, mixed = server_step.mirror_step(update, public_update, inputs.alpha)
    metrics |= mixed | {'public_loss': public.mean_loss / count}
  params, momentum = server_step.sgd_step(
    state.params,
    state.momentum,
    update,
    settings.server_learning_rate,
    settings.server_momentum,
  )
  state = state._replace(params=params, momentum=momentum)
  metrics['weights_norm'] = server_step.global_norm(state.params)
  return state._replace(clip_norm=clip_norm), metrics


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
    these to run, and of the `noise_key`. It returns the new state and metrics,
    each a vector of one number a round.
  """
  sum_clients = devices_lib.map_over_devices(
    functools.partial(_sum_clients, settings=settings), devices
  )

  def run(state, inputs: RoundInputs, num_rounds, key_data):
    key = jax.random.wrap_key_data(key_data, impl='threefry2x32')

    def one(state, at_round):
      return _round(
        state, at_round, key, settings=settings, sum_clients=sum_clients
      )

    return rounds_lib.run_rounds(one, state, inputs, num_rounds)

  compiled = jax.jit(run)

  def run_on_devices(state, inputs, num_rounds, key_data):
    # What a call returns is on all devices; what it gets must be, too, or the
    # second call would be compiled again.
    state = devices_lib.replicate(state, devices)
    with rounds_lib.lasting_noise():
      return compiled(state, inputs, num_rounds, key_data)

  return run_on_devices


def stack_rounds(rounds: Sequence[RoundInputs], room: int) -> Any:
  """Puts rounds behind each other, with room for more.

  Example: see `build_rounds`.

  Args:
    rounds: At least one, all of equal shapes.
    room: At least as many; the rest is a copy of the last one.

  Returns:
    The rounds as one `RoundInputs`, with a leading axis of that size.
  """
  padded = [*rounds, *[rounds[-1]] * (room - len(rounds))]
  return jax.tree_util.tree_map(lambda *a: np.stack(a), *padded)
