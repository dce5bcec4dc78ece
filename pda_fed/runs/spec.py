"""The settings of a run, as data.

A `RunSpec` is what every program passes on: the user's flags and files become
one, `compare` makes others of it, `config.json` holds it. Its fields are the
flags: name, type, default and help stand here once (`common.settings`).

    >>> spec = RunSpec.for_data(dataset='digits')
    >>> settings.replace(spec, {'server.learning_rate': 0.2}).plan.clip_norm
    1.0

A spec does not open data. `resolve.resolve` does, and returns the `Run`.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar, Optional, Union

from pda_fed.common import settings
from pda_fed.common import validate
from pda_fed.models import convergence
from pda_fed.runs import tasks

setting = settings.setting
ENGINES = ('tff', 'jax')
DECAYS = ('none', 'linear', 'cosine')


def _positive_or_none(**named: Optional[float]) -> None:
  for name, value in named.items():
    if value is not None:
      validate.positive(**{name: value})


def _integers_or_none(**named: Optional[int]) -> None:
  for name, value in named.items():
    if value is not None:
      validate.integers(1, **{name: value})


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSpec:
  """Where the examples come from, and which of them are public."""

  FLAT: ClassVar[bool] = True

  data_dir: Optional[str] = setting(
    None,
    'Folder of the users that prepare_users wrote. With --dataset, the folder'
    ' of its files, or the .npz file of images and tables.',
    affects_result=False,
  )
  dataset: Optional[str] = setting(
    None,
    'A data set for sample-level privacy: its examples are protected, not'
    ' users.',
    choices=(None, *tasks.DATASETS),
  )
  public_dataset: Optional[str] = setting(
    None,
    'Text from another source to use as public data, such as WikiText-103: a'
    ' file of tokens, or the folder of one. All sequences of --dataset are then'
    ' private.',
  )
  public_examples: Optional[int] = setting(
    None,
    'Number of training examples of --dataset that are public. Images and'
    ' tables have no default: give a value, or put public examples into the'
    ' file.',
  )
  validation_examples: int = setting(
    0,
    'Number of private examples of --dataset held out for validation, to choose'
    ' settings. WikiText has its own validation data.',
  )
  split_seed: int = setting(
    0, 'Seed of the split of --dataset into public and private examples.'
  )
  vocabulary_size: Optional[int] = setting(
    None,
    'Number of words of --dataset=wikitext2, including the unknown word.'
    ' Users have the vocabulary of their store.',
  )
  augmentation: str = setting(
    'none',
    'Which images to flip and crop at random in private training.',
    choices=('none', 'public', 'all'),
  )
  augmentation_multiplicity: int = setting(
    1,
    'With --augmentation=all: number of variations of each private image. The'
    ' gradient is averaged over them before it is clipped.',
  )

  def __post_init__(self):
    _integers_or_none(
      public_examples=self.public_examples,
      vocabulary_size=self.vocabulary_size,
    )
    validate.integers(
      0,
      validation_examples=self.validation_examples,
      split_seed=self.split_seed,
    )
    multiplicity = self.augmentation_multiplicity
    validate.integers(1, augmentation_multiplicity=multiplicity)
    if multiplicity > 1 and self.augmentation != 'all':
      raise ValueError(
        "augmentation_multiplicity must be 1 unless augmentation is 'all'."
        f' Found {multiplicity} and {self.augmentation!r}.'
      )

  @property
  def has_users(self) -> bool:
    """Whether users are protected; else examples are."""
    return self.dataset is None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSpec:
  """What a `privacy.PrivacyPlan` is made of, before the data are known."""

  FLAT: ClassVar[bool] = True

  rounds: Optional[int] = setting(
    1600, 'T, the number of rounds, or of steps with --dataset.'
  )
  epochs: Optional[float] = setting(
    None,
    'Number of epochs over the private data, instead of --rounds.',
  )
  expected_cohort: float = setting(
    100.0,
    'qN, the expected number of users in a round, or of examples in a step.',
  )
  clip_norm: float = setting(
    0.3,
    "Bound on the norm of a user's model update, or of an example's gradient."
    ' With --adaptive_clipping, its initial value. It does not affect epsilon.',
  )
  noise_multiplier: Optional[float] = setting(
    0.4, 'sigma, the standard deviation of the noise divided by the clip norm.'
  )
  target_epsilon: Optional[float] = setting(
    None,
    'Use the smallest noise that keeps epsilon at or below this value, instead'
    ' of --noise_multiplier.',
  )
  delta: float = setting(1e-6, 'The delta of the (epsilon, delta) guarantee.')
  sampling: str = setting(
    'poisson',
    "How cohorts are sampled. 'poisson': each user independently. 'fixed_size':"
    ' the same number of users in every round. fixed_size_as_poisson: cohorts'
    ' of fixed size, with the approximate epsilon of Poisson sampling. epochs:'
    ' every user once per epoch, with --mechanism=tree.',
    choices=('poisson', 'fixed_size', 'fixed_size_as_poisson', 'epochs'),
  )
  mechanism: str = setting(
    'gaussian',
    'gaussian: independent noise in each round. tree: the correlated noise of'
    ' DP-FTRL, with --sampling=epochs and --engine=tff.',
    choices=('gaussian', 'tree'),
  )
  adaptive_clipping: bool = setting(
    False,
    "Let the clip norm follow a quantile of the updates' norms."
    ' --noise_multiplier then covers both the updates and the quantile.',
  )
  clip_quantile: Optional[float] = setting(
    None,
    'With --adaptive_clipping: target fraction of updates that are not clipped.'
    ' Default: 0.5.',
  )
  clip_learning_rate: Optional[float] = setting(
    None,
    'With --adaptive_clipping: learning rate of the clip norm. Default: 0.2.',
  )
  clip_count_stddev: Optional[float] = setting(
    None,
    'With --adaptive_clipping: standard deviation of the noise on the number of'
    ' unclipped updates. Default: a twentieth of the expected cohort.',
  )

  def __post_init__(self):
    _positive_or_none(
      epochs=self.epochs,
      target_epsilon=self.target_epsilon,
      clip_norm=self.clip_norm,
      expected_cohort=self.expected_cohort,
    )
    _integers_or_none(rounds=self.rounds)
    validate.between(0, 1, delta=self.delta)
    if (self.rounds is None) == (self.epochs is None):
      raise ValueError(
        'rounds must be given without epochs, or epochs without rounds. Found'
        f' {self.rounds} and {self.epochs}.'
      )
    if self.noise_multiplier is not None and self.target_epsilon is not None:
      raise ValueError(
        'noise_multiplier must not be given with target_epsilon, which solves'
        f' for it. Found {self.noise_multiplier!r}.'
      )
    if self.noise_multiplier is None and self.target_epsilon is None:
      raise ValueError('noise_multiplier or target_epsilon must be given.')
    if not self.adaptive_clipping:
      for name in ('clip_quantile', 'clip_learning_rate', 'clip_count_stddev'):
        if getattr(self, name) is not None:
          raise ValueError(f'{name} must be given with adaptive_clipping.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSpec:
  """Local training of users."""

  learning_rate: float = setting(
    0.5, "Learning rate of the clients' local SGD, one epoch."
  )
  batch_size: int = setting(16, 'Batch size of local training, in examples.')
  gradient_clip: Optional[float] = setting(
    None,
    'Bound on the norm of each gradient in local training. It keeps clients'
    ' from diverging. It does not affect epsilon.',
  )

  def __post_init__(self):
    validate.positive(learning_rate=self.learning_rate)
    validate.integers(1, batch_size=self.batch_size)
    _positive_or_none(gradient_clip=self.gradient_clip)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerSpec:
  """The step on the noised mean."""

  optimizer: str = setting(
    'sgd',
    'Optimizer that applies the noised mean to the model. adam and yogi use'
    ' momentum as beta_1, and need learning rates near 0.01.',
    choices=('sgd', 'adam', 'yogi'),
  )
  learning_rate: float = setting(
    1.0, "Learning rate of the server's optimizer; with --dataset, of DP-SGD."
  )
  momentum: float = setting(0.9, "Momentum of the server's optimizer.")
  decay: str = setting(
    'none',
    'How the learning rate decays to 0 at the last step, with --dataset.',
    choices=DECAYS,
  )
  mean_clip_norm: Union[float, str, None] = setting(
    None,
    "Bound on the norm of the noised mean: a number, none, or 'private', the"
    " clip norm of private updates (the paper's for images).",
  )
  averaging: float = setting(
    0.0,
    'Decay of a moving average of the weights, which becomes the result, with'
    ' --dataset. 0 means no averaging.',
  )

  def __post_init__(self):
    validate.positive(learning_rate=self.learning_rate)
    validate.positive_or(('private', None), mean_clip_norm=self.mean_clip_norm)
    validate.non_negative(momentum=self.momentum, averaging=self.averaging)
    for name in ('momentum', 'averaging'):
      if getattr(self, name) >= 1:
        raise ValueError(
          f'{name} must be in [0, 1). Found {getattr(self, name)}.'
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicSpec:
  """The public update of a round."""

  update: str = setting(
    'local_training',
    'local_training: the mean model delta of sampled public users. gradient:'
    ' one step on users_per_round * client.batch_size examples of all public'
    ' users; with --dataset, the gradient of the mean loss of a public batch.'
    ' clipped (with --dataset): the mean of the gradients of its examples, each'
    ' clipped like a private one.',
    choices=('local_training', 'gradient', 'clipped'),
  )
  users_per_round: int = setting(
    10, 'Number of public users sampled in a round.'
  )
  batch_size: int = setting(
    250, 'Number of public examples in a step, with --dataset.'
  )
  clip_norm: Union[float, str, None] = setting(
    'private',
    "Bound on the norm of the public update: a number; 'private', the same as"
    ' for private updates; or none, as in the paper.',
  )

  def __post_init__(self):
    validate.integers(
      1, users_per_round=self.users_per_round, batch_size=self.batch_size
    )
    validate.positive_or(('private', None), clip_norm=self.clip_norm)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSpec:
  """When the model is evaluated, and on how many users."""

  FLAT: ClassVar[bool] = True

  rounds_per_evaluation: Optional[int] = setting(
    None,
    'Rounds between evaluations on validation data. Default: 20; with'
    ' --dataset, whole epochs that give about 20 evaluations.',
  )
  max_validation_users: Optional[int] = setting(
    None,
    'Maximum number of users, or examples, in an evaluation. Default: all.',
  )
  max_test_users: Optional[int] = setting(
    None,
    'Maximum number of users, or examples, in the final test. Default: all.',
  )
  final_test: bool = setting(
    True,
    'Whether to evaluate on the test data at the end. A finished run with a'
    ' --seed can still be tested later. Without a seed it cannot: its secret'
    ' seeds are removed when it ends.',
    affects_result=False,
  )
  test_curve: bool = setting(
    False,
    "Whether to add test metrics to metrics.csv, as in the paper's figures. Do"
    ' not use them to choose settings.',
    affects_result=False,
  )

  def __post_init__(self):
    _integers_or_none(
      rounds_per_evaluation=self.rounds_per_evaluation,
      max_validation_users=self.max_validation_users,
      max_test_users=self.max_test_users,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditSpec:
  """Canaries that measure what the run leaks."""

  FLAT: ClassVar[bool] = True

  audit: Optional[str] = setting(
    None,
    'run: add canaries to the run, and measure what it leaks, to compare with'
    ' the proven epsilon. copy: leave the run unchanged and audit a second copy'
    ' of it.',
    choices=(None, 'run', 'copy'),
  )
  audit_canaries: Optional[int] = setting(
    None,
    'Number of canaries of the audit. Default: 1000, or as many as the model'
    ' has room for.',
  )

  def __post_init__(self):
    if self.audit is None and self.audit_canaries is not None:
      raise ValueError('audit_canaries must be given with audit.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionSpec:
  """What computes the run; of these, engine and dtype affect the result."""

  FLAT: ClassVar[bool] = True

  engine: str = setting(
    'tff', 'Engine that computes the run. --dataset needs jax.', choices=ENGINES
  )
  compute_dtype: str = setting(
    'float32',
    'Data type of matrix products in the JAX engine. Norms, sums and noise are'
    ' float32.',
    choices=('float32', 'bfloat16'),
  )
  platform: Optional[str] = setting(
    None,
    'Platform of the JAX engine. Default: chosen by JAX.',
    choices=(None, 'cpu', 'gpu'),
    affects_result=False,
  )
  clients_per_chunk: Optional[int] = setting(
    None,
    'Number of clients that the JAX engine trains side by side. Default: chosen'
    ' by the size of the model.',
    affects_result=False,
  )
  microbatch_size: Optional[int] = setting(
    None,
    'Examples of --dataset whose gradients are computed at a time. Default:'
    ' all.',
    affects_result=False,
  )
  max_concurrent_clients: Optional[int] = setting(
    None,
    'Number of users that the TFF engine simulates at a time. Default: the'
    ' number of cores.',
    affects_result=False,
  )
  rounds_per_dispatch: Optional[int] = setting(
    None,
    'Maximum number of rounds that the engine runs per call. Default: 1; with'
    ' --dataset, one epoch.',
    affects_result=False,
  )
  rounds_per_checkpoint: Optional[int] = setting(
    None,
    'Rounds between checkpoints. Default: a checkpoint at each evaluation.',
    affects_result=False,
  )
  checkpoints_kept: int = setting(
    3,
    'Number of checkpoints to keep. Older ones are removed.',
    affects_result=False,
  )

  def __post_init__(self):
    _integers_or_none(
      clients_per_chunk=self.clients_per_chunk,
      microbatch_size=self.microbatch_size,
      max_concurrent_clients=self.max_concurrent_clients,
      rounds_per_dispatch=self.rounds_per_dispatch,
      rounds_per_checkpoint=self.rounds_per_checkpoint,
    )
    validate.integers(1, checkpoints_kept=self.checkpoints_kept)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec:
  """All settings of a run.

  Example:

    >>> spec = RunSpec.for_data(data_dir='data/laptop')
    >>> spec.server.learning_rate, spec.plan.rounds
    (1.0, 1600)

  Attributes:
    data: Where the examples come from.
    model: The model and its sizes.
    method: The public-data method and its settings.
    plan: Rounds, cohorts, clip and noise.
    client: Local training of users.
    server: The step on the noised mean.
    public: The public update.
    pretraining: The warm start.
    evaluation: When the model is evaluated.
    audit: Canaries.
    execution: What computes the run.
    seed: Seed of everything random; None, for private runs, uses the system's
      entropy.
  """

  data: DataSpec = DataSpec()
  model: settings.Choice = setting(
    settings.Choice(),
    'The model: lstm for text; linear or cnn for arrays; wrn-DEPTH-WIDTH, such'
    ' as wrn-16-4, for images; or a module with a function create_spec(store),'
    ' such as my_package.my_model. Default: the one of the data set; lstm for'
    ' text, cnn for images, linear for tables. --model.NAME sets one of its'
    ' sizes.',
  )
  method: settings.Choice = setting(
    settings.Choice('pda'),
    'The method, or a module that defines one, such as my_package.my_method.'
    ' --method.NAME sets one of its settings.',
  )
  plan: PlanSpec = PlanSpec()
  client: ClientSpec = ClientSpec()
  server: ServerSpec = ServerSpec()
  public: PublicSpec = PublicSpec()
  pretraining: convergence.PretrainingConfig = convergence.PretrainingConfig()
  evaluation: EvaluationSpec = EvaluationSpec()
  audit: AuditSpec = AuditSpec()
  execution: ExecutionSpec = ExecutionSpec()
  seed: Optional[int] = setting(
    None,
    'Random seed. It makes the run repeatable, including its noise, for anyone'
    ' who knows the seed. Leave it out if the run should be private.',
  )

  def __post_init__(self):
    if self.seed is not None:
      validate.integers(0, seed=self.seed)
      validate.in_range(0, 2**63 - 1, seed=self.seed)

  @classmethod
  def for_data(
    cls,
    dataset: Optional[str] = None,
    data_dir: Optional[str] = None,
    **values: Any,
  ) -> 'RunSpec':
    """Returns the default settings of a data set, with some changed.

    Args:
      dataset: A data set for sample-level privacy; None for users.
      data_dir: Where its files, or the users, are.
      **values: See `with_values`; dots in names are written as in
        `**{'server.learning_rate': 0.5}`.
    """
    given = {'dataset': dataset, 'data_dir': data_dir, **values}
    return settings.replace(cls(), tasks.DEFAULTS.get(dataset, {})).with_values(
      given
    )

  def with_values(self, values: Mapping[str, Any]) -> 'RunSpec':
    """Returns a copy with other values, which may settle a choice.

    A value of `epochs` removes `rounds`, and the reverse; the same holds for
    `target_epsilon` and `noise_multiplier`.

    Args:
      values: JSON values by name; see `settings.replace`.
    """
    known = {settings.find(RunSpec, n)[0].name: v for n, v in values.items()}
    changed = dict(values)
    for one, other in (
      ('plan.rounds', 'plan.epochs'),
      ('plan.noise_multiplier', 'plan.target_epsilon'),
    ):
      for name, instead in ((one, other), (other, one)):
        if known.get(name) is not None and instead not in known:
          changed[instead] = None
    return settings.replace(self, changed)

  @classmethod
  def from_json(cls, content: Any) -> 'RunSpec':
    """Returns the spec of a JSON object; what it leaves out has defaults.

    Args:
      content: As `as_json` returns it.

    Raises:
      TypeError: If a value has the wrong type.
      ValueError: If a name is unknown or a value is invalid.
    """
    values = settings.flatten(content, cls)
    return cls.for_data(values.get('data.dataset'), None).with_values(values)

  def as_json(self, *, only_results: bool = False) -> dict[str, Any]:
    """Returns the spec as JSON values.

    Args:
      only_results: Whether to leave out settings that do not affect results.
    """
    return settings.as_json(self, only_results=only_results)

  @property
  def pretraining_seed(self) -> int:
    """The seed of the warm start."""
    if self.pretraining.seed is not None:
      return self.pretraining.seed
    return self.seed or 0
