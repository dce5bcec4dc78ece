"""Default settings of the data sets with sample-level privacy.

Those of CIFAR-10, EMNIST and WikiText-2 are from "Public Data-Assisted Mirror
Descent for Private Model Training" (Amid et al., ICML 2022, arXiv:2112.00193),
section 5.4 and the appendix, with the smaller of its two noises. The paper does
not give its learning rates.
"""

from collections.abc import Mapping
from typing import Any

# What all of them share.
_ALL: Mapping[str, Any] = {
  'engine': 'jax',
  'rounds': None,
  'clip_norm': 1.0,
  'server.momentum': 0.0,
  'public.update': 'gradient',
  'pretraining.learning_rate': 1e-3,
  'pretraining.batch_size': 64,
  'pretraining.patience': 10,
  'pretraining.max_epochs': 200,
}


def _task(
  expected_cohort: float,
  epochs: float,
  delta: float,
  noise_multiplier: float,
  learning_rate: float,
  public_batch_size: int,
  **values: Any,
) -> dict[str, Any]:
  return {
    **_ALL,
    'expected_cohort': expected_cohort,
    'epochs': epochs,
    'delta': delta,
    'noise_multiplier': noise_multiplier,
    'server.learning_rate': learning_rate,
    'server.mean_clip_norm': 'private',
    'public.batch_size': public_batch_size,
    **values,
  }


DEFAULTS: Mapping[str, Mapping[str, Any]] = {
  # Not in the paper: a small, real data set that needs no download.
  'digits': _task(
    64,
    20,
    1e-4,
    10.0,
    0.5,
    32,
    public_examples=144,
    validation_examples=144,
    **{
      'pretraining.learning_rate': 1e-2,
      'pretraining.batch_size': 16,
      'pretraining.patience': 5,
    },
  ),
  'cifar10': _task(500, 100, 1e-5, 1.51, 0.2, 250, public_examples=2_000),
  'emnist': _task(500, 50, 1e-6, 0.41, 0.5, 250, public_examples=27_918),
  'wikitext2': _task(
    250,
    20,
    1e-5,
    0.5,
    2.0,
    250,
    public_examples=1_951,
    vocabulary_size=8000,
    **{'server.mean_clip_norm': None},
  ),
  # Images and tables of users: starting points. Search for better values.
  # Examples are public only if the user says so.
  'images': _task(250, 40, 1e-5, 1.5, 0.5, 125),
  'table': _task(64, 20, 1e-5, 1.5, 0.5, 32),
}
DATASETS = tuple(DEFAULTS)
# K of alpha_t = cos(pi t / 2K), in epochs, where the user sets no alpha.
ALPHA_K: Mapping[str, float] = {
  'digits': 20,
  'cifar10': 2000,
  'emnist': 500,
  'wikitext2': 100,
  'images': 100,
  'table': 20,
}
