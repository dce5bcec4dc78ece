"""Model specifications; parameter counts match the paper.

A specification imports TensorFlow or JAX only when it builds a model:
`spec.jax_model()`, `spec.keras_model(seed)`.
"""

import importlib

from pda_fed.models.convolutional import ConvolutionalSpec
from pda_fed.models.convolutional import for_images
from pda_fed.models.convolutional import linear
from pda_fed.models.language import LanguageSpec
from pda_fed.models.model import Model
from pda_fed.models.recurrent import NUM_SPECIAL_TOKENS
from pda_fed.models.recurrent import RecurrentSpec
from pda_fed.models.residual import ResidualSpec
from pda_fed.models.residual import wide_residual_net
from pda_fed.models.spec import ModelSpec

__all__ = [
  'NUM_SPECIAL_TOKENS',
  'ConvolutionalSpec',
  'LanguageSpec',
  'Model',
  'ModelSpec',
  'RecurrentSpec',
  'ResidualSpec',
  'for_images',
  'from_flax',
  'linear',
  'wide_residual_net',
]


def __getattr__(name: str):
  """Imports what needs JAX when it is first used (PEP 562)."""
  if name == 'from_flax':
    return importlib.import_module('pda_fed.models.flax_models').from_flax
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
