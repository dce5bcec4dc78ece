"""Settings, state and inputs of a DP-FedAvg round in JAX."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import methods
from pda_fed import privacy
from pda_fed.common import server_optimizers
from pda_fed.common import validate
from pda_fed.jax import canaries as canaries_lib
from pda_fed.jax import optimizers
from pda_fed.jax.federated import chunks as chunks_lib
from pda_fed.methods import arrays
from pda_fed.models import jax_model

# Weights of a model, in the model's own structure.
Params = Any


class ServerState(NamedTuple):
  """Server state that is passed from round to round.

  Example: see `initial_state`.

  Attributes:
    params: The model's weights.
    momentum: The server optimizer's mean of updates; () for SGD without
      momentum.
    clip_norm: S, the current clipping norm; adaptive clipping changes it.
    memory: The method's memory of public updates.
    squares: The mean of squared updates of Adam and Yogi; () for SGD.
  """

  params: Params
  momentum: Params
  clip_norm: jax.Array
  memory: arrays.Update = ()
  squares: Params = ()


class RoundInputs(NamedTuple):
  """The data of a round, or of several rounds with a leading axis.

  Example: see `build_rounds`.

  Attributes:
    round_num: Index of the round.
    private: Private clients.
    public: Clients whose updates form the public update; None if the method
      uses none.
    schedules: Values of the method's schedules, by field name.
    canaries: The canaries of an audit; None without an audit.
  """

  round_num: np.ndarray
  private: chunks_lib.ClientChunks
  public: Optional[chunks_lib.ClientChunks] = None
  schedules: Mapping[str, np.ndarray] = {}
  canaries: Optional[canaries_lib.CanaryInputs] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FederatedSettings:
  """Settings that a compiled round depends on.

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
    plan: Clipping norm, noise and expected cohort. The mechanism must be
      'gaussian'.
    client_learning_rate: Learning rate of local SGD.
    server_learning_rate: Learning rate of the server's optimizer.
    server_momentum: Momentum of the server's SGD; beta_1 of Adam and Yogi.
    server_optimizer: 'sgd', 'adam' or 'yogi'.
    client_gradient_clip: An optional bound on the norm of each gradient of
      local training.
    method: The public-data method; by default, no public data is used.
    public_clip_norm: The bound on the public update's norm: a number, 'private'
      for the clipping norm of private updates, or None for no bound.
    mean_clip_norm: An optional bound on the noised mean's norm.
    compute_dtype: Dtype of matrix products, 'float32' or 'bfloat16'. Weights,
      clipping, sums and noise are always in float32.
    pad_to: Layer sizes are padded to multiples of this during local training.
      It does not affect results.
    canaries: Canary settings of an audit; None without an audit.
  """

  model: jax_model.Model
  plan: privacy.PrivacyPlan
  client_learning_rate: float
  server_learning_rate: float
  server_momentum: float = 0.0
  server_optimizer: str = 'sgd'
  client_gradient_clip: Optional[float] = None
  method: methods.Method = methods.ColdStart()
  public_clip_norm: Union[float, str, None] = 'private'
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
    validate.one_of(
      server_optimizers.NAMES, server_optimizer=self.server_optimizer
    )
    validate.positive_or(
      (None,), client_gradient_clip=self.client_gradient_clip
    )
    validate.positive_or(
      ('private', None), public_clip_norm=self.public_clip_norm
    )
    validate.integers(1, pad_to=self.pad_to)


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
    settings: Settings of the run.
    weights: The model's weights, in the order of the Keras model.

  Raises:
    ValueError: If the weights do not fit the model.
  """
  params = settings.model.check_params(weights)
  momentum, squares = optimizers.server_start(
    settings.server_optimizer, params, settings.server_momentum
  )
  return ServerState(
    params,
    momentum,
    jnp.asarray(settings.plan.clip_norm, jnp.float32),
    settings.method.initial_memory(tuple(jax.tree_util.tree_leaves(params))),
    squares,
  )
