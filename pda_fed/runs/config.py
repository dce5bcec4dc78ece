"""Settings of a run.

The training loop reads a `RunConfig`. Tasks add their settings in subclasses,
such as `FederatedConfig` for training on the users of a store. Methods and
models are values too; see `pda_fed.methods` and `pda_fed.models`.
"""

import dataclasses
from typing import Any, ClassVar, Literal, Optional, Union

from pda_fed import audit as audit_lib
from pda_fed import methods
from pda_fed import models
from pda_fed import privacy
from pda_fed import schedules
from pda_fed.common import server_optimizers
from pda_fed.common import validate
from pda_fed.models import convergence


def no_setting(**options) -> Any:
  """Returns a dataclass field that does not affect results."""
  return dataclasses.field(metadata={'setting': False}, **options)


def as_settings(config: Any) -> Any:
  """Returns a config as JSON values, without fields made by `no_setting`."""
  if dataclasses.is_dataclass(config):
    values = {
      f.name: as_settings(getattr(config, f.name))
      for f in dataclasses.fields(config)
      if f.metadata.get('setting', True)
    }
    if isinstance(config, schedules.Schedule):
      values['kind'] = type(config).__name__.strip('_').lower()
    kind = type(config)
    if isinstance(config, models.ModelSpec) and not kind.__module__.startswith(
      models.__name__
    ):
      # Two models defined by users may have the same fields.
      values['kind'] = f'{kind.__module__}.{kind.__qualname__}'
    return values
  if callable(config):  # A schedule.
    return {'kind': f'{config.__module__}.{config.__qualname__}'}
  if isinstance(config, (tuple, list)):
    return [as_settings(value) for value in config]
  return config


def method_settings(method: methods.Method) -> dict[str, Any]:
  """Returns a method's settings, named like its flags."""
  return {
    name if name == 'alpha' else f'{method.name}_{name}': value
    for name, value in as_settings(method).items()
  }


