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
  'delta': 1e-5,
  'clip_norm': 1.0,
  'server.momentum': 0.0,
  'server.learning_rate': 0.5,
  'server.mean_clip_norm': 'private',
  'public.update': 'gradient',
  'public.batch_size': 250,
  'pretraining.learning_rate': 1e-3,
  'pretraining.batch_size': 64,
  'pretraining.patience': 10,
  'pretraining.max_epochs': 200,
}
_OWN: Mapping[str, Mapping[str, Any]] = {
  # Not in the paper: a small, real data set that needs no download.
  'digits': {
    'expected_cohort': 64,
    'epochs': 20,
    'delta': 1e-4,
    'noise_multiplier': 10.0,
    'public.batch_size': 32,
    'public_examples': 144,
    'validation_examples': 144,
    'pretraining.learning_rate': 1e-2,
    'pretraining.batch_size': 16,
    'pretraining.patience': 5,
  },
  'cifar10': {
    'expected_cohort': 500,
    'epochs': 100,
    'noise_multiplier': 1.51,
    'server.learning_rate': 0.2,
    'public_examples': 2_000,
  },
  'emnist': {
    'expected_cohort': 500,
    'epochs': 50,
    'delta': 1e-6,
    'noise_multiplier': 0.41,
    'public_examples': 27_918,
  },
  'wikitext2': {
    'expected_cohort': 250,
    'epochs': 20,
    'noise_multiplier': 0.5,
    'server.learning_rate': 2.0,
    'server.mean_clip_norm': None,
    'public_examples': 1_951,
    'vocabulary_size': 8000,
  },
  # Images and tables of users: starting points. Search for better values.
  # Examples are public only if the user says so.
  'images': {
    'expected_cohort': 250,
    'epochs': 40,
    'noise_multiplier': 1.5,
    'public.batch_size': 125,
  },
  'table': {
    'expected_cohort': 64,
    'epochs': 20,
    'noise_multiplier': 1.5,
    'public.batch_size': 32,
  },
}
DEFAULTS = {name: {**_ALL, **values} for name, values in _OWN.items()}
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
