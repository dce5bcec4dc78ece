"""DP-FedAvg with a public-data method, as TFF learning processes.

DP-FedAvg is "Learning Differentially Private Recurrent Language Models"
(McMahan et al., ICLR 2018, arXiv:1710.06963). PDA-DPMD, "Public Data-Assisted
Mirror Descent for Private Model Training" (Amid et al., ICML 2022,
arXiv:2112.00193), is the same process with a mirror step at the server. Other
methods are in `pda_fed.methods`; `composition` builds a process from them.
"""

from collections.abc import Sequence
from typing import Any, Optional, Union

import numpy as np
from pda_fed import methods
from pda_fed import privacy
from pda_fed import schedules
from pda_fed.common import validate
from pda_fed.tff import aggregators
from pda_fed.tff import client_work
from pda_fed.tff import composition
from pda_fed.tff import local_training
from pda_fed.tff import public_update as public_update_lib
import tensorflow_federated as tff

_UNIFORM = tff.learning.ClientWeighting.UNIFORM


def _initial_weights_fn(
  model_fn: local_training.ModelFn,
) -> tff.Computation:
  @tff.tensorflow.computation
  def initial_weights():
    model = local_training.call_model_fn(model_fn)
    return tff.learning.models.ModelWeights.from_model(model)

  return initial_weights


def _check_clients(
  plan: privacy.PrivacyPlan,
  clients_per_round: Optional[float],
  client_weighting: tff.learning.ClientWeighting,
) -> None:
  """Raises if the arguments do not match what the plan accounts for."""
  if clients_per_round is not None and clients_per_round != (
    plan.expected_cohort
  ):
    raise ValueError(
      "clients_per_round must be the plan's expected_cohort,"
      f' {plan.expected_cohort}: the sum is divided by it, and epsilon depends'
      f' on it. Found {clients_per_round}.'
    )
  if client_weighting is not _UNIFORM:
    raise ValueError(
      'client_weighting must be ClientWeighting.UNIFORM: with other weights, a'
      ' user could change the sum by more than the clipping norm. Found'
      f' {client_weighting}.'
    )


def build_learning_process(
  model_fn: local_training.ModelFn,
  plan: privacy.PrivacyPlan,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  *,
  method: methods.Method,
  public_data: Union[public_update_lib.PublicData, Sequence[Any], None] = None,
  public_update: public_update_lib.Mode = 'local_training',
  public_users_per_round: int = 10,
  public_batch_size: int = 16,
  public_clip_norm: Union[float, str, None] = 'private',
  public_seed: int = 0,
  noise_seed: Optional[int] = None,
  mean_clip_norm: Optional[float] = None,
  client_gradient_clip: Optional[float] = None,
  clients_per_round: Optional[float] = None,
  client_weighting: tff.learning.ClientWeighting = _UNIFORM,
  audit: bool = False,
) -> tff.learning.templates.LearningProcess:
  """Builds DP-FedAvg with a public-data method.

  For a method with a warm start, first call
  `process.set_model_weights(state, pretrained)`.

  Example:

  ```
  process = build_learning_process(
      model_fn, plan, client_optimizer, server_optimizer,
      method=methods.Dope(), public_data=public_users)
  ```

  Args:
    model_fn: Returns a new model.
    plan: The privacy plan. The caller samples cohorts with `plan.cohort`.
    client_optimizer: Trains a user's model, private or public.
    server_optimizer: Applies the noised mean, as changed by the method.
    method: A method of `pda_fed.methods`, or your own.
    public_data: For each public user, a structure of arrays with one row per
      example, in the model's input format. Not needed for a method without
      public updates.
    public_update: 'local_training' or 'gradient'; see `PublicUpdate`.
    public_users_per_round: Number of public users sampled in a round.
    public_batch_size: Batch size of the public users' local training.
    public_clip_norm: The bound on the norm of the public update: a number,
      'private' for the clipping norm of private updates, or None for no bound,
      as in the paper.
    public_seed: Seed for sampling public users.
    noise_seed: See `build_dp_aggregator`.
    mean_clip_norm: See `build_dp_aggregator`.
    client_gradient_clip: An optional bound on the norm of each gradient of
      local training, for private and public users. It keeps clients from
      diverging; epsilon depends only on the plan's clipping norm.
    clients_per_round: If given, checked against the plan's expected cohort.
    client_weighting: Accepted for compatibility with TFF; must be UNIFORM.
    audit: Whether canaries may take part; see `pda_fed.audit`. A client's data
      is then a dictionary of `data` and `canary` (see
      `client_work.build_client_work`), and the aggregator's metrics are those
      of `aggregators.with_audit`.

  Returns:
    A learning process to run with `initialize` and `next`.

  Raises:
    TypeError: If an optimizer is not a TFF optimizer.
    ValueError: If an argument is out of range, or the public data does not fit
      the model. The message names the argument.
  """
  validate.instances(methods.Method, method=method)
  validate.positive_or((None,), client_gradient_clip=client_gradient_clip)
  _check_clients(plan, clients_per_round, client_weighting)
  for name, optimizer in (
    ('client_optimizer', client_optimizer),
    ('server_optimizer', server_optimizer),
  ):
    if not isinstance(optimizer, tff.learning.optimizers.Optimizer):
      raise TypeError(
        f'{name} must be a tff.learning.optimizers.Optimizer. Found'
        f' {optimizer!r}.'
      )
  update = None
  if method.uses_public:
    if public_data is None:
      raise ValueError(
        f'public_data must be given for {method.title}. Found None.'
      )
    if not isinstance(public_data, public_update_lib.PublicData):
      public_data = public_update_lib.PublicData.from_users(public_data)
    update = public_update_lib.PublicUpdate(
      data=public_data,
      model_fn=model_fn,
      optimizer=client_optimizer,
      batch_size=public_batch_size,
      users_per_round=public_users_per_round,
      mode=public_update,
      clip_norm=public_clip_norm,
      gradient_clip=client_gradient_clip,
      seed=public_seed,
    )
  initial_weights = _initial_weights_fn(model_fn)
  weights_type = initial_weights.type_signature.result
  aggregator = tff.aggregators.as_weighted_aggregator(
    aggregators.build_dp_aggregator(
      # An audit reads the mean before it is clipped again.
      plan,
      noise_seed,
      mean_clip_norm=None if audit else mean_clip_norm,
    )
  ).create(weights_type.trainable, tff.TensorType(np.float32))
  canary_size = None
  if audit:
    aggregator = aggregators.with_audit(aggregator, plan, mean_clip_norm)
    canary_size = local_training.num_weights(weights_type)
  return composition.compose(
    initial_weights,
    client_work.build_client_work(
      model_fn,
      client_optimizer,
      zero_non_finite=not method.acts_before_clip,
      gradient_clip=client_gradient_clip,
      clip_norm=plan.clip_norm,
      canary_size=canary_size,
    ),
    aggregator,
    tff.learning.templates.build_apply_optimizer_finalizer(
      server_optimizer, weights_type
    ),
    plan=plan,
    method=method,
    public_update=update,
  )


