"""The JAX engine of sample-level runs: DP-SGD and PDA-DPMD.

A round of the loop is one step. Runs in one process share the data on the
device and the compiled program.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
import contextlib
import dataclasses
import functools
import platform
from typing import Any, cast, Optional

from data_prep import sample_level
import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import errors
from pda_fed import jax as pda_jax
from pda_fed import models
from pda_fed import privacy
from pda_fed.jax import devices as devices_lib
from pda_fed.jax import rounds as rounds_lib
from pda_fed.jax.sample_level import augmentation
from pda_fed.jax.sample_level import batches as batches_lib
from pda_fed.jax.sample_level import pretraining
from pda_fed.models import batches as model_batches
from pda_fed.models import metrics as metrics_lib
from pda_fed.runs import resolving
from pda_fed.runs.engines import base as engine_lib
from pda_fed.runs.engines import jax_canaries

# Draws batches in numpy on the host. For small models, this takes as long as a
# step.
_DRAWING = futures.ThreadPoolExecutor(4, 'draw_batches')

# Averaged weights, which only this engine has.
_AVERAGE = 'jax/average'


def _on_device(examples: sample_level.Examples) -> batches_lib.ExampleArrays:
  return batches_lib.ExampleArrays(
    jnp.asarray(examples.inputs), jnp.asarray(examples.targets)
  )


@functools.lru_cache(maxsize=4)
def _arrays(split: sample_level.Split) -> dict[str, batches_lib.ExampleArrays]:
  parts = {n: getattr(split, n) for n in ('private', 'public', 'validation')}
  parts['test'] = split.test
  return {n: _on_device(p) for n, p in parts.items() if p is not None}


@functools.lru_cache(maxsize=4)
def _shared_arrays(
  split: sample_level.Split, devices: tuple[jax.Device, ...]
) -> dict[str, batches_lib.ExampleArrays]:
  """Returns the examples that steps read, replicated on all devices."""
  arrays = _arrays(split)
  if len(devices) == 1:
    return arrays
  return {
    name: devices_lib.replicate(arrays[name], devices)
    for name in ('private', 'public')
  }


@functools.lru_cache(maxsize=8)
def _trainer(
  spec: models.ModelSpec,
  settings: pda_jax.SampleLevelSettings,
  split: sample_level.Split,
  devices: tuple[jax.Device, ...],
) -> tuple[Any, pda_jax.SampleTrainer]:
  """Returns the model and the compiled steps, which similar runs share."""
  model = spec.jax_model()
  standardization = None
  if split.public.targets.ndim == 1:  # Not text.
    # Measured on public examples, so that it costs no privacy.
    standardization = augmentation.Standardization.of(split.public.inputs)
  return model, pda_jax.SampleTrainer(model, settings, standardization, devices)


@contextlib.contextmanager
def open_engine(
  run: resolving.Run, seeds: privacy.SeedStreams
) -> Iterator['SampleLevelEngine']:
  """Opens the engine.

  Args:
    run: The run.
    seeds: The run's seeds.

  Yields:
    The engine.
  """
  yield SampleLevelEngine(run, seeds)


class SampleLevelEngine:
  """Computes on all of JAX's devices; see `engine.Engine`.

  The devices share the examples of a step. The first device of this host
  evaluates and pre-trains.
  """

  name = 'jax'

  def __init__(
    self,
    run: resolving.Run,
    seeds: privacy.SeedStreams,
    devices: Optional[Sequence[jax.Device]] = None,
  ):
    """Puts the data on the devices and prepares the steps.

    Args:
      run: The run.
      seeds: The run's seeds.
      devices: The devices that compute steps; by default all devices of all
        hosts.

    Raises:
      ValueError: If JAX cannot compile the model, or it has no room for the
        canaries.
    """
    spec, data = run.spec, cast(Any, run.data)
    self.run = run
    self._seeds = seeds
    self._check()
    self._split = split = data.split
    self._devices = tuple(devices or devices_lib.choose_devices())
    self._arrays = _arrays(split)
    self._model = run.model.jax_model()
    shapes = model_batches.named_shapes(self._model)
    self.canaries = engine_lib.make_canaries(run, seeds, shapes.values())
    self.settings = pda_jax.SampleLevelSettings(
      # Noise is an input, so that runs with different noise share a program.
      plan=dataclasses.replace(run.plan, noise_multiplier=1.0),
      # Schedules are inputs, so that runs with different alpha share a program.
      method=run.method.with_schedules_at(dict.fromkeys(run.method.schedules)),
      # Rates are inputs, too.
      optimizer=pda_jax.build_optimizer(
        dataclasses.replace(spec.server, learning_rate=1.0)
      ),
      mean_clip_norm=run.bound(spec.server.mean_clip_norm),
      public_update=spec.public.update,
      public_clip_norm=run.bound(spec.public.clip_norm),
      augmentation=spec.data.augmentation,
      augmentation_multiplicity=spec.data.augmentation_multiplicity,
      averaging=spec.server.averaging,
      compute_dtype=spec.execution.compute_dtype,
      microbatch_size=spec.execution.microbatch_size,
      canaries=jax_canaries.settings_of(self.canaries),
    )
    self._model, self.trainer = _trainer(
      run.model, self.settings, split, self._devices
    )
    self.noise_key = pda_jax.noise_key(seeds.noise)
    self._ahead = {}

  def _check(self) -> None:
    """Raises ValueError if JAX cannot compile the model."""
    model: Any = self.run.model
    convolves = isinstance(model, models.ResidualSpec) or bool(
      getattr(model, 'convolutions', ())
    )
    is_half = self.run.spec.execution.compute_dtype == 'bfloat16'
    if is_half and convolves and jax.default_backend() == 'cpu':
      # The compiler of jaxlib 0.4.30 crashes or raises an internal error.
      raise ValueError(
        "compute_dtype must be 'float32' for images on a CPU: JAX cannot"
        " compile convolutions in bfloat16 there. Found 'bfloat16'."
      )

  def order_of_sums(self) -> dict[str, Any]:
    """See `engine.Engine`."""
    return {
      'microbatch_size': self.run.spec.execution.microbatch_size,
      'machine': platform.machine(),
      'platform': jax.default_backend(),
      'device': self._devices[0].device_kind,
      'num_devices': len(self._devices),
    }

  @property
  def data(self) -> pda_jax.TrainingArrays:
    """The examples that steps on one device read."""
    return self._data_of(self._arrays)

  def _data_of(self, arrays) -> pda_jax.TrainingArrays:
    uses_public = self.run.method.uses_public
    public = arrays['public'] if uses_public else None
    return pda_jax.TrainingArrays(arrays['private'], public)

  def initialize(self) -> pda_jax.ServerState:
    """See `engine.Engine`."""
    return self.trainer.init(self._model.init(self._seeds.initialization))

  def step_inputs(self, rounds: range) -> pda_jax.StepInputs:
    """Returns the inputs of rounds, which depend only on seeds and rounds."""
    run, spec = self.run, self.run.spec
    rows, present = pda_jax.draw_batches(
      run.plan, rounds, self._seeds.sampling, spec.execution.microbatch_size
    )
    public_rows = None
    if run.method.uses_public:
      count = len(self._arrays['public'].targets)
      public_rows = np.stack(
        [
          pda_jax.draw_rows(
            self._seeds.public, t, count, spec.public.batch_size
          )
          for t in rounds
        ]
      )
    return pda_jax.StepInputs(
      round_num=np.asarray(rounds, np.int32),
      rows=rows,
      present=present,
      learning_rate=run.learning_rates(rounds),
      epoch=run.epochs(rounds),
      public_rows=public_rows,
      schedules=run.schedules(rounds),
      canaries=pda_jax.stack_rounds(
        jax_canaries.inputs_of(self.canaries, rounds), len(rounds)
      ),
    )

  def take_inputs(self, rounds: range) -> pda_jax.StepInputs:
    """Returns `step_inputs`, if possible drawn while the device was busy."""
    ahead = self._ahead.pop(rounds, None)
    inputs = self.step_inputs(rounds) if ahead is None else ahead.result()
    end = min(rounds.stop + len(rounds), self.run.plan.rounds)
    following = range(rounds.stop, end)
    # Keeps only the next rounds, so that a resume never gets stale inputs.
    self._ahead.clear()
    if following:
      self._ahead[following] = _DRAWING.submit(self.step_inputs, following)
    return inputs

  def run_rounds(self, state, first_round: int, num_rounds: int):
    """See `engine.Engine`."""
    metrics = []
    data = self._data_of(_shared_arrays(self._split, self._devices))
    room = self.run.rounds_per_dispatch
    end = first_round + num_rounds
    for first in range(first_round, end, room):
      rounds = range(first, min(first + room, end))
      state, found = self.trainer.run(
        state,
        data,
        pad_rounds(self.take_inputs(rounds), room),
        len(rounds),
        self.run.plan.noise_multiplier,
        self.noise_key,
        None if self.canaries is None else self.canaries.signs,
      )
      metrics += self.shown(rounds, found)
    return state, metrics

  def shown(
    self, rounds: range, found: Mapping[str, jax.Array]
  ) -> list[dict[str, float]]:
    """Returns the metrics of rounds, or raises if they diverged."""
    found = {name: np.asarray(values) for name, values in found.items()}
    shown = []
    for i, t in enumerate(rounds):
      if not np.isfinite(found['weights_norm'][i]):
        raise errors.DivergenceError(
          f'Round {t}: the model is no longer finite. Probably'
          f' server.learning_rate={self.run.spec.server.learning_rate:g} is too'
          ' high. The newest checkpoint is from an earlier round.'
        )
      row = engine_lib.as_numbers({n: v[i] for n, v in found.items()})
      rounds_lib.warn_non_finite(
        row['clients'],
        row['non_finite_clients'],
        'Look at the loss of one example and at the inputs.',
      )
      del row['weights_norm']
      if not row['clients']:
        del row['train_loss']
      shown.append(row)
    return shown

  def evaluate(
    self,
    weights: engine_lib.Weights,
    group: str,
    max_users: Optional[int] = None,
  ) -> dict[str, float]:
    """See `engine.Engine`; returns {} if the group has no data."""
    metrics = self._evaluate(weights, group, max_users)
    if group == 'validation' and self.run.spec.evaluation.test_curve:
      of_test = self._evaluate(weights, 'test', None)
      metrics |= {f'test_{name}': value for name, value in of_test.items()}
    return metrics

  def _evaluate(self, weights, group: str, max_examples: Optional[int]):
    if group not in self._arrays:
      return {}
    examples = self._arrays[group]
    if max_examples is not None:
      examples = batches_lib.ExampleArrays(
        *(array[:max_examples] for array in examples)
      )
    params = model_batches.from_named(self._model, weights)
    metrics = self.trainer.evaluate(params, examples)
    if self._model.has_perplexity:
      metrics['perplexity'] = metrics_lib.perplexity(metrics['loss'])
    return metrics

  def pretrain(self, on_epoch: Optional[engine_lib.EpochFn] = None):
    """See `engine.Engine`."""
    config = self.run.spec.pretraining
    seeds = privacy.SeedStreams(self.run.spec.pretraining_seed)
    done = pretraining.pretrain(
      self._model,
      self.trainer,
      self._arrays['public'],
      dataclasses.replace(config, seed=seeds.shuffling),
      initialization_seed=seeds.initialization,
      on_epoch=on_epoch,
    )
    return model_batches.named(done.weights), done.figures

  def get_weights(self, state) -> engine_lib.Weights:
    """See `engine.Engine`; returns averaged weights if there are any."""
    found = state.average if self.settings.averaging else state.params
    return _named(found)

  def set_weights(self, state, weights: engine_lib.Weights):
    """See `engine.Engine`."""
    fresh = self.trainer.init(model_batches.from_named(self._model, weights))
    return fresh._replace(optimizer=state.optimizer)

  def to_arrays(self, state) -> dict[str, np.ndarray]:
    """See `engine.Engine`."""
    return {
      **engine_lib.prefixed(engine_lib.WEIGHTS, _named(state.params)),
      **engine_lib.prefixed(_AVERAGE, _named(state.average)),
      **engine_lib.numbered(
        engine_lib.OPTIMIZER, jax.tree.leaves(state.optimizer)
      ),
      **engine_lib.numbered(engine_lib.METHOD, list(state.memory)),
    }

  def from_arrays(self, arrays: Mapping[str, np.ndarray], round_num: int):
    """See `engine.Engine`."""
    del round_num  # The loop gives each round its number.
    start = self.initialize()
    engine_lib.check_fit(self.to_arrays(start), arrays, self.name)
    weights = engine_lib.from_prefixed(engine_lib.WEIGHTS, arrays)
    average = engine_lib.from_prefixed(_AVERAGE, arrays)
    optimizer = engine_lib.from_numbered(engine_lib.OPTIMIZER, arrays)
    memory = engine_lib.from_numbered(engine_lib.METHOD, arrays)
    state = self.set_weights(start, weights)
    return state._replace(
      average=self.set_weights(start, average).params if average else (),
      optimizer=jax.tree.structure(start.optimizer).unflatten(
        map(jnp.asarray, optimizer)
      ),
      memory=tuple(map(jnp.asarray, memory)),
    )


def _named(params: Any) -> engine_lib.Weights:
  return model_batches.named(jax.tree.map(np.asarray, params))


def pad_rounds(
  inputs: pda_jax.StepInputs, room: int, rows: int = 0
) -> pda_jax.StepInputs:
  """Pads the inputs of rounds to one shape.

  Args:
    inputs: The inputs of some rounds.
    room: The padded number of rounds. Padding rounds are not run.
    rows: The minimum number of rows per batch.
  """
  rows = max(rows, inputs.rows.shape[1])
  room_of_rows = (0, 0), (0, rows - inputs.rows.shape[1])
  inputs = inputs._replace(
    rows=np.pad(inputs.rows, room_of_rows),
    present=np.pad(inputs.present, room_of_rows),
  )
  missing = room - len(inputs.round_num)
  return jax.tree_util.tree_map(
    lambda a: np.concatenate([a, np.repeat(a[-1:], missing, axis=0)]), inputs
  )