def flatten(value: Any, prefix: str = '') -> dict[str, Any]:
  """Returns nested settings with dotted names."""
  if not isinstance(value, dict):
    return {prefix: value}
  flat = {}
  for name, inner in value.items():
    flat |= flatten(inner, f'{prefix}.{name}' if prefix else name)
  return flat


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
  """Returns 'name: old -> new' for each setting that differs."""
  old, new = flatten(old), flatten(new)
  missing = object()
  lines = []
  for name in sorted(old.keys() | new.keys()):
    before, after = old.get(name, missing), new.get(name, missing)
    if before != after:
      shown = ['none' if v is missing else repr(v) for v in (before, after)]
      lines.append(f'{name}: {shown[0]} -> {shown[1]}')
  return lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretraining:
  """Settings of a warm start: pre-training on public data.

  Example:

    >>> Pretraining(learning_rate=2e-3, max_epochs=20).batch_size
    16

  Attributes:
    learning_rate: Learning rate of Adam.
    batch_size: Examples per step.
    held_out: Fraction of public examples held out to detect convergence.
    patience: Pre-training stops after this many epochs without a better
      held-out loss.
    max_epochs: The maximum number of epochs.
    seed: Seed of the initial weights and the order of examples. By default the
      run's seed, or 0 if the run has none: public data needs no secret.
  """

  learning_rate: float = 1e-2
  batch_size: int = 16
  held_out: float = 0.1
  patience: int = 3
  max_epochs: int = 100
  seed: Optional[int] = None

  def __post_init__(self):
    validate.positive(pretraining_learning_rate=self.learning_rate)
    validate.integers(
      1,
      pretraining_batch_size=self.batch_size,
      pretraining_patience=self.patience,
      pretraining_max_epochs=self.max_epochs,
    )
    validate.between(0, 1, pretraining_held_out=self.held_out)
    if self.seed is not None:
      validate.integers(0, pretraining_seed=self.seed)

  def convergence(self, seed: int) -> convergence.PretrainingConfig:
    """Returns the settings that decide when pre-training stops.

    Args:
      seed: Seed of the order of examples.
    """
    return convergence.PretrainingConfig(
      batch_size=self.batch_size,
      held_out=self.held_out,
      patience=self.patience,
      max_epochs=self.max_epochs,
      seed=seed,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
  """Settings that all runs share.

  Example: see `FederatedConfig`.

  Attributes:
    method: The public-data method.
    dataset: The data set's name in results.
    data_hash: sha256 of the data's manifest. The data is a setting of the run;
      the folder that holds it is not.
    engine: The engine's name.
    plan: Population, cohort, rounds, clip and noise.
    pretraining: Settings of the warm start, for methods that have one.
    seed: Seed of everything random. None, for private runs, uses the system's
      entropy.
    rounds_per_evaluation: Rounds between evaluations on validation data.
    max_validation_users: Maximum number of users (or examples) per evaluation;
      None takes all.
    max_test_users: Maximum number of users (or examples) in the final test;
      None takes all.
    final_test: Whether to run the final test.
    rounds_per_checkpoint: Rounds between checkpoints; None saves at each
      evaluation.
    checkpoints_kept: Number of checkpoints to keep; older ones are removed.
    rounds_per_dispatch: Maximum number of rounds per call of the engine.
    audit: Canaries that measure what the run leaks; None for no audit.
  """

  # Version of the map from seed and round to noise and sums. A round repeated
  # after a kill must be the same round, so a run of another version cannot be
  # resumed. Version 4 rounds noised sums to a grid. Version 5 gives TFF's noise
  # a seed of 128 bits for each draw.
  noise_version: ClassVar[int] = 5

  method: methods.Method
  dataset: str
  data_hash: str
  engine: str
  plan: privacy.PrivacyPlan
  pretraining: Pretraining = Pretraining()
  seed: Optional[int] = None
  rounds_per_evaluation: int = 20
  max_validation_users: Optional[int] = None
  max_test_users: Optional[int] = None
  final_test: bool = no_setting(default=True)
  rounds_per_checkpoint: Optional[int] = no_setting(default=None)
  checkpoints_kept: int = no_setting(default=3)
  rounds_per_dispatch: int = no_setting(default=1)
  audit: Optional[audit_lib.AuditConfig] = None

  def __post_init__(self):
    validate.instances(methods.Method, method=self.method)
    validate.texts(
      dataset=self.dataset, data_hash=self.data_hash, engine=self.engine
    )
    validate.instances(privacy.PrivacyPlan, plan=self.plan)
    validate.instances(Pretraining, pretraining=self.pretraining)
    if self.seed is not None:
      validate.integers(0, seed=self.seed)
    if self.audit is not None:
      validate.instances(audit_lib.AuditConfig, audit=self.audit)
    if self.audit is not None and not self.plan.noise_multiplier:
      raise ValueError(
        'audit must be off if noise_multiplier is 0: epsilon is infinite, and'
        ' no leak can contradict it. Add noise, or drop --audit.'
      )
    validate.integers(
      1,
      rounds_per_evaluation=self.rounds_per_evaluation,
      checkpoints_kept=self.checkpoints_kept,
      rounds_per_dispatch=self.rounds_per_dispatch,
    )
    for name in (
      'max_validation_users',
      'max_test_users',
      'rounds_per_checkpoint',
    ):
      if getattr(self, name) is not None:
        validate.integers(1, **{name: getattr(self, name)})

  @property
  def warm_start(self) -> bool:
    """Whether the method starts from a pre-trained model."""
    return self.method.warm_start

  @property
  def pretraining_seed(self) -> int:
    """The seed of the warm start."""
    if self.pretraining.seed is not None:
      return self.pretraining.seed
    return self.seed or 0

  def settings(self) -> dict[str, Any]:
    """Returns every setting that affects results, as JSON values."""
    return {
      **as_settings(self),
      'method': self.method.name,
      'alpha': None,  # Every run had it when alpha was the only setting.
      **method_settings(self.method),
      'noise_version': self.noise_version,
    }

  def pretraining_settings(self) -> dict[str, Any]:
    """Returns the settings that determine the warm-start model.

    Runs with the same settings share the model. Tasks add the settings of their
    models.
    """
    return {
      **as_settings(self.pretraining),
      'seed': self.pretraining_seed,
      'data_hash': self.data_hash,
      'engine': self.engine,
    }


PublicUpdateMode = Literal['local_training', 'gradient']


@dataclasses.dataclass(frozen=True, kw_only=True)
class FederatedConfig(RunConfig):
  """Settings of a run over the users of a store.

  The default batch size is the paper's for StackOverflow. Both learning rates
  are from the paper's grids; it does not say which values are best, and does
  not mention momentum.

  Example:

    >>> config = FederatedConfig(
    ...   method=methods.WarmStart(), engine='jax',
    ...   dataset='synthetic', data_hash='0123',
    ...   data_dir='data/synthetic',
    ...   plan=privacy.PrivacyPlan(
    ...     population=1000, expected_cohort=10, rounds=5, delta=1e-4,
    ...     noise_multiplier=1.0, clip_norm=1.0,
    ...   ),
    ... )
    >>> config.batch_size, config.server_momentum
    (16, 0.9)

  Attributes:
    data_dir: The folder of the store.
    spec: The model; it must fit the store.
    client_learning_rate: Learning rate of the clients' local SGD (one epoch).
    client_gradient_clip: Optional bound on the norm of each gradient of local
      training. It keeps clients from diverging. Epsilon depends only on the
      plan's clip.
    server_optimizer: 'sgd', 'adam' or 'yogi'; see `common.server_optimizers`.
    server_learning_rate: Learning rate of the server's step on the noised
      (mixed) mean.
    server_momentum: Momentum of the server's SGD; beta_1 of Adam and Yogi.
    batch_size: Examples per batch of local training.
    public_update: 'local_training' or 'gradient'; see `pda_tff.PublicUpdate`.
    public_users_per_round: Number of public users sampled per round.
    public_clip_norm: Bound on the norm of the public update: a number,
      'private' for the clip norm of private updates, or None for no bound.
    mean_clip_norm: Optional bound on the norm of the noised mean.
    max_concurrent_clients: Number of clients that the TFF engine simulates at a
      time; None for the number of cores.
    compute_dtype: Dtype of the JAX engine's matrix products: 'float32' or
      'bfloat16'.
    clients_per_chunk: Number of clients that the JAX engine trains side by
      side; None lets the engine choose.
    platform: Platform of the JAX engine: 'cpu' or 'gpu'; None for JAX's
      default.
  """

  data_dir: str = no_setting()
  spec: models.ModelSpec = models.RecurrentSpec()
  client_learning_rate: float = 0.5
  client_gradient_clip: Optional[float] = None
  server_optimizer: str = 'sgd'
  server_learning_rate: float = 1.0
  server_momentum: float = 0.9
  batch_size: int = 16
  public_update: PublicUpdateMode = 'local_training'
  public_users_per_round: int = 10
  public_clip_norm: Union[float, str, None] = 'private'
  mean_clip_norm: Optional[float] = None
  max_concurrent_clients: Optional[int] = no_setting(default=None)
  compute_dtype: str = 'float32'
  clients_per_chunk: Optional[int] = no_setting(default=None)
  platform: Optional[str] = no_setting(default=None)

  def __post_init__(self):
    super().__post_init__()
    validate.instances(models.ModelSpec, spec=self.spec)
    validate.positive(
      client_learning_rate=self.client_learning_rate,
      server_learning_rate=self.server_learning_rate,
    )
    validate.non_negative(server_momentum=self.server_momentum)
    if self.server_momentum >= 1:
      raise ValueError(
        f'server_momentum must be in [0, 1). Found {self.server_momentum}.'
      )
    validate.integers(
      1,
      batch_size=self.batch_size,
      public_users_per_round=self.public_users_per_round,
    )
    validate.one_of(
      ('local_training', 'gradient'), public_update=self.public_update
    )
    validate.one_of(('float32', 'bfloat16'), compute_dtype=self.compute_dtype)
    validate.one_of((None, 'cpu', 'gpu'), platform=self.platform)
    validate.one_of(
      server_optimizers.NAMES, server_optimizer=self.server_optimizer
    )
    for name in ('client_gradient_clip', 'mean_clip_norm'):
      if getattr(self, name) is not None:
        validate.positive(**{name: getattr(self, name)})
    validate.positive_or(
      ('private', None), public_clip_norm=self.public_clip_norm
    )
    for name in ('clients_per_chunk', 'max_concurrent_clients'):
      if getattr(self, name) is not None:
        validate.integers(1, **{name: getattr(self, name)})

  def pretraining_settings(self) -> dict[str, Any]:
    """See the base class."""
    return {
      **super().pretraining_settings(),
      'spec': as_settings(self.spec),
      'compute_dtype': self.compute_dtype,
    }
