"""Warm start: when to stop pre-training on public data.

In "Public Data-Assisted Mirror Descent for Private Model Training" (Amid et
al., ICML 2022, arXiv:2112.00193) warm-start DP-FedAvg and PDA-DPMD both start
from a model that was pre-trained on the public data to convergence. Here
convergence is measured on a held-out part of the public data. All engines share
this rule; each computes epochs in its own way.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, Optional, Protocol

import numpy as np
from pda_fed.common import optimizers
from pda_fed.common import settings
from pda_fed.common import validate
from pda_fed.privacy import seeds

DECAYS = ('none', 'cosine')
AUGMENTATIONS = ('none', 'standard', 'strong')

setting = settings.setting


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


_count = functools.partial(
  setting, check=functools.partial(validate.integers, 1)
)
_positive = functools.partial(setting, check=validate.positive)
_below_one = functools.partial(setting, check=validate.below_one)
_EXAMPLES: Any = {'only': 'examples'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingConfig(optimizers.OptimizerSettings):
  """Settings of a warm start: pre-training on public data.

  Example:

    >>> PretrainingConfig(max_epochs=20).patience
    3
  """

  PREFIX = 'pretraining.'

  optimizer: str = setting(
    'adam', 'Optimizer of the warm start.', choices=optimizers.NAMES
  )
  learning_rate: float = _positive(
    1e-2,
    'Learning rate of the warm start, for the mean loss of targets.',
  )
  batch_size: int = _count(16, 'Batch size of the warm start, in examples.')
  held_out: float = setting(
    0.1,
    'Fraction of public examples held out to measure convergence.',
    check=functools.partial(validate.between, 0, 1),
  )
  patience: int = _count(
    3,
    'Stop the warm start after this many epochs without a lower loss on'
    ' held-out public data.',
  )
  max_epochs: int = _count(100, 'Maximum number of epochs of the warm start.')
  seed: Optional[int] = setting(
    None,
    'Seed of the warm start: initial weights, held-out examples, order.'
    " Default: the run's seed, or 0: public data need no secret. Runs with"
    ' different seeds that set the same value here share one warm start.',
    check=functools.partial(validate.integers, 0),
  )
  clip_norm: Optional[float] = _positive(
    None,
    'Bound on the norm of the gradients of the warm start.',
    **_EXAMPLES,
  )
  dropout: float = _below_one(
    0.0,
    'Dropout rate of the warm start.',
    **_EXAMPLES,
  )
  augmentation: str = setting(
    'none',
    'Augmentation of images in the warm start. standard: flips and crops.'
    ' strong: also rotation, shear, colour changes and a cut-out square.',
    choices=AUGMENTATIONS,
    **_EXAMPLES,
  )
  mixup: float = setting(
    0.0,
    'Parameter of the Beta distribution of mixup (blending pairs of images) in'
    ' the warm start. 0 means no mixup.',
    check=validate.non_negative,
    **_EXAMPLES,
  )
  averaging: float = _below_one(
    0.0,
    "Decay of a moving average of the warm start's weights. 0 means no"
    ' averaging.',
    **_EXAMPLES,
  )
  decay: str = setting(
    'none',
    "Decay of the warm start's learning rate, to 0 at the last epoch.",
    choices=DECAYS,
    **_EXAMPLES,
  )
  candidates: int = _count(
    1,
    'Number of models that the warm start trains. Held-out public data choose'
    ' one of them.',
    **_EXAMPLES,
  )


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
