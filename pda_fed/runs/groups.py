"""The groups of settings of a run, each with help and check; see `spec`."""

import dataclasses
import functools
import types
from typing import Optional, Union

from pda_fed import audit as audit_lib
from pda_fed.common import optimizers
from pda_fed.common import settings
from pda_fed.common import validate
from pda_fed.runs import tasks

setting = settings.setting

_count = functools.partial(
  setting, check=functools.partial(validate.integers, 1)
)
_from_0 = functools.partial(
  setting, check=functools.partial(validate.integers, 0)
)
_positive = functools.partial(setting, check=validate.positive)
_below_one = functools.partial(setting, check=validate.below_one)
_BOUND = functools.partial(validate.positive_or, ('private',))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSpec(settings.Group):
  """Where the examples come from, and which of them are public."""

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
    only='examples',
  )
  public_examples: Optional[int] = _count(
    None,
    'Number of training examples of --dataset that are public. Images and'
    ' tables have no default: give a value, or put public examples into the'
    ' file.',
    only='examples',
  )
  validation_examples: int = _from_0(
    0,
    'Number of private examples of --dataset held out for validation, to choose'
    ' settings. WikiText has its own validation data.',
    only='examples',
  )
  split_seed: int = _from_0(
    0,
    'Seed of the split of --dataset into public and private examples.',
    only='examples',
  )
  vocabulary_size: Optional[int] = _count(
    None,
    'Number of words of --dataset=wikitext2, including the unknown word.'
    ' Users have the vocabulary of their store.',
    only='examples',
  )
  augmentation: str = setting(
    'none',
    'Which images to flip and crop at random in private training.',
    choices=('none', 'public', 'all'),
    only='examples',
  )
  augmentation_multiplicity: int = _count(
    1,
    'With --augmentation=all: number of variations of each private image. The'
    ' gradient is averaged over them before it is clipped.',
    only='examples',
  )

  def __post_init__(self):
    super().__post_init__()
    if self.augmentation_multiplicity > 1 and self.augmentation != 'all':
      raise ValueError(
        "augmentation_multiplicity must be 1 unless augmentation is 'all'."
        f' Found {self.augmentation_multiplicity} and {self.augmentation!r}.'
      )

  @property
  def has_users(self) -> bool:
    """Whether users are protected; else examples are."""
    return self.dataset is None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSpec(settings.Group):
  """What a `privacy.PrivacyPlan` is made of, before the data are known."""

  rounds: Optional[int] = _count(
    1600, 'T, the number of rounds, or of steps with --dataset.'
  )
  epochs: Optional[float] = _positive(
    None, 'Number of epochs over the private data, instead of --rounds.'
  )
  expected_cohort: float = _positive(
    100.0,
    'qN, the expected number of users in a round, or of examples in a step.',
  )
  clip_norm: float = _positive(
    0.3,
    "Bound on the norm of a user's model update, or of an example's gradient."
    ' With --adaptive_clipping, its initial value. It does not affect epsilon.',
  )
  noise_multiplier: Optional[float] = setting(
    0.4,
    'sigma, the standard deviation of the noise divided by the clip norm.',
    check=validate.non_negative,
  )
  target_epsilon: Optional[float] = _positive(
    None,
    'Use the smallest noise that keeps epsilon at or below this value, instead'
    ' of --noise_multiplier.',
  )
  delta: float = setting(
    1e-6,
    'The delta of the (epsilon, delta) guarantee.',
    check=functools.partial(validate.between, 0, 1),
  )
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
    only='users',
  )
  clip_quantile: Optional[float] = setting(
    None,
    'With --adaptive_clipping: target fraction of updates that are not clipped.'
    ' Default: 0.5.',
    check=functools.partial(validate.in_range, 0, 1),
    only='users',
  )
  clip_learning_rate: Optional[float] = _positive(
    None,
    'With --adaptive_clipping: learning rate of the clip norm. Default: 0.2.',
    only='users',
  )
  clip_count_stddev: Optional[float] = _positive(
    None,
    'With --adaptive_clipping: standard deviation of the noise on the number of'
    ' unclipped updates. Default: a twentieth of the expected cohort.',
    only='users',
  )

  def __post_init__(self):
    super().__post_init__()
    if (self.rounds is None) == (self.epochs is None):
      raise ValueError(
        'rounds must be given without epochs, or epochs without rounds. Found'
        f' {self.rounds} and {self.epochs}.'
      )
    if (self.noise_multiplier is None) == (self.target_epsilon is None):
      raise ValueError(
        'noise_multiplier must be given without target_epsilon, which solves'
        f' for it, or the reverse. Found {self.noise_multiplier!r} and'
        f' {self.target_epsilon!r}.'
      )
    for name in ('clip_quantile', 'clip_learning_rate', 'clip_count_stddev'):
      if getattr(self, name) is not None and not self.adaptive_clipping:
        raise ValueError(f'{name} must be given with adaptive_clipping.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSpec(optimizers.OptimizerSettings):
  """Local training of users, one epoch."""

  PREFIX = 'client.'
  ONLY = 'users'

  learning_rate: float = _positive(0.5, 'The learning rate of local training.')
  batch_size: int = _count(16, 'Batch size of local training, in examples.')
  gradient_clip: Optional[float] = _positive(
    None,
    'Bound on the norm of each gradient in local training. It keeps clients'
    ' from diverging. It does not affect epsilon.',
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerSpec(optimizers.OptimizerSettings):
  """The step on the noised mean.

  The constants of adaptive optimizers are from "Adaptive Federated
  Optimization" (Reddi et al., ICLR 2021, arXiv:2003.00295). They act on the
  noised mean, so they do not affect epsilon.
  """

  DEFAULTS = types.MappingProxyType(
    {
      'sgd': {'momentum': 0.9},
      'adam': {'beta1': 0.9, 'beta2': 0.99, 'epsilon': 1e-3},
      'yogi': {
        'beta1': 0.9,
        'beta2': 0.99,
        'epsilon': 1e-3,
        'initial_accumulator': 1e-6,
      },
      'adagrad': {'epsilon': 1e-6, 'initial_accumulator': 0.0},
    }
  )

  PREFIX = 'server.'

  optimizer: str = setting(
    'sgd',
    'Optimizer that applies the noised mean to the model. adam and yogi need'
    ' learning rates near 0.01.',
    choices=optimizers.NAMES,
  )
  decay: str = setting(
    'none',
    'How the learning rate decays to 0 at the last step, with --dataset.',
    choices=('none', 'linear', 'cosine'),
    only='examples',
  )
  mean_clip_norm: Union[float, str, None] = setting(
    None,
    "Bound on the norm of the noised mean: a number, none, or 'private', the"
    " clip norm of private updates (the paper's for images).",
    check=_BOUND,
  )
  averaging: float = _below_one(
    0.0,
    'Decay of a moving average of the weights, which becomes the result, with'
    ' --dataset. 0 means no averaging.',
    only='examples',
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicSpec(settings.Group):
  """The public update of a round."""

  PREFIX = 'public.'

  update: str = setting(
    'local_training',
    'local_training: the mean model delta of sampled public users. gradient:'
    ' one step on users_per_round * client.batch_size examples of all public'
    ' users; with --dataset, the gradient of the mean loss of a public batch.'
    ' clipped (with --dataset): the mean of the gradients of its examples, each'
    ' clipped like a private one.',
    choices=('local_training', 'gradient', 'clipped'),
  )
  users_per_round: int = _count(
    10, 'Number of public users sampled in a round.', only='users'
  )
  batch_size: int = _count(
    250, 'Number of public examples in a step, with --dataset.', only='examples'
  )
  clip_norm: Union[float, str, None] = setting(
    'private',
    "Bound on the norm of the public update: a number; 'private', the same as"
    ' for private updates; or none, as in the paper.',
    check=_BOUND,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSpec(settings.Group):
  """When the model is evaluated, and on how many users."""

  rounds_per_evaluation: Optional[int] = _count(
    None,
    'Rounds between evaluations on validation data. Default: 20; with'
    ' --dataset, whole epochs that give about 20 evaluations.',
  )
  max_validation_users: Optional[int] = _count(
    None,
    'Maximum number of users, or examples, in an evaluation. Default: all.',
  )
  max_test_users: Optional[int] = _count(
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
    only='examples',
    affects_result=False,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditSpec(settings.Group):
  """Canaries that measure what the run leaks."""

  audit: Optional[str] = setting(
    None,
    'run: add canaries to the run, and measure what it leaks, to compare with'
    ' the proven epsilon. copy: leave the run unchanged and audit a second copy'
    ' of it.',
    choices=(None, 'run', 'copy'),
  )
  audit_canaries: Optional[int] = setting(
    None,
    'Number of canaries of the audit, half of which take part. Default: 1000,'
    ' or as many as the model has room for.',
    check=audit_lib.check_count,
  )

  def __post_init__(self):
    super().__post_init__()
    if self.audit is None and self.audit_canaries is not None:
      raise ValueError('audit_canaries must be given with audit.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionSpec(settings.Group):
  """What computes the run; of these, engine and dtype affect the result."""

  engine: str = setting(
    'tff',
    'Engine that computes the run. --dataset needs jax.',
    choices=('tff', 'jax'),
  )
  compute_dtype: str = setting(
    'float32',
    'Data type of matrix products in the JAX engine. Norms, sums and noise are'
    ' float32.',
    choices=('float32', 'bfloat16'),
    only='jax',
  )
  platform: Optional[str] = setting(
    None,
    'Platform of the JAX engine. Default: chosen by JAX.',
    choices=(None, 'cpu', 'gpu'),
    affects_result=False,
  )
  clients_per_chunk: Optional[int] = _count(
    None,
    'Number of clients that the JAX engine trains side by side. Default: chosen'
    ' by the size of the model.',
    affects_result=False,
  )
  microbatch_size: Optional[int] = _count(
    None,
    'Examples of --dataset whose gradients are computed at a time. Default:'
    ' all.',
    affects_result=False,
  )
  max_concurrent_clients: Optional[int] = _count(
    None,
    'Number of users that the TFF engine simulates at a time. Default: the'
    ' number of cores.',
    affects_result=False,
  )
  rounds_per_dispatch: Optional[int] = _count(
    None,
    'Maximum number of rounds that the engine runs per call. Default: 1; with'
    ' --dataset, one epoch.',
    affects_result=False,
  )
  rounds_per_checkpoint: Optional[int] = _count(
    None,
    'Rounds between checkpoints. Default: a checkpoint at each evaluation.',
    affects_result=False,
  )
  checkpoints_kept: int = _count(
    3,
    'Number of checkpoints to keep. Older ones are removed.',
    affects_result=False,
  )