def build_dp_fedavg(
  model_fn: local_training.ModelFn,
  plan: privacy.PrivacyPlan,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  **options,
) -> tff.learning.templates.LearningProcess:
  """Builds DP-FedAvg with the clipping and noise of a plan.

  Example:

  ```
  process = build_dp_fedavg(
      model_fn, plan,
      client_optimizer=tff.learning.optimizers.build_sgdm(0.5),
      server_optimizer=tff.learning.optimizers.build_sgdm(1.0, 0.9))
  with runtime.in_process():
    state = process.initialize()
    for round_num in range(plan.rounds):
      cohort = [datasets[i] for i in plan.cohort(round_num, seed=secret)]
      state, metrics = process.next(state, cohort)
  ```

  Args:
    model_fn: Returns a new model.
    plan: The privacy plan. The caller samples cohorts with `plan.cohort`.
    client_optimizer: Trains a user's model.
    server_optimizer: Applies the noised mean; SGD with learning rate 1 is plain
      averaging.
    **options: See `build_learning_process`: `noise_seed`, `mean_clip_norm`,
      `client_gradient_clip`, `clients_per_round` and `client_weighting`.

  Returns:
    A learning process to run with `initialize` and `next`.

  Raises:
    TypeError: If an optimizer is not a TFF optimizer.
    ValueError: If `noise_seed` is out of range, or the arguments do not match
      the plan.
  """
  return build_learning_process(
    model_fn,
    plan,
    client_optimizer,
    server_optimizer,
    method=methods.ColdStart(),
    **options,
  )


def build_pda_dpmd(
  model_fn: local_training.ModelFn,
  plan: privacy.PrivacyPlan,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  *,
  public_data: Union[public_update_lib.PublicData, Sequence[Any]],
  alpha: Union[schedules.Schedule, Sequence[float]],
  **options,
) -> tff.learning.templates.LearningProcess:
  """Builds PDA-DPMD: DP-FedAvg with a public update mixed in at the server.

  Start from a pre-trained model:
  `process.set_model_weights(state, pretrained)`.

  Example:

  ```
  process = build_pda_dpmd(
      model_fn, plan, client_optimizer, server_optimizer,
      public_data=public_users,
      alpha=schedules.for_stackoverflow(5, plan.rounds))
  ```

  Args:
    model_fn: Returns a new model.
    plan: The privacy plan. The caller samples cohorts with `plan.cohort`.
    client_optimizer: Trains a user's model, private or public.
    server_optimizer: Applies the mixed update.
    public_data: Public users, as for `build_learning_process`.
    alpha: A schedule, or the values alpha_0, alpha_1, ...
    **options: See `build_learning_process`.

  Returns:
    A learning process to run with `initialize` and `next`.

  Raises:
    TypeError: If an optimizer is not a TFF optimizer.
    ValueError: If an argument is out of range, or the public data does not fit
      the model. The message names the argument.
  """
  if not isinstance(alpha, schedules.Schedule):
    alpha = schedules.listed(alpha)
  return build_learning_process(
    model_fn,
    plan,
    client_optimizer,
    server_optimizer,
    method=methods.PdaDpmd(alpha=alpha),
    public_data=public_data,
    **options,
  )
