"""Settings of a sample-level run.

The defaults of the paper's data sets are from "Public Data-Assisted Mirror
Descent for Private Model Training" (Amid et al., ICML 2022, arXiv:2112.00193),
section 5.4 and the appendix. The paper does not give its learning rates.
"""

import dataclasses
import math
from typing import Any, Optional, Union

from data_prep import sample_level
import numpy as np
from pda_fed.common import validate
from pda_fed.models import convergence as pretraining_lib
from pda_fed.models import convolutional
from pda_fed.models import language
from pda_fed.models import residual
from pda_fed.runs import config as config_lib

Spec = Union[
  convolutional.ConvolutionalSpec, language.LanguageSpec, residual.ResidualSpec
]
LEARNING_RATE_DECAYS = ('none', 'linear', 'cosine')


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleLevelPretraining(
  config_lib.Pretraining, pretraining_lib.PretrainingOptimizer
):
  """Settings of a warm start on public examples.

  Example:

    >>> SampleLevelPretraining(optimizer='sgd', momentum=0.9).patience
    10

  Attributes:
    candidates: Number of models to train. The best on held-out public examples
      is kept.
  """

  learning_rate: float = 1e-3
  batch_size: int = 64
  patience: int = 10
  max_epochs: int = 200
  candidates: int = 1

  def __post_init__(self):
    config_lib.Pretraining.__post_init__(self)
    pretraining_lib.PretrainingOptimizer.__post_init__(self)
    validate.integers(1, pretraining_candidates=self.candidates)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskDefaults:
  """Default settings of a data set's runs.

  Example:

    >>> TASKS['cifar10'].batch_size, TASKS['cifar10'].noise_multiplier
    (500, 1.51)

  Attributes:
    spec: The model.
    batch_size: Expected number of private examples per step.
    epochs: Epochs over the private examples.
    delta: Delta of the (epsilon, delta) guarantee.
    noise_multiplier: Sigma; the smaller of the paper's two.
    learning_rate: Learning rate of SGD.
    K: K of alpha_t = cos(pi t / 2K), where t counts epochs.
    clips_mean: Whether the noised mean is clipped again, to the same norm.
    public_batch_size: Public examples per step.
    public_examples: Number of training examples that are public; the paper's
      are 4 % of its data. None if the user must give it.
    pretraining: Settings of the warm start.
  """

  spec: Spec
  batch_size: int
  epochs: int
  delta: float
  noise_multiplier: float
  learning_rate: float
  K: float
  clips_mean: bool
  public_batch_size: int
  public_examples: Optional[int]
  pretraining: SampleLevelPretraining = SampleLevelPretraining()


