"""A learning process with a public-data method, composed of TFF components.

    public users -> public update -> [prepare_public] --+------+
                                                        v      v
    distributor -> client work -> [before_clip] -> aggregator -> [after_noise]
                   local training                  clip, sum,         |
                                                   noise, / qN        v
                                                                  optimizer

The method supplies the steps in brackets; see `pda_fed.methods`. The public
update does not depend on private clients, so TFF computes it while they train.
"""

import collections
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
from pda_fed import methods
from pda_fed import privacy
from pda_fed import schedules
from pda_fed.tff import aggregators
from pda_fed.tff import public_update as public_update_lib
import tensorflow as tf
import tensorflow_federated as tff

_templates = tff.learning.templates


class _Steps:
  """The method's steps as TFF computations."""

  def __init__(
    self,
    method: methods.Method,
    plan: privacy.PrivacyPlan,
    public_update: public_update_lib.PublicUpdate,
    weights_type: tff.Type,
    clip_type: tff.Type,
  ):
    self._method = method
    self._tables = {
      name: schedules.values(schedule, plan.rounds).astype(np.float32)
      for name, schedule in method.schedules.items()
    }
    is_clipped = method.public == 'clipped_update'

    @tff.tensorflow.computation(weights_type)
    def initial_memory(weights):
      return list(method.initial_memory(tuple(weights.trainable)))

    memory_type = initial_memory.type_signature.result

    @tff.tensorflow.computation(weights_type, np.int32, memory_type, clip_type)
    def compute_public(weights, round_num, memory, clip_norm):
      update, loss = public_update.build(clips_users=is_clipped)(
        weights, round_num, clip_norm
      )
      prepared, memory = method.prepare_public(tuple(update), tuple(memory))
      return list(update), list(prepared), list(memory), loss

    update_type, prepared_type, *_ = compute_public.type_signature.result

    @tff.tensorflow.computation(update_type, prepared_type)
    def before_clip(update, prepared):
      return list(method.before_clip(tuple(update), tuple(prepared)))

    @tff.tensorflow.computation(
      update_type, np.int32, compute_public.type_signature.result
    )
    def after_noise(mean, round_num, public):
      update, prepared, _, loss = public
      update, measured = methods.server_step(
        method.with_schedules_at(self._at(round_num)),
        tuple(mean),
        tf.cast(round_num, tf.float32),
        tuple(update),
        tuple(prepared),
      )
      measured = {n: tf.cast(v, tf.float32) for n, v in measured.items()}
      return list(update), collections.OrderedDict(**measured, public_loss=loss)

    self.initial_memory = initial_memory
    self.compute_public = compute_public
    self.before_clip = before_clip
    self.after_noise = after_noise

  def _at(self, round_num: tf.Tensor) -> Mapping[str, tf.Tensor]:
    """Returns the values of schedules; the last value is kept afterwards."""
    return {
      name: tf.constant(table)[tf.minimum(round_num, len(table) - 1)]
      for name, table in self._tables.items()
    }


@tff.tensorflow.computation(np.int32)
def _increment(round_num):
  return round_num + 1


def compose(
  initial_weights: tff.Computation,
  client_work: tff.learning.templates.ClientWorkProcess,
  aggregator: tff.templates.AggregationProcess,
  finalizer: tff.learning.templates.FinalizerProcess,
  *,
  plan: privacy.PrivacyPlan,
  method: methods.Method,
  public_update: Optional[public_update_lib.PublicUpdate],
) -> tff.learning.templates.LearningProcess:
  """Composes a learning process; without public data, a standard TFF one.

  Args:
    initial_weights: Returns the model's initial weights.
    client_work: The clients' work.
    aggregator: Clips, sums and adds noise.
    finalizer: Applies the server optimizer.
    plan: The privacy plan.
    method: The public-data method.
    public_update: How the public update is computed; None if the method uses
      none.

  Returns:
    A learning process. With public data, its finalizer's state has the fields
    `inner`, `memory` and `round_num`, and its finalizer's metrics have the
    fields `method` and `inner`.
  """
  weights_type = initial_weights.type_signature.result
  distributor = _templates.build_broadcast_process(weights_type)
  if not method.uses_public:
    return _templates.compose_learning_process(
      initial_weights, distributor, client_work, aggregator, finalizer
    )
  aggregator_type = aggregator.initialize.type_signature.result.member
  clip_norm_of = aggregators.clip_norm_of(plan, aggregator_type)
  steps = _Steps(
    method,
    plan,
    public_update,
    weights_type,
    clip_norm_of.type_signature.result,
  )

  @tff.federated_computation
  def initialize():
    weights = tff.federated_eval(initial_weights, tff.SERVER)
    memory = tff.federated_map(steps.initial_memory, weights)
    of_finalizer = collections.OrderedDict(
      inner=finalizer.initialize(),
      memory=memory,
      round_num=tff.federated_value(0, tff.SERVER),
    )
    return tff.federated_zip(
      _templates.LearningAlgorithmState(
        weights,
        distributor.initialize(),
        client_work.initialize(),
        aggregator.initialize(),
        tff.federated_zip(of_finalizer),
      )
    )

  state_type = initialize.type_signature.result
  data_type = client_work.next.type_signature.parameter[2]

  @tff.federated_computation(state_type, data_type)
  def next_fn(state, client_data):
    weights, server = state.global_model_weights, state.finalizer
    public = tff.federated_map(
      steps.compute_public,
      (
        weights,
        server['round_num'],
        server['memory'],
        tff.federated_map(clip_norm_of, state.aggregator),
      ),
    )
    sent = distributor.next(state.distributor, weights)
    work = client_work.next(state.client_work, sent.result, client_data)
    update = work.result.update
    if method.acts_before_clip:
      prepared = tff.federated_broadcast(public[1])
      update = tff.federated_map(steps.before_clip, (update, prepared))
    mean = aggregator.next(state.aggregator, update, work.result.update_weight)
    descended, measured = tff.federated_map(
      steps.after_noise, (mean.result, server['round_num'], public)
    )
    final = finalizer.next(server['inner'], weights, descended)
    of_finalizer = collections.OrderedDict(
      inner=final.state,
      memory=public[2],
      round_num=tff.federated_map(_increment, server['round_num']),
    )
    return _templates.LearningProcessOutput(
      tff.federated_zip(
        _templates.LearningAlgorithmState(
          final.result,
          sent.state,
          work.state,
          mean.state,
          tff.federated_zip(of_finalizer),
        )
      ),
      tff.federated_zip(
        collections.OrderedDict(
          distributor=sent.measurements,
          client_work=work.measurements,
          aggregator=mean.measurements,
          finalizer=tff.federated_zip(
            collections.OrderedDict(method=measured, inner=final.measurements)
          ),
        )
      ),
    )

  return _templates.LearningProcess(
    initialize, next_fn, *_weights_access(state_type.member, method)
  )


def _weights_access(
  state_type: tff.Type, method: methods.Method
) -> tuple[Any, Any]:
  """Returns the computations that get and set a process's weights."""

  @tff.tensorflow.computation(state_type)
  def get_weights(state):
    return state.global_model_weights

  @tff.tensorflow.computation(state_type, state_type.global_model_weights)
  def set_weights(state, weights):
    return _templates.LearningAlgorithmState(
      weights,
      state.distributor,
      state.client_work,
      state.aggregator,
      collections.OrderedDict(
        inner=state.finalizer['inner'],
        memory=list(method.initial_memory(tuple(weights.trainable))),
        round_num=state.finalizer['round_num'],
      ),
    )

  return get_weights, set_weights
