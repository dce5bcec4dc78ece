"""The TFF engine of federated runs, built on `pda_fed.tff`."""

import collections
from collections.abc import Iterator, Mapping
import contextlib
import copy
import dataclasses
import functools
import platform
from typing import Any, cast, Optional

import data_prep
import numpy as np
from pda_fed import privacy
from pda_fed import tff as pda_tff
from pda_fed.models import batches as model_batches
from pda_fed.models import keras_names
from pda_fed.models import metrics as metrics_lib
from pda_fed.runs import resolving
from pda_fed.runs.engines import base as engine_lib
from pda_fed.tff import runtime
import tensorflow as tf
import tensorflow_federated as tff

# Metrics are sums over examples, so this only affects speed.
_EVALUATION_BATCH = 64
_AGGREGATOR = engine_lib.SECRET
_TOKEN_LOSS = 'token_loss'
# The parts of an optimizer's state that change, in the order of optax.
_OPTIMIZER_STATE = 'step', 'accumulator', 'preconditioner'


@contextlib.contextmanager
def open_engine(
  run: resolving.Run, seeds: privacy.SeedStreams
) -> Iterator['TffEngine']:
  """Opens the engine in this process.

  Args:
    run: The run.
    seeds: The run's seeds.

  Yields:
    The engine.
  """
  engine = TffEngine(run, seeds)
  most = run.spec.execution.max_concurrent_clients
  with runtime.in_process(max_concurrent_clients=most):
    yield engine


