"""The JAX engine of federated runs: trains clients side by side on CPU or GPU.

It does not need TensorFlow. It draws the same cohorts and public users as the
TFF engine. It draws noise from another generator: a run that changes engines
resumes with different noise of the same distribution.
"""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import functools
import math
import platform
from typing import Any, Optional
import warnings

import data_prep
import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import errors
from pda_fed import jax as pda_jax
from pda_fed import privacy
from pda_fed.jax import devices as devices_lib
from pda_fed.jax import rounds as rounds_lib
from pda_fed.models import batches as model_batches
from pda_fed.runs import resolving
from pda_fed.runs.engines import base as engine_lib
from pda_fed.runs.engines import jax_canaries


@contextlib.contextmanager
def open_engine(
  run: resolving.Run, seeds: privacy.SeedStreams
) -> Iterator['JaxEngine']:
  """Opens the engine.

  Args:
    run: The run.
    seeds: The run's seeds.

  Yields:
    The engine.
  """
  devices_lib.use_all_cores()
  yield JaxEngine(run, seeds)


class JaxEngine:
  """Computes on JAX's devices; see `engine.Engine`."""

  name = 'jax'

  def __init__(self, run: resolving.Run, seeds: privacy.SeedStreams):
    """Chooses devices and compiles the rounds.

    Args:
      run: The run.
      seeds: The run's seeds.

    Raises:
      DeviceError: If the requested device is unavailable.
      ValueError: If the model has no room for the canaries.
    """
    spec = run.spec
    self.run = run
    self._seeds = seeds
    data: Any = run.data
    self._store: data_prep.UserStore = data.store
    self._devices = devices_lib.choose_devices(spec.execution.platform)
    self._own_devices = devices_lib.places_of_this_host(self._devices)
    self._model = run.model.jax_model()
    shapes = model_batches.named_shapes(self._model)
    self.canaries = engine_lib.make_canaries(run, seeds, shapes.values())
    self._trainer = pda_jax.Federated(
      self._model,
      run.plan,
      run.method,
      client_optimizer=pda_jax.build_optimizer(
        spec.client, spec.client.gradient_clip
      ),
      server_optimizer=pda_jax.build_optimizer(spec.server),
      public_clip_norm=spec.public.clip_norm,
      mean_clip_norm=run.bound(spec.server.mean_clip_norm),
      compute_dtype=spec.execution.compute_dtype,
      canaries=jax_canaries.settings_of(self.canaries),
      devices=self._devices,
    )
    self._noise_key = pda_jax.noise_key(seeds.noise)
    self._clients_per_chunk = (
      spec.execution.clients_per_chunk or self._choose_clients_per_chunk()
    )

  def order_of_sums(self) -> dict[str, Any]:
    """See `engine.Engine`."""
    return {
      'clients_per_chunk': self._clients_per_chunk,
      'machine': platform.machine(),
      'platform': self._devices[0].platform,
      'device': self._devices[0].device_kind,
      'num_devices': len(self._devices),
    }

  def _choose_clients_per_chunk(self) -> int:
    batch = self.run.spec.client.batch_size
    return devices_lib.choose_clients_per_chunk(
      model_batches.num_weights(self._model),
      self._devices[0],
      -(-self._store.num_examples('private') // batch),
      math.ceil(self.run.plan.expected_cohort / len(self._devices)),
    )

  def initialize(self) -> pda_jax.ServerState:
    """See `engine.Engine`."""
    return self._trainer.init(self._model.init(self._seeds.initialization))

  def run_rounds(self, state, first_round: int, num_rounds: int):
    """See `engine.Engine`."""
    metrics = []
    room = self.run.rounds_per_dispatch
    end = first_round + num_rounds
    for first in range(first_round, end, room):
      rounds = range(first, min(first + room, end))
      state, found = self._dispatch(state, rounds, room)
      metrics += [
        self._shown(round_num, {n: v[i] for n, v in found.items()})
        for i, round_num in enumerate(rounds)
      ]
    return state, metrics

  def _dispatch(self, state, rounds: range, room: int):
    """Runs rounds in one call, with smaller chunks if memory runs out."""
    while True:
      try:
        # Does not replace `state` yet: a GPU may report that memory ran out
        # only when metrics are read, and the returned state is then invalid.
        new_state, metrics = self._trainer.run(
          state,
          self._inputs(rounds, room),
          len(rounds),
          self._noise_key,
          None if self.canaries is None else self.canaries.signs,
        )
        return new_state, {n: np.asarray(v) for n, v in metrics.items()}
      except RuntimeError as e:
        if 'RESOURCE_EXHAUSTED' not in str(e) or self._clients_per_chunk == 1:
          raise
        if len(self._own_devices) < len(self._devices):
          raise  # All hosts must have the same chunks.
        self._clients_per_chunk //= 2
        warnings.warn(
          'The device ran out of memory: using'
          f' clients_per_chunk={self._clients_per_chunk} from here on.',
          stacklevel=2,
        )

  def _inputs(self, rounds: range, room: int) -> pda_jax.RoundInputs:
    """Returns the data of rounds, all of the same shape."""
    plan = self.run.plan
    cohorts = [plan.cohort(t, self._seeds.sampling) for t in rounds]
    # Few Poisson cohorts are larger.
    usual = plan.expected_cohort + 4 * math.sqrt(plan.expected_cohort)
    largest = max(usual, *map(len, cohorts))
    per_device = math.ceil(largest / len(self._devices))
    private = pda_jax.chunk_rounds(
      [self._store.num_examples('private')[c] for c in cohorts],
      [functools.partial(self._load, 'private', c) for c in cohorts],
      batch_size=self.run.spec.client.batch_size,
      clients_per_chunk=self._clients_per_chunk,
      num_devices=len(self._devices),
      own_devices=self._own_devices,
      min_chunks=math.ceil(per_device / self._clients_per_chunk),
    )
    method = self.run.method
    public = [None] * len(rounds)
    if method.uses_public:
      public = self._public(rounds)
    audited = jax_canaries.inputs_of(self.canaries, rounds)
    inputs = [
      pda_jax.RoundInputs(
        np.asarray(t, np.int32),
        of_private,
        of_public,
        method.schedules_at(t),
        canaries,
      )
      for t, canaries, of_private, of_public in zip(
        rounds, audited, private, public, strict=True
      )
    ]
    return pda_jax.stack_rounds(inputs, room)

  def _load(self, group: str, users: np.ndarray, places, num_clients: int):
    cohort = data_prep.load_cohort(
      self._store,
      group,
      users[places],
      batch_size=self.run.spec.client.batch_size,
      num_clients=num_clients,
    )
    return cohort.examples, cohort.weights

  def _public(self, rounds: range) -> list[pda_jax.ClientChunks]:
    """Returns the data from which public updates are computed."""
    spec, seed = self.run.spec, self._seeds.public
    sizes = self._store.num_examples('public')
    if spec.public.update == 'gradient':
      count = spec.public.users_per_round * spec.client.batch_size
      total = int(sizes.sum())
      drawn = [pda_jax.draw_rows(seed, t, total, count) for t in rounds]
      return [
        pda_jax.chunk_users(
          [tuple(array[rows] for array in self._public_examples)],
          batch_size=count,
          clients_per_chunk=1,
          num_devices=len(self._devices),
          own_devices=self._own_devices,
        )
        for rows in drawn
      ]
    users = [
      pda_jax.draw_users(seed, t, len(sizes), spec.public.users_per_round)
      for t in rounds
    ]
    side_by_side = min(self._clients_per_chunk, spec.public.users_per_round)
    return pda_jax.chunk_rounds(
      [sizes[u] for u in users],
      [functools.partial(self._load, 'public', u) for u in users],
      batch_size=spec.client.batch_size,
      clients_per_chunk=side_by_side,
      num_devices=len(self._devices),
      own_devices=self._own_devices,
    )

  @functools.cached_property
  def _public_examples(self) -> tuple[np.ndarray, ...]:
    return self._examples('public')

  def _examples(self, group: str, max_users: Optional[int] = None):
    """Returns the examples of a group's first users, which are adjacent."""
    offsets = self._store.row_offsets(group)[: _stop(max_users)]
    return self._store.read(offsets[0], offsets[-1])

  def _too_high(self) -> str:
    spec = self.run.spec
    return (
      'Probably a learning rate is too high:'
      f' client.learning_rate={spec.client.learning_rate:g},'
      f' server.learning_rate={spec.server.learning_rate:g}.'
    )

  def _shown(self, round_num: int, found: dict[str, Any]) -> dict[str, float]:
    """Returns the metrics of a round, or raises if it diverged."""
    # Depends only on the weights, which have noise. Clients with updates that
    # are not finite are dropped; ending the run would reveal them.
    if not np.isfinite(found['weights_norm']):
      raise errors.DivergenceError(
        f'Round {round_num}: the model is no longer finite.'
        f' {self._too_high()} The newest checkpoint is from an earlier round.'
      )
    rounds_lib.warn_non_finite(
      found['clients'], found['non_finite_clients'], self._too_high()
    )
    shown = engine_lib.as_numbers(found)
    del shown['weights_norm']
    if not np.isfinite(found['train_loss']):
      del shown['train_loss']
    return shown

  def evaluate(
    self,
    weights: engine_lib.Weights,
    group: str,
    max_users: Optional[int] = None,
  ) -> dict[str, float]:
    """See `engine.Engine`."""
    return pda_jax.evaluate(
      self._model,
      model_batches.from_named(self._model, weights),
      self._examples(group, max_users),
    )

  def pretrain(self, on_epoch: Optional[engine_lib.EpochFn] = None):
    """See `engine.Engine`."""
    config = self.run.spec.pretraining
    seeds = privacy.SeedStreams(self.run.spec.pretraining_seed)
    done = pda_jax.pretrain(
      self._model,
      self._model.init(seeds.initialization),
      self._public_examples,
      pda_jax.build_optimizer(config),
      dataclasses.replace(config, seed=seeds.shuffling),
      compute_dtype=self.run.spec.execution.compute_dtype,
      on_epoch=on_epoch,
    )
    return model_batches.named(done.weights), done.figures

  def get_weights(self, state) -> engine_lib.Weights:
    """See `engine.Engine`."""
    return model_batches.named(jax.tree.map(np.asarray, state.params))

  def set_weights(self, state, weights: engine_lib.Weights):
    """See `engine.Engine`."""
    fresh = self._init_from(weights)
    return state._replace(params=fresh.params, memory=fresh.memory)

  def _init_from(self, weights: engine_lib.Weights) -> pda_jax.ServerState:
    return self._trainer.init(model_batches.from_named(self._model, weights))

  def to_arrays(self, state) -> dict[str, np.ndarray]:
    """See `engine.Engine`."""
    return {
      **engine_lib.prefixed(engine_lib.WEIGHTS, self.get_weights(state)),
      **engine_lib.numbered(
        engine_lib.OPTIMIZER, jax.tree_util.tree_leaves(state.optimizer)
      ),
      **engine_lib.numbered(engine_lib.METHOD, list(state.memory)),
      engine_lib.CLIP_NORM: np.asarray(state.clip_norm),
    }

  def from_arrays(self, arrays: Mapping[str, np.ndarray], round_num: int):
    """See `engine.Engine`."""
    del round_num  # The loop gives each round its number.
    start = self.initialize()
    engine_lib.check_fit(self.to_arrays(start), arrays, self.name)
    state = self._init_from(
      engine_lib.from_prefixed(engine_lib.WEIGHTS, arrays)
    )
    memory = engine_lib.from_numbered(engine_lib.METHOD, arrays)
    optimizer = engine_lib.from_numbered(engine_lib.OPTIMIZER, arrays)
    return state._replace(
      optimizer=jax.tree_util.tree_structure(start.optimizer).unflatten(
        map(jnp.asarray, optimizer)
      ),
      memory=tuple(map(jnp.asarray, memory)),
      clip_norm=jnp.asarray(arrays[engine_lib.CLIP_NORM], jnp.float32),
    )


def _stop(max_users: Optional[int]) -> Optional[int]:
  """Returns the end of a slice of offsets: there is one more than users."""
  return None if max_users is None else max_users + 1
