"""Warm start: when to stop pre-training on public data.

In "Public Data-Assisted Mirror Descent for Private Model Training" (Amid et
al., ICML 2022, arXiv:2112.00193) warm-start DP-FedAvg and PDA-DPMD both start
from a model that was pre-trained on the public data to convergence. Here
convergence is measured on a held-out part of the public data. All engines share
this rule; each computes epochs in its own way.
"""

from collections.abc import Callable
import dataclasses
from typing import Any, Optional, Protocol

import numpy as np
from pda_fed.common import validate
from pda_fed.common.settings import setting
from pda_fed.privacy import seeds

OPTIMIZERS = ('adam', 'sgd')
DECAYS = ('none', 'cosine')
AUGMENTATIONS = ('none', 'standard', 'strong')


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A model pre-trained on public data.

  Example: see `pretrain`.

  Attributes:
    weights: The best weights, in the trainer's format.
    epochs: Number of epochs after which they were reached.
    held_out_losses: The loss on held-out examples before the first epoch and
      after each.
  """

  weights: Any
  epochs: int
  held_out_losses: tuple[float, ...]

  @property
  def figures(self) -> dict[str, float]:
    """Values that are saved in results."""
    return {
      'epochs': self.epochs,
      'held_out_loss': self.held_out_losses[self.epochs],
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingConfig:
  """Settings of a warm start: pre-training on public data.

  Users' engines take the first six; the others are for sample-level runs.

  Example:

    >>> PretrainingConfig(max_epochs=20).patience
    3
  """

  learning_rate: float = setting(
    1e-2, 'Learning rate of the warm start, for the mean loss of targets.'
  )
  batch_size: int = setting(16, 'Batch size of the warm start, in examples.')
  held_out: float = setting(
    0.1, 'Fraction of public examples held out to measure convergence.'
  )
  patience: int = setting(
    3,
    'Stop the warm start after this many epochs without a lower loss on'
    ' held-out public data.',
  )
  max_epochs: int = setting(100, 'Maximum number of epochs of the warm start.')
  seed: Optional[int] = setting(
    None,
    'Seed of the warm start: initial weights, held-out examples, order.'
    " Default: the run's seed, or 0: public data need no secret. Runs with"
    ' different seeds that set the same value here share one warm start.',
  )
  optimizer: str = setting(
    'adam', 'Optimizer of the warm start.', choices=OPTIMIZERS
  )
  momentum: float = setting(0.0, 'Momentum of the warm start, with sgd.')
  clip_norm: Optional[float] = setting(
    None, 'Bound on the norm of the gradients of the warm start.'
  )
  weight_decay: float = setting(
    0.0,
    'Weight decay of the warm start. Each step shrinks the weights by this'
    ' times the learning rate.',
  )
  dropout: float = setting(0.0, 'Dropout rate of the warm start.')
  augmentation: str = setting(
    'none',
    'Augmentation of images in the warm start. standard: flips and crops.'
    ' strong: also rotation, shear, colour changes and a cut-out square.',
    choices=AUGMENTATIONS,
  )
  mixup: float = setting(
    0.0,
    'Parameter of the Beta distribution of mixup (blending pairs of images) in'
    ' the warm start. 0 means no mixup.',
  )
  averaging: float = setting(
    0.0,
    "Decay of a moving average of the warm start's weights. 0 means no"
    ' averaging.',
  )
  decay: str = setting(
    'none',
    "Decay of the warm start's learning rate, to 0 at the last epoch.",
    choices=DECAYS,
  )
  candidates: int = setting(
    1,
    'Number of models that the warm start trains. Held-out public data choose'
    ' one of them.',
  )

  def __post_init__(self):
    validate.positive(learning_rate=self.learning_rate)
    validate.integers(
      1,
      batch_size=self.batch_size,
      patience=self.patience,
      max_epochs=self.max_epochs,
      candidates=self.candidates,
    )
    validate.between(0, 1, held_out=self.held_out)
    if self.seed is not None:
      validate.integers(0, seed=self.seed)
    validate.one_of(OPTIMIZERS, optimizer=self.optimizer)
    validate.one_of(DECAYS, decay=self.decay)
    validate.one_of(AUGMENTATIONS, augmentation=self.augmentation)
    validate.non_negative(
      momentum=self.momentum,
      weight_decay=self.weight_decay,
      dropout=self.dropout,
      averaging=self.averaging,
      mixup=self.mixup,
    )
    for name in ('momentum', 'dropout', 'averaging'):
      if getattr(self, name) >= 1:
        raise ValueError(
          f'{name} must be in [0, 1). Found {getattr(self, name)}.'
        )
    if self.clip_norm is not None:
      validate.positive(clip_norm=self.clip_norm)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingOptimizer:
  """The optimizer of pre-training on public examples.

  Example:

    >>> PretrainingOptimizer(optimizer='sgd', learning_rate=0.1).decay
    'none'

  Attributes:
    optimizer: 'adam' or 'sgd'.
    learning_rate: Learning rate, for the mean loss of targets.
    momentum: Momentum of SGD.
    clip_norm: A bound on the norm of a gradient, or None.
    weight_decay: Each step subtracts `learning_rate * weight_decay * weight`.
    dropout: Fraction of activations that are dropped.
    augmentation: How images are augmented: 'none'; 'standard' flips and crops;
      'strong' also changes colours and geometry, and cuts out a square.
    mixup: Parameter of the Beta distribution for blending pairs of images and
      their losses; 0 for no mixup.
    averaging: Decay of an exponential average of the weights, which is then the
      result; 0 for no averaging.
    decay: Decay of the learning rate: 'none', or 'cosine' to 0 at epoch
      `max_epochs`.
  """

  optimizer: str = 'adam'
  learning_rate: float = 1e-3
  momentum: float = 0.0
  clip_norm: Optional[float] = None
  weight_decay: float = 0.0
  dropout: float = 0.0
  augmentation: str = 'none'
  mixup: float = 0.0
  averaging: float = 0.0
  decay: str = 'none'

  def __post_init__(self):
    validate.one_of(OPTIMIZERS, pretraining_optimizer=self.optimizer)
    validate.one_of(DECAYS, pretraining_decay=self.decay)
    validate.positive(pretraining_learning_rate=self.learning_rate)
    validate.non_negative(
      pretraining_momentum=self.momentum,
      pretraining_weight_decay=self.weight_decay,
      pretraining_dropout=self.dropout,
      pretraining_averaging=self.averaging,
      pretraining_mixup=self.mixup,
    )
    validate.one_of(AUGMENTATIONS, pretraining_augmentation=self.augmentation)
    for name in ('momentum', 'dropout', 'averaging'):
      if getattr(self, name) >= 1:
        raise ValueError(
          f'pretraining_{name} must be in [0, 1). Found {getattr(self, name)}.'
        )
    if self.clip_norm is not None:
      validate.positive(pretraining_clip_norm=self.clip_norm)


class Trainer(Protocol):
  """A model in training; rows are indices of examples."""

  def weights(self) -> Any:
    """Returns a copy of the weights."""

  def train(self, rows: np.ndarray) -> None:
    """Trains on the rows in order, in batches."""

  def loss(self, rows: np.ndarray) -> float:
    """Returns the mean loss of the rows."""


def train_to_convergence(
  trainer: Trainer,
  num_examples: int,
  config: PretrainingConfig,
  on_epoch: Optional[Callable[[int, float], None]] = None,
) -> Pretrained:
  """Trains until the held-out loss stops improving.

  Args:
    trainer: Holds the model, the examples and the optimizer.
    num_examples: Number of examples.
    config: See `PretrainingConfig`.
    on_epoch: Called with the number of epochs and the held-out loss.

  Returns:
    The weights with the lowest held-out loss.

  Raises:
    ValueError: If there are too few examples to hold some out, or the loss is
      not finite.
  """
  seed = config.seed or 0
  order = seeds.generator('shuffling', seed, 0).permutation(num_examples)
  num_held_out = round(config.held_out * num_examples)
  if not 0 < num_held_out < num_examples:
    raise ValueError(
      f'held_out must split {num_examples} examples into two non-empty parts.'
      f' Found {config.held_out}: use more public examples.'
    )
  held_out, training = order[:num_held_out], order[num_held_out:]
  best, best_epoch = trainer.weights(), 0
  losses = [float(trainer.loss(held_out))]
  for epoch in range(1, config.max_epochs + 1):
    rng = seeds.generator('shuffling', seed, epoch)
    trainer.train(rng.permutation(training))
    losses.append(float(trainer.loss(held_out)))
    if not np.isfinite(losses[-1]):
      raise ValueError(
        f'optimizer must keep the loss finite. Found {losses[-1]} after epoch'
        f' {epoch}: lower the learning rate.'
      )
    if losses[-1] < losses[best_epoch]:
      best, best_epoch = trainer.weights(), epoch
    if on_epoch is not None:
      on_epoch(epoch, losses[-1])
    if epoch - best_epoch >= config.patience:
      break
  return Pretrained(best, best_epoch, tuple(losses))
