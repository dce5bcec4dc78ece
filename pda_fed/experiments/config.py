"""Settings of a run, as data.

`RunConfig` is what the loop reads; a task adds its own settings by a subclass,
as `FederatedConfig` does for the users of a store. A method and a model are
values, too; see `pda_fed.methods` and `pda_fed.models`.
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
from pda_fed.common import workers
from pda_fed.models import convergence


def no_setting(**options) -> Any:
  """A field that changes no number of a run, or not what it means."""
  return dataclasses.field(metadata={'setting': False}, **options)


def as_settings(config: Any) -> Any:
  """Returns a config as JSON values, without fields that change no number."""
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
      # Two models of users may have the same fields.
      values['kind'] = f'{kind.__module__}.{kind.__qualname__}'
    return values
  if isinstance(config, (tuple, list)):
    return [as_settings(value) for value in config]
  return config


def method_settings(method: methods.Method) -> dict[str, Any]:
  """Returns a method's settings, named as its flags are."""
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
  """Settings of a warm start.

  Example:

    >>> Pretraining(learning_rate=2e-3, max_epochs=20).batch_size
    16

  Attributes:
    learning_rate: Of Adam.
    batch_size: Examples in a step.
    held_out: The share of public examples that judge convergence.
    patience: Epochs without a better held-out loss after which it stops.
    max_epochs: After which it stops in any case.
    seed: Of initial weights and order; by default the run's, or 0 if that has
      none: public data need no secret.
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
    """Returns what decides when it stops, with the seed of its order."""
    return convergence.PretrainingConfig(
      batch_size=self.batch_size,
      held_out=self.held_out,
      patience=self.patience,
      max_epochs=self.max_epochs,
      seed=seed,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
  """What the loop reads of any run.

  Example: see `FederatedConfig`.

  Attributes:
    method: The public-data method.
    dataset: What the data are called in results.
    data_hash: sha256 of the data's manifest: the data are a setting, the folder
      where they lie is not.
    engine: The engine's name.
    plan: Population, cohort, rounds, clip and noise.
    pretraining: Of methods that start warm.
    seed: Of everything random. None draws all from the system's entropy, which
      a run that is meant to be private wants.
    rounds_per_evaluation: Rounds between evaluations on validation data.
    max_validation_users: The most users, or examples, of such an evaluation;
      None takes all.
    max_test_users: Likewise of the final test.
    final_test: Whether the test is done at all.
    rounds_per_checkpoint: Rounds between checkpoints; None saves at each
      evaluation.
    checkpoints_kept: Older ones are removed.
    rounds_per_dispatch: The most rounds that an engine runs at a time.
    audit: Canaries that show what the run leaks; None for none.
  """

  # The version of how a seed and a round become noise and sums. A round that is
  # repeated after a kill must be the same round: a run of another version is
  # refused. 4: noised sums are rounded to a grid.
  noise_version: ClassVar[int] = 4

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
        'audit must be off where noise_multiplier is 0: epsilon is infinite,'
        ' and no leak could contradict it. Give noise, or leave out --audit.'
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
    """Whether the method starts at a pre-trained model."""
    return self.method.warm_start

  @property
  def pretraining_seed(self) -> int:
    """The seed of the warm start."""
    if self.pretraining.seed is not None:
      return self.pretraining.seed
    return self.seed or 0

  def settings(self) -> dict[str, Any]:
    """Returns every setting that decides the run's numbers, as JSON values."""
    return {
      **as_settings(self),
      'method': self.method.name,
      'alpha': None,  # As every run had it when alpha was the only setting.
      **method_settings(self.method),
      'noise_version': self.noise_version,
    }

  def pretraining_settings(self) -> dict[str, Any]:
    """Returns what decides the warm start: runs that share it share a model.

    A task adds what decides its model.
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
  are values of its grids, of which it does not name the best. It names no
  momentum.

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
    data_dir: The store.
    spec: The model's sizes; they must fit the store.
    client_learning_rate: Of a user's local SGD, one epoch.
    client_gradient_clip: An optional bound on the norm of each gradient of
      local training. It keeps clients from diverging; epsilon rests on the
      plan's clip alone.
    server_optimizer: 'sgd', 'adam' or 'yogi'; see `common.server_optimizers`.
    server_learning_rate: Of the server's step on the noised (mixed) mean.
    server_momentum: Of the server's SGD; for Adam and Yogi, beta_1.
    batch_size: Examples in a batch of local training.
    public_update: 'local_training' or 'gradient'; see `learning.PublicUpdate`.
    public_users_per_round: How many public users a round samples.
    public_clip_norm: The bound on the public update's norm: a number,
      'private' for the clip of private updates, or None for no bound.
    mean_clip_norm: An optional bound on the noised mean's norm.
    max_concurrent_clients: How many clients the TFF engine simulates at a time;
      None for the cores.
    remote_workers: Where the TFF engine computes instead of on this machine.
    compute_dtype: Of the JAX engine's products: 'float32' or 'bfloat16'.
    clients_per_chunk: How many clients the JAX engine trains side by side; None
      lets it choose.
    platform: Of the JAX engine: 'cpu' or 'gpu'; None takes what JAX finds.
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
  remote_workers: Optional[workers.RemoteWorkers] = no_setting(default=None)
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
    if self.remote_workers is not None and self.engine != 'tff':
      raise ValueError(
        f'remote workers must be used with engine tff. Found {self.engine!r}.'
      )
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
