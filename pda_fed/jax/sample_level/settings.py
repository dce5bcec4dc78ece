"""Settings of sample-level training that a compiled step depends on."""

import dataclasses
from typing import Optional

import optax
from pda_fed import methods
from pda_fed import privacy
from pda_fed.common import validate
from pda_fed.jax import canaries as canaries_lib

PUBLIC_UPDATES = ('gradient', 'clipped')
AUGMENTATIONS = ('none', 'public', 'all')
_DTYPES = ('float32', 'bfloat16')


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleLevelSettings:
  """Settings that a compiled step depends on.

  Example:

    >>> plan = privacy.PrivacyPlan(
    ...   population=50_000, expected_cohort=250, rounds=5, delta=1e-5,
    ...   noise_multiplier=1.0, clip_norm=1.0, unit='example',
    ... )
    >>> SampleLevelSettings(plan=plan).public_update
    'gradient'

  Attributes:
    plan: The privacy plan: 'gaussian', with a fixed clipping norm. Its noise
      multiplier is an input of a step, so that runs with different noise share
      a program.
    method: The public-data method; by default, no public data is used.
    optimizer: The optimizer. Its steps are multiplied by the learning rate of
      `StepInputs`, so that runs with different rates share a program.
    mean_clip_norm: A bound on the norm of the noised mean, or None. The paper
      uses S for images.
    public_update: 'gradient' is the gradient of a public batch's mean loss.
      'clipped' is the mean of its examples' gradients, each clipped to S like
      private ones.
    public_clip_norm: A bound on the norm of the public gradient, or None.
    augmentation: Which images are augmented: 'none', 'public' or 'all'.
    augmentation_multiplicity: Number of copies of each private image. Its
      gradient is averaged over them before it is clipped (De et al. 2022,
      arXiv:2204.13650). Copies differ only if augmentation is 'all'.
    averaging: Decay of an exponential average of the weights, in [0, 1). The
      average is what is evaluated. 0 for no averaging.
    compute_dtype: Dtype of the forward and backward pass, 'float32' or
      'bfloat16'. Weights, norms, sums and noise are always in float32.
    microbatch_size: Examples whose gradients are computed at a time; None takes
      all.
    canaries: Canary settings of an audit; None without an audit.
  """

  plan: privacy.PrivacyPlan
  method: methods.Method = methods.ColdStart()
  optimizer: optax.GradientTransformation = optax.sgd(1.0)
  mean_clip_norm: Optional[float] = None
  public_update: str = 'gradient'
  public_clip_norm: Optional[float] = None
  augmentation: str = 'none'
  augmentation_multiplicity: int = 1
  averaging: float = 0.0
  compute_dtype: str = 'float32'
  microbatch_size: Optional[int] = None
  canaries: Optional[canaries_lib.CanarySettings] = None

  def __post_init__(self):
    validate.one_of(('gaussian',), mechanism=self.plan.mechanism)
    validate.one_of((None,), adaptive_clipping=self.plan.adaptive_clipping)
    validate.instances(optax.GradientTransformation, optimizer=self.optimizer)
    validate.below_one(averaging=self.averaging)
    validate.positive_or(
      (None,),
      mean_clip_norm=self.mean_clip_norm,
      public_clip_norm=self.public_clip_norm,
    )
    validate.one_of(PUBLIC_UPDATES, public_update=self.public_update)
    validate.one_of(AUGMENTATIONS, augmentation=self.augmentation)
    validate.integers(
      1, augmentation_multiplicity=self.augmentation_multiplicity
    )
    validate.one_of(_DTYPES, compute_dtype=self.compute_dtype)
    if self.microbatch_size is not None:
      validate.integers(1, microbatch_size=self.microbatch_size)