class TffEngine:
  """Computes in the current TFF context; see `engine.Engine`."""

  name = 'tff'

  def __init__(self, run: resolving.Run, seeds: privacy.SeedStreams):
    """Builds the learning process.

    Args:
      run: The run.
      seeds: The run's seeds.

    Raises:
      ValueError: If the model has no room for the canaries.
    """
    self.run = run
    self._seeds = seeds
    data: Any = run.data
    self._store: data_prep.UserStore = data.store
    self._model_fn = pda_tff.build_model_fn(run.model, seeds.initialization)
    self._names = self._check_weights()
    self.canaries = engine_lib.make_canaries(run, seeds, self._names.values())
    self._process = self._build_process()
    self._evaluator = pda_tff.FederatedEvaluator(self._model_fn)

  def _build_process(self) -> tff.learning.templates.LearningProcess:
    run, spec = self.run, self.run.spec
    return pda_tff.build_learning_process(
      self._model_fn,
      run.plan,
      pda_tff.build_optimizer(spec.client),
      pda_tff.build_optimizer(spec.server),
      method=run.method,
      public_data=self._public_data if run.method.uses_public else None,
      public_update=cast(Any, spec.public.update),
      public_users_per_round=spec.public.users_per_round,
      public_batch_size=spec.client.batch_size,
      public_clip_norm=spec.public.clip_norm,
      public_seed=self._seeds.public,
      noise_seed=self._seeds.noise,
      mean_clip_norm=run.bound(spec.server.mean_clip_norm),
      client_gradient_clip=spec.client.gradient_clip,
      audit=self.canaries is not None,
    )

  def _check_weights(self) -> dict[str, tuple[int, ...]]:
    """Returns the weights' shapes by name, or raises."""
    spec = self.run.model
    with tf.Graph().as_default():
      keras_model = spec.keras_model(0)
      names = keras_names.weight_names(keras_model)
      shapes = [tuple(w.shape) for w in keras_model.trainable_weights]
    found = dict(zip(names, shapes, strict=True))
    expected = model_batches.named_shapes(spec.jax_model())
    if found != expected:
      raise ValueError(
        f'keras_model of {type(spec).__name__} must have weights with the names'
        f' and shapes of its JAX model, {expected}. Found {found}: name its'
        ' layers.'
      )
    return {n: found[n] for n in sorted(found, key=lambda n: n.split('/'))}

  @functools.cached_property
  def _public_data(self) -> pda_tff.PublicData:
    count = len(self._store.users('public'))
    return pda_tff.PublicData.from_users(
      [self._rows('public', i) for i in range(count)]
    )

  def _rows(self, group: str, user: int) -> Any:
    """Returns a user's examples in the model's format."""
    start, stop = self._store.row_offsets(group)[user : user + 2]
    return self.run.model.keras_examples(self._store.read(start, stop))

  def _dataset(self, group: str, user: int, batch: int) -> tf.data.Dataset:
    rows = self._rows(group, user)
    return tf.data.Dataset.from_tensor_slices(rows).batch(batch)

  def order_of_sums(self) -> dict[str, Any]:
    """See `engine.Engine`; sums are in the clients' order."""
    return {'machine': platform.machine()}

  def initialize(self):
    """See `engine.Engine`."""
    return self._process.initialize()

  def run_rounds(self, state, first_round: int, num_rounds: int):
    """See `engine.Engine`."""
    rounds = range(first_round, first_round + num_rounds)
    metrics = []
    for round_num in rounds:
      state, of_round = self._run_round(state, round_num)
      metrics.append(of_round)
    return state, metrics

  def _run_round(self, state, round_num: int):
    cohort = self.run.plan.cohort(round_num, self._seeds.sampling)
    output = self._process.next(state, self._clients(cohort, round_num))
    clients = output.metrics['client_work']
    found: dict[str, Any] = {'clients': len(cohort)}
    found |= {'non_finite_clients': 0.0, 'diverged_clients': 0.0}
    if len(cohort):
      found['train_loss'] = float(_loss_of(clients['train']))
      found['non_finite_clients'] = float(clients['num_non_finite'])
      found['diverged_clients'] = float(clients['num_diverged'])
    measured = output.metrics['aggregator']
    if self.canaries is not None:
      # The round's clip norm, before the aggregator adapts it.
      found[engine_lib.CANARY_SCORES] = self._scores(
        measured, self._clip_norm(state)
      )
      measured = measured['inner']
    if self.run.plan.adaptive_clipping is not None:
      found['clip_norm'] = float(measured['dp_query_metrics']['clip_norm'])
    if self.run.method.uses_public:
      measured = output.metrics['finalizer']['method']
      found |= {name: float(value) for name, value in measured.items()}
    return output.state, found

  def _clients(self, cohort: np.ndarray, round_num: int) -> list[Any]:
    """Returns the data of a round's clients and canaries."""
    batch = self.run.spec.client.batch_size
    users = [self._dataset('private', i, batch) for i in cohort]
    if self.canaries is None:
      return users
    # Canaries have no data: an empty data set of the first user's type.
    nothing = self._dataset('private', 0, batch).take(0)
    none = tf.data.Dataset.from_tensors(tf.zeros([0]))
    present = self.canaries.cohort(round_num)
    vectors = self.canaries.updates(present)
    return [
      *(collections.OrderedDict(canary=none, data=data) for data in users),
      *(
        collections.OrderedDict(
          canary=tf.data.Dataset.from_tensors(vector), data=nothing
        )
        for vector in vectors
      ),
    ]

  def _scores(self, measured, clip_norm: float) -> np.ndarray:
    """Returns the canaries' scores on the noised sum without users' updates."""
    expected_cohort = self.run.plan.expected_cohort
    unknown = [
      np.asarray(mean) * expected_cohort - np.asarray(known)
      for mean, known in zip(
        measured['noised_mean'], measured['known_sum'], strict=True
      )
    ]
    return self.canaries.scores(unknown) / clip_norm

  def _clip_norm(self, state) -> float:
    plan = self.run.plan
    if plan.adaptive_clipping is None:
      return plan.clip_norm
    return float(state.aggregator.query_state.numerator_state.clip_norm)

  def evaluate(
    self,
    weights: engine_lib.Weights,
    group: str,
    max_users: Optional[int] = None,
  ) -> dict[str, float]:
    """See `engine.Engine`."""
    users = range(len(self._store.users(group)))[:max_users]
    found = self._evaluator.evaluate(
      self._model_weights(weights),
      (self._dataset(group, i, _EVALUATION_BATCH) for i in users),
    )
    shown = {n: found[n] for n in engine_lib.METRICS if n in found}
    shown['loss'] = _loss_of(found)
    if _TOKEN_LOSS in found:
      shown['perplexity'] = metrics_lib.perplexity(shown['loss'])
    return shown

  def pretrain(self, on_epoch: Optional[engine_lib.EpochFn] = None):
    """See `engine.Engine`."""
    config = self.run.spec.pretraining
    seeds = privacy.SeedStreams(self.run.spec.pretraining_seed)
    done = pda_tff.pretrain(
      pda_tff.build_model_fn(self.run.model, seeds.initialization),
      self._public_data,
      pda_tff.build_optimizer(config),
      dataclasses.replace(config, seed=seeds.shuffling),
      on_epoch=on_epoch,
    )
    return self._named(done.weights), done.figures

  def _named(self, weights) -> engine_lib.Weights:
    arrays = (np.asarray(w, np.float32) for w in weights.trainable)
    return dict(zip(self._names, arrays, strict=True))

  def _model_weights(self, weights: engine_lib.Weights):
    arrays = [np.asarray(weights[name]) for name in self._names]
    return tff.learning.models.ModelWeights(arrays, [])

  def get_weights(self, state) -> engine_lib.Weights:
    """See `engine.Engine`."""
    # Not process.get_model_weights, which computes: a run can be saved after
    # its runtime has failed.
    return self._named(state.global_model_weights)

  def set_weights(self, state, weights: engine_lib.Weights):
    """See `engine.Engine`."""
    return self._process.set_model_weights(state, self._model_weights(weights))

  def to_arrays(self, state) -> dict[str, np.ndarray]:
    """See `engine.Engine`; only this engine can use the tree's state."""
    arrays = engine_lib.prefixed(engine_lib.WEIGHTS, self.get_weights(state))
    changing = tf.nest.flatten(self._changing(state))
    arrays |= engine_lib.numbered(engine_lib.OPTIMIZER, changing)
    if self.run.method.uses_public:
      memory = list(state.finalizer['memory'])
      arrays |= engine_lib.numbered(engine_lib.METHOD, memory)
    if self.run.plan.mechanism == 'tree':
      leaves = _numbers(tf.nest.flatten(state.aggregator))
      return arrays | engine_lib.numbered(_AGGREGATOR, leaves)
    query = state.aggregator.query_state.numerator_state
    arrays[engine_lib.CLIP_NORM] = np.asarray(query.clip_norm)
    return arrays

  def _optimizer_state(self, state) -> dict[str, Any]:
    wrapped = self.run.method.uses_public
    return state.finalizer['inner'] if wrapped else state.finalizer

  def _changing(self, state) -> list[Any]:
    optimizer = self._optimizer_state(state)
    return [optimizer[key] for key in _OPTIMIZER_STATE if key in optimizer]

  def from_arrays(self, arrays: Mapping[str, np.ndarray], round_num: int):
    """See `engine.Engine`."""
    state = self.initialize()
    engine_lib.check_fit(
      self.to_arrays(state), arrays, self.name, any_shape=_AGGREGATOR
    )
    state = self.set_weights(
      state, engine_lib.from_prefixed(engine_lib.WEIGHTS, arrays)
    )
    return state._replace(
      finalizer=self._restored_finalizer(state, arrays, round_num),
      aggregator=self._restored_aggregator(state, arrays, round_num),
    )

  def _restored_finalizer(self, state, arrays, round_num: int):
    optimizer = self._optimizer_state(state)
    changing = tf.nest.pack_sequence_as(
      self._changing(state),
      engine_lib.from_numbered(engine_lib.OPTIMIZER, arrays),
    )
    keys = (key for key in _OPTIMIZER_STATE if key in optimizer)
    optimizer = copy.copy(optimizer)
    optimizer.update(zip(keys, changing, strict=True))
    if not self.run.method.uses_public:
      return optimizer
    return type(state.finalizer)(
      inner=optimizer,
      memory=engine_lib.from_numbered(engine_lib.METHOD, arrays),
      round_num=np.int32(round_num),
    )

  def _restored_aggregator(self, state, arrays, round_num: int):
    """Restores the aggregator, except for the seed, set by `initialize`."""
    aggregator = state.aggregator
    if self.run.plan.mechanism == 'tree':
      saved = iter(engine_lib.from_numbered(_AGGREGATOR, arrays))
      leaves = [
        next(saved) if _is_number(leaf) else leaf
        for leaf in tf.nest.flatten(aggregator)
      ]
      return tf.nest.pack_sequence_as(aggregator, leaves)
    query = aggregator.query_state
    planned = query.numerator_state._replace(
      clip_norm=np.float32(arrays[engine_lib.CLIP_NORM]),
      round_num=np.int32(round_num),
    )
    return aggregator._replace(
      query_state=query._replace(numerator_state=planned),
      is_init_state=round_num == 0,
    )


def _loss_of(found: Mapping[str, Any]) -> Any:
  """Returns the loss per target: per token for text, per example otherwise."""
  return found[_TOKEN_LOSS if _TOKEN_LOSS in found else 'loss']


def _is_number(leaf) -> bool:
  return np.asarray(leaf).dtype.kind in 'bfiu'


def _numbers(leaves) -> list[np.ndarray]:
  return [np.asarray(leaf) for leaf in leaves if _is_number(leaf)]
