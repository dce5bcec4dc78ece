"""Flags of the warm start of sample-level training."""

import dataclasses

from absl import flags
from pda_fed.models import convergence
from pda_fed.runs import sample_level_config

_OPTIMIZER = flags.DEFINE_enum(
  'pretraining_optimizer',
  'adam',
  convergence.OPTIMIZERS,
  'Optimizer of the warm start.',
)
_MOMENTUM = flags.DEFINE_float(
  'pretraining_momentum', 0.0, 'Momentum of the warm start, with SGD.'
)
_CLIP_NORM = flags.DEFINE_float(
  'pretraining_clip_norm',
  None,
  'Bound on the norm of the gradients of the warm start.',
)
_WEIGHT_DECAY = flags.DEFINE_float(
  'pretraining_weight_decay',
  0.0,
  'Weight decay of the warm start. Each step shrinks the weights by this'
  ' times the learning rate.',
)
_DROPOUT = flags.DEFINE_float(
  'pretraining_dropout', 0.0, 'Dropout rate of the warm start.'
)
_AUGMENTATION = flags.DEFINE_enum(
  'pretraining_augmentation',
  'none',
  convergence.AUGMENTATIONS,
  'Augmentation of images in the warm start. standard: flips and crops.'
  ' strong: also rotation, shear, colour changes and a cut-out square.',
)
_MIXUP = flags.DEFINE_float(
  'pretraining_mixup',
  0.0,
  'Parameter of the Beta distribution of mixup (blending pairs of images) in'
  ' the warm start. 0 means no mixup.',
)
_AVERAGING = flags.DEFINE_float(
  'pretraining_averaging',
  0.0,
  "Decay of a moving average of the warm start's weights. 0 means no"
  ' averaging.',
)
_DECAY = flags.DEFINE_enum(
  'pretraining_decay',
  'none',
  convergence.DECAYS,
  "Decay of the warm start's learning rate.",
)
_CANDIDATES = flags.DEFINE_integer(
  'pretraining_candidates',
  1,
  'Number of models that the warm start trains. Held-out public data choose'
  ' one of them.',
)


def changed(
  default: sample_level_config.SampleLevelPretraining,
) -> sample_level_config.SampleLevelPretraining:
  """Returns a task's settings of the warm start, changed by the flags.

  Args:
    default: The task's settings.
  """
  return dataclasses.replace(
    default,
    optimizer=_OPTIMIZER.value,
    momentum=_MOMENTUM.value,
    clip_norm=_CLIP_NORM.value,
    weight_decay=_WEIGHT_DECAY.value,
    dropout=_DROPOUT.value,
    augmentation=_AUGMENTATION.value,
    mixup=_MIXUP.value,
    averaging=_AVERAGING.value,
    decay=_DECAY.value,
    candidates=_CANDIDATES.value,
  )
