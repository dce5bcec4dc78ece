"""Rounds of DP-FedAvg with a public-data method, in JAX.

A round of "Public Data-Assisted Mirror Descent for Private Model Training"
(Amid et al., ICML 2022, arXiv:2112.00193), Algorithm 1:

    chunks of clients -> local SGD -> [before_clip] -> clip -> sum  (per device)
      -> server_round: noise -> / qN -> [after_noise] -> server optimizer

where the method supplies the steps in brackets. The computation is the same as
in `pda_tff.build_learning_process`: without noise, weights agree up to
rounding. Several rounds run as one compiled program.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
from typing import Any, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pda_fed import methods
from pda_fed import privacy
from pda_fed.common import divergence
from pda_fed.common import validate
from pda_fed.jax import aggregation
from pda_fed.jax import canaries as canaries_lib
from pda_fed.jax import clipping
from pda_fed.jax import devices as devices_lib
from pda_fed.jax import rounds as rounds_lib
from pda_fed.jax import server_round as server_lib
from pda_fed.jax.federated import chunks as chunks_lib
from pda_fed.jax.federated import local_training
from pda_fed.methods import arrays
from pda_fed.models import batches as batches_lib
from pda_fed.models import model as model_lib


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


@dataclasses.dataclass(eq=False)
class Federated:
  """Trains a model on private users; `step` runs one round.

  Example:

  ```
  trainer = Federated(
      model, plan, methods.PdaDpmd(alpha=schedules.cosine(400)), public=public,
      client_optimizer=optax.sgd(0.5), server_optimizer=optax.sgd(1.0))
  state = trainer.init(model.init(0))
  for cohort in plan.cohorts(private):
    state, metrics = trainer.step(state, cohort)
  ```

  Attributes:
    model: The model, or the loss of one example, `loss(params, *example)`; see
      `models.Model`.
    plan: The privacy plan. The mechanism must be 'gaussian'.
    method: The public-data method; by default, no public data is used.
    client_optimizer: The optimizer of local training, any of optax. SGD
      without momentum is fastest. To bound each gradient's norm, chain it with
      `optax.clip_by_global_norm`.
    server_optimizer: The optimizer of the server, any of optax.
    public: The data of each public user, for `step`: arrays with one row per
      example, or a tuple of such arrays.
    public_users_per_round: How many of them `step` samples; by default all.
    batch_size: Examples in a batch of local training, for `step`.
    public_clip_norm: The bound on the public update's norm: a number, 'private'
      for the clipping norm of private updates, or None for no bound.
    mean_clip_norm: An optional bound on the noised mean's norm.
    compute_dtype: Dtype of matrix products, 'float32' or 'bfloat16'. Weights,
      clipping, sums and noise are always in float32.
    canaries: Canary settings of an audit; None without an audit.
    devices: Devices that share the clients of a round; by default all. If they
      are on several hosts, each host passes the clients of its own devices.
  """

  model: Union[model_lib.Model, Callable[..., Any]]
  plan: privacy.PrivacyPlan
  method: methods.Method = methods.ColdStart()
  _: dataclasses.KW_ONLY
  client_optimizer: optax.GradientTransformation
  server_optimizer: optax.GradientTransformation
  public: Sequence[Any] = ()
  public_users_per_round: Optional[int] = None
  batch_size: int = 16
  public_clip_norm: Union[float, str, None] = 'private'
  mean_clip_norm: Optional[float] = None
  compute_dtype: str = 'float32'
  canaries: Optional[canaries_lib.CanarySettings] = None
  devices: Sequence[jax.Device] = ()

  def __post_init__(self):
    self._model = model_lib.as_model(self.model)
    validate.instances(
      optax.GradientTransformation,
      client_optimizer=self.client_optimizer,
      server_optimizer=self.server_optimizer,
    )
    validate.one_of(('gaussian',), mechanism=self.plan.mechanism)
    validate.one_of(('float32', 'bfloat16'), compute_dtype=self.compute_dtype)
    validate.integers(1, batch_size=self.batch_size)
    validate.positive_or(
      (None,),
      mean_clip_norm=self.mean_clip_norm,
    )
    validate.positive_or(
      ('private', None), public_clip_norm=self.public_clip_norm
    )
    self.devices = self.devices or devices_lib.choose_devices()
    self._clients_per_chunk: Optional[int] = None
    self._compiled = jax.jit(self._run)
    self._sum_public = self._on_devices(None)
    self._sum_private = self._on_devices(
      self.method.before_clip if self.method.acts_before_clip else None
    )

  def init(self, params: Any) -> server_lib.ServerState:
    """Returns the state before the first round.

    Args:
      params: The model's weights, such as `model.init(seed)`.

    Raises:
      ValueError: If the weights do not fit the model.
    """
    return server_lib.initial_state(
      self.plan,
      self.method,
      self.server_optimizer,
      batches_lib.check_params(params, self._model),
    )

  def step(
    self, state: server_lib.ServerState, cohort: privacy.Cohort
  ) -> tuple[server_lib.ServerState, dict[str, float]]:
    """Runs one round.

    Args:
      state: The state before the round.
      cohort: The users of the round and their secret, by `plan.cohorts`. The
        data of a user are like those of `public`.

    Returns:
      The new state, and metrics. Only the state is private.

    Raises:
      ReusedNoiseError: If the round ran before from another state, with other
        users or with another result: the same noise would reveal the
        difference.
      ValueError: If the plan has fewer rounds, or public users are missing.
    """
    t, seeds = cohort.round_num, cohort.seeds
    rounds_lib.check_round(self.plan, t)
    before = server_lib.leaves_of(state)
    users = [_as_arrays(user) for user in cohort]
    expected = self.plan.expected_cohort
    inputs = chunks_lib.RoundInputs(
      np.asarray(t, np.int32),
      self._chunks(state, users, expected + 4 * math.sqrt(expected)),
      self._public_chunks(state, t, seeds.public),
      self.method.schedules_at(t),
    )
    state, metrics = self.run(
      state,
      rounds_lib.stack_rounds([inputs], 1),
      1,
      rounds_lib.noise_key(seeds.noise),
    )
    # Other settings or public users make another sum of the same users.
    cohort.claim(*before, *server_lib.leaves_of(state))
    found = {n: float(v[0]) for n, v in jax.device_get(metrics).items()}
    rounds_lib.warn_non_finite(
      found['clients'],
      found['non_finite_clients'],
      'Look at the loss of one example; is the learning rate too high?',
    )
    return state, found

  def _public_chunks(self, state, t: int, seed: int):
    if not self.method.uses_public:
      return None
    if not self.public:
      raise ValueError(
        f'public must have at least one user with the method'
        f' {self.method.title!r}. Found none.'
      )
    count = self.public_users_per_round or len(self.public)
    drawn = rounds_lib.draw_users(seed, t, len(self.public), count)
    users = [_as_arrays(self.public[i]) for i in drawn]
    return self._chunks(state, users, count)

  def _chunks(
    self, state, users, usual: float
  ) -> Optional[chunks_lib.ClientChunks]:
    if not users:  # A valid cohort, whose shapes are unknown.
      return None
    num_devices = len(self.devices)
    per_device = math.ceil(max(usual, len(users)) / num_devices)
    if self._clients_per_chunk is None:
      sizes = np.array([len(user[0]) for user in users])
      self._clients_per_chunk = devices_lib.choose_clients_per_chunk(
        arrays.size(server_lib.leaves_of(state.params)),
        self.devices[0],
        -(-sizes // self.batch_size),
        per_device,
      )
    return chunks_lib.chunk_users(
      users,
      batch_size=self.batch_size,
      clients_per_chunk=self._clients_per_chunk,
      num_devices=num_devices,
      min_chunks=math.ceil(per_device / self._clients_per_chunk),
    )

  def run(
    self,
    state: server_lib.ServerState,
    inputs: chunks_lib.RoundInputs,
    num_rounds: int,
    key_data: np.ndarray,
    signs: Optional[np.ndarray] = None,
  ) -> tuple[server_lib.ServerState, dict[str, jax.Array]]:
    """Runs several rounds in one call; `step` is simpler.

    Args:
      state: The state before the first round.
      inputs: The rounds' inputs, by `stack_rounds`.
      num_rounds: Number of rounds to run, at most those of the inputs.
      key_data: The `noise_key`. Never use it with other clients in a round.
      signs: The signs of an audit's canaries.

    Returns:
      The new state, and metrics. Each metric is a vector with one value per
      round; canary scores have one more axis.
    """
    # Results are on all devices. Inputs must be too, or the second call would
    # compile again.
    state = devices_lib.replicate(state, self.devices)
    inputs = inputs._replace(
      private=devices_lib.split(inputs.private, self.devices),
      public=devices_lib.split(inputs.public, self.devices),
    )
    with rounds_lib.lasting_noise():
      return self._compiled(state, inputs, num_rounds, key_data, signs)

  def _run(self, state, inputs, num_rounds, key_data, signs):
    key = jax.random.wrap_key_data(key_data, impl='threefry2x32')
    one = functools.partial(self._round, key=key, signs=signs)
    return rounds_lib.run_rounds(one, state, inputs, num_rounds)

  def _round(self, state, inputs: chunks_lib.RoundInputs, *, key, signs):
    """Runs one round."""
    method = self.method.with_schedules_at(inputs.schedules)
    params = state.params
    public = server_lib.PublicUpdate()
    if method.uses_public:
      public = self._public_update(method, state, inputs.public)
    private = _no_sums(params)
    if inputs.private is not None:
      clip = _ClipInputs(state.clip_norm, public.prepared)
      private = self._sum_private(params, inputs.private, clip)
    canaries = self.canaries and canaries_lib.Canaries(
      self.canaries, inputs.canaries, signs
    )
    state, metrics = server_lib.server_round(
      self.plan,
      method,
      self.server_optimizer,
      state,
      private.updates,
      public,
      key=jax.random.fold_in(key, inputs.round_num),
      t=inputs.round_num,
      mean_clip_norm=self.mean_clip_norm,
      canaries=canaries,
    )
    metrics['train_loss'] = private.loss / private.targets
    metrics['diverged_clients'] = private.num_diverged
    return state, metrics

  def _public_update(self, method, state, clients):
    """Returns the public clients' mean update, clipped as the method wants."""
    is_clipped = method.public == 'clipped_update'
    clip_norm = state.clip_norm if is_clipped else jnp.inf
    public = self._sum_public(state.params, clients, _ClipInputs(clip_norm))
    count = public.updates.num_clients.astype(jnp.float32)
    update = jax.tree_util.tree_map(
      lambda leaf: leaf / count, public.updates.total
    )
    if self.public_clip_norm is not None:
      is_private = self.public_clip_norm == 'private'
      bound = state.clip_norm if is_private else self.public_clip_norm
      update = clipping.clip_one(update, bound)
    return server_lib.public_update(
      method, state, update, public.mean_loss / count
    )

  def _on_devices(self, before_clip) -> Callable[..., _ClientSums]:
    sum_clients = functools.partial(self._sum_clients, before_clip=before_clip)
    return devices_lib.map_over_devices(sum_clients, self.devices)

  def _sum_clients(
    self,
    params: Any,
    clients: chunks_lib.ClientChunks,
    clip: _ClipInputs,
    *,
    before_clip: Optional[Callable[[arrays.Update, Any], arrays.Update]],
  ) -> _ClientSums:
    """Trains a device's chunks one after the other and sums their updates."""
    structure = jax.tree.structure(params)

    def changed(update):
      leaves = server_lib.leaves_of(update)
      return structure.unflatten(before_clip(leaves, clip.prepared))

    weights_norm = arrays.norm(server_lib.leaves_of(params))

    def body(i, sums):
      present = clients.present[i]
      trained = local_training.train_clients(
        self._model,
        params,
        tuple(array[i] for array in clients.examples),
        clients.weights[i],
        clients.num_steps[i],
        self.client_optimizer,
        dtype=jnp.dtype(self.compute_dtype),
      )
      updates, stats = trained.updates, trained.stats
      diverged = divergence.has_diverged(
        trained.first_loss,
        trained.mean_loss,
        clipping.update_norms(updates),
        weights_norm,
        self.plan.clip_norm,
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

    return jax.lax.fori_loop(0, clients.num_chunks, body, _no_sums(params))


def _no_sums(params: Any) -> _ClientSums:
  """Returns the sums of no clients."""
  totals = jax.tree_util.tree_map(jnp.zeros_like, params)
  zero, count = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
  sums = aggregation.ClippedSum(totals, count, count, count)
  return _ClientSums(sums, zero, zero, zero, count)


def _as_arrays(user: Any) -> tuple[np.ndarray, ...]:
  return tuple(user) if isinstance(user, (tuple, list)) else (user,)