TASKS = {
  # Not in the paper: a small, real data set that needs no download.
  'digits': TaskDefaults(
    spec=convolutional.DIGITS,
    batch_size=64,
    epochs=20,
    delta=1e-4,
    noise_multiplier=10.0,
    learning_rate=0.5,
    K=20,
    clips_mean=True,
    public_batch_size=32,
    public_examples=144,
    pretraining=SampleLevelPretraining(
      learning_rate=1e-2, batch_size=16, patience=5
    ),
  ),
  'cifar10': TaskDefaults(
    spec=convolutional.CIFAR10,
    batch_size=500,
    epochs=100,
    delta=1e-5,
    noise_multiplier=1.51,
    learning_rate=0.2,
    K=2000,
    clips_mean=True,
    public_batch_size=250,
    public_examples=2_000,
  ),
  'emnist': TaskDefaults(
    spec=convolutional.EMNIST,
    batch_size=500,
    epochs=50,
    delta=1e-6,
    noise_multiplier=0.41,
    learning_rate=0.5,
    K=500,
    clips_mean=True,
    public_batch_size=250,
    public_examples=27_918,
  ),
  # Images and tables of users. The model takes their shape and classes. These
  # are starting points: search for better values.
  'images': TaskDefaults(
    spec=convolutional.CIFAR10,
    batch_size=250,
    epochs=40,
    delta=1e-5,
    noise_multiplier=1.5,
    learning_rate=0.5,
    K=100,
    clips_mean=True,
    public_batch_size=125,
    public_examples=None,  # Images are public only if the user says so.
  ),
  'table': TaskDefaults(
    spec=convolutional.linear((1,), 2),
    batch_size=64,
    epochs=20,
    delta=1e-5,
    noise_multiplier=1.5,
    learning_rate=0.5,
    K=20,
    clips_mean=True,
    public_batch_size=32,
    public_examples=None,
  ),
  'wikitext2': TaskDefaults(
    spec=language.LanguageSpec(),
    batch_size=250,
    epochs=20,
    delta=1e-5,
    noise_multiplier=0.5,
    learning_rate=2.0,
    K=100,
    clips_mean=False,
    public_batch_size=250,
    public_examples=1_951,
  ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleLevelConfig(config_lib.RunConfig):
  """Settings of a run on images, tables or text with sample-level privacy.

  A round is one step; its cohort is a Poisson-sampled batch.

  Example:

    >>> from pda_fed import methods, privacy, schedules
    >>> data = sample_level.load_data('digits')
    >>> split = sample_level.SplitConfig(public_examples=144)
    >>> parts = sample_level.split_examples(data, split)
    >>> config = SampleLevelConfig(
    ...   method=methods.PdaDpmd(alpha=schedules.cosine(20)),
    ...   dataset='digits', engine='jax',
    ...   data_hash=sample_level.data_hash(data, parts),
    ...   plan=privacy.PrivacyPlan(
    ...     population=len(parts.private), expected_cohort=64, rounds=400,
    ...     delta=1e-4, noise_multiplier=10.0, clip_norm=1.0, unit='example',
    ...   ),
    ...   split=split, spec=TASKS['digits'].spec, learning_rate=0.5,
    ...   public_batch_size=32,
    ... )
    >>> config.schedules(range(1))['alpha'].tolist()
    [1.0]

  `runs_lib.train(config, runs_lib.open_engine, 'out/digits')` runs it.

  Attributes:
    data_dir: The folder of the data set's files.
    public_dataset: A text from another source to use as public data, or None.
    split: Which examples are public, and which are for validation.
    spec: The model.
    learning_rate: Learning rate of SGD.
    learning_rate_decay: 'none', or 'linear' or 'cosine' to 0 at the last step.
    momentum: Momentum of SGD.
    mean_clip_norm: Bound on the norm of the noised mean, or None.
    public_batch_size: Public examples per step.
    public_update: 'gradient' or 'clipped'; see
      `pda_jax.SampleLevelSettings`.
    public_clip_norm: Bound on the norm of the public gradient, or None.
    augmentation: Which images are flipped and cropped: 'none', 'public' or
      'all'. 'none' for tables.
    augmentation_multiplicity: Number of augmented copies of each private image.
      Their gradients are averaged before clipping.
    averaging: Decay of an exponential moving average of the weights, which is
      evaluated instead of the weights; 0 for none. It is post-processing.
    compute_dtype: Dtype of the forward and backward pass: 'float32' or
      'bfloat16'.
    microbatch_size: Examples whose gradients are computed at a time.
    test_curve: Whether evaluations also report test metrics, as in the paper's
      figures. Do not use them to choose settings.
  """

  data_dir: Optional[str] = config_lib.no_setting(default=None)
  public_dataset: Optional[str] = config_lib.no_setting(default=None)
  split: sample_level.SplitConfig
  spec: Spec
  learning_rate: float
  learning_rate_decay: str = 'none'
  momentum: float = 0.0
  mean_clip_norm: Optional[float] = None
  public_batch_size: int = 250
  public_update: str = 'gradient'
  public_clip_norm: Optional[float] = None
  augmentation: str = 'none'
  augmentation_multiplicity: int = 1
  averaging: float = 0.0
  compute_dtype: str = 'float32'
  microbatch_size: Optional[int] = config_lib.no_setting(default=None)
  test_curve: bool = config_lib.no_setting(default=False)
  pretraining: SampleLevelPretraining = SampleLevelPretraining()

  def __post_init__(self):
    super().__post_init__()
    validate.one_of(sample_level.DATASETS, dataset=self.dataset)
    validate.instances(sample_level.SplitConfig, split=self.split)
    validate.instances(SampleLevelPretraining, pretraining=self.pretraining)
    validate.positive(learning_rate=self.learning_rate)
    validate.one_of(
      LEARNING_RATE_DECAYS, learning_rate_decay=self.learning_rate_decay
    )
    validate.integers(1, public_batch_size=self.public_batch_size)
    self._check_augmentation()
    # Steps have no state but the weights.
    validate.one_of(('gaussian',), mechanism=self.plan.mechanism)
    validate.one_of((None,), adaptive_clipping=self.plan.adaptive_clipping)

  def _check_augmentation(self) -> None:
    multiplicity = self.augmentation_multiplicity
    validate.integers(1, augmentation_multiplicity=multiplicity)
    if multiplicity > 1 and self.augmentation != 'all':
      raise ValueError(
        "augmentation_multiplicity must be 1 unless augmentation is 'all'."
        f' Found {multiplicity} and {self.augmentation!r}.'
      )
    if len(getattr(self.spec, 'image_shape', ())) == 3:
      return
    found = {
      'augmentation': self.augmentation,
      'pretraining_augmentation': self.pretraining.augmentation,
    }
    for name, value in found.items():
      if value != 'none':
        raise ValueError(
          f"{name} must be 'none' unless the data are images. Found {value!r}."
        )
    if self.pretraining.mixup:
      raise ValueError(
        'pretraining_mixup must be 0 unless the data are images. Found'
        f' {self.pretraining.mixup:g}.'
      )

  def epochs(self, rounds: range) -> np.ndarray:
    """Returns the schedules' t (the whole epochs done) in some rounds."""
    q = self.plan.sampling_rate
    # Absorbs rounding: 96 steps of 500 out of 48,000 are exactly one epoch.
    return np.array([math.floor(t * q + 1e-9) for t in rounds], np.int32)

  def schedules(self, rounds: range) -> dict[str, np.ndarray]:
    """Returns the values of the method's schedules in some rounds."""
    epochs = self.epochs(rounds).tolist()
    return {
      name: np.array([schedule(t) for t in epochs], np.float32)
      for name, schedule in self.method.schedules.items()
    }

  def learning_rates(self, rounds: range) -> np.ndarray:
    """Returns the learning rate of some rounds."""
    done = np.asarray(rounds, np.float64) / self.plan.rounds
    factors = {
      'none': np.ones_like(done),
      'linear': 1 - done,
      'cosine': 0.5 * (1 + np.cos(np.pi * done)),
    }
    rates = self.learning_rate * factors[self.learning_rate_decay]
    return rates.astype(np.float32)

  def pretraining_settings(self) -> dict[str, Any]:
    """See the base class."""
    return {
      # The data's hash covers the public examples. A search, which holds out
      # private examples, and the final run share a warm start.
      **super().pretraining_settings(),
      'spec': config_lib.as_settings(self.spec),
    }


def config_for(spec: Spec, data: sample_level.SampleLevelData) -> Spec:
  """Returns the model, after checking that it fits a data set.

  Args:
    spec: The model.
    data: The data set.

  Raises:
    ValueError: If the model's kind, input shape or number of classes does not
      fit the data.
  """
  shape = data.train.inputs.shape[1:]
  what = 'images' if len(shape) == 3 else 'rows'
  if isinstance(spec, language.LanguageSpec) != data.is_text:
    raise ValueError(
      f'The model must be for {"text" if data.is_text else what}, the kind of'
      f' {data.name}. Found {spec!r}.'
    )
  sizes: Any = spec
  classes = sizes.vocabulary_size if data.is_text else sizes.num_classes
  if classes != data.num_classes:
    raise ValueError(
      f'The model must have the {data.num_classes} classes or words of'
      f' {data.name}. Found {classes}.'
    )
  if not data.is_text and sizes.image_shape != shape:
    raise ValueError(
      f'The model must take {what} of shape {shape}, as in {data.name}. Found'
      f' {sizes.image_shape}.'
    )
  return spec
