"""--model, and flags of model sizes, for federated runs."""

import dataclasses

from absl import flags
import data_prep
from pda_fed import models
from pda_fed.common import trust
from scripts.lib import trust_flags

_MODEL = flags.DEFINE_string(
  'model',
  None,
  'The model: lstm for text; linear or cnn for arrays; or a module with a'
  ' function create_spec(store), such as my_package.my_model. Default: lstm'
  ' for text, cnn for images, linear for tables.',
)
_EMBEDDING_SIZE = flags.DEFINE_integer(
  'embedding_size', 96, 'Embedding size of the LSTM model.'
)
_LSTM_SIZE = flags.DEFINE_integer(
  'lstm_size', 670, 'Number of units of the LSTM.'
)
_VOCABULARY_SIZE = flags.DEFINE_integer(
  'vocabulary_size',
  None,
  "Number of words of the LSTM model. Default: the data's.",
)


def _lstm(store: data_prep.UserStore) -> models.ModelSpec:
  return dataclasses.replace(
    store.spec,
    num_words=_VOCABULARY_SIZE.value or store.spec.num_words,
    embedding_size=_EMBEDDING_SIZE.value,
    lstm_size=_LSTM_SIZE.value,
  )


def _linear(store: data_prep.UserStore) -> models.ModelSpec:
  return models.linear(store.input_shape, store.num_classes)


def _cnn(store: data_prep.UserStore) -> models.ModelSpec:
  return models.for_images(store.input_shape, store.num_classes)


_OF_TEXT = {'lstm': _lstm}
_OF_ARRAYS = {'linear': _linear, 'cnn': _cnn}


def spec_for(store: data_prep.UserStore) -> models.ModelSpec:
  """Returns the model that the flags ask for.

  Args:
    store: The data to train on.

  Raises:
    UntrustedCodeError: If only a file names the module, without --trust_code.
    ValueError: If the model is unknown or does not fit the data.
  """
  is_text = isinstance(store, data_prep.TokenStore)
  name = _MODEL.value
  if name is None:
    name = 'lstm' if is_text else 'cnn'
    if not is_text and len(store.input_shape) == 1:
      name = 'linear'
  known = _OF_TEXT if is_text else _OF_ARRAYS
  if name in known:
    return known[name](store)
  kind = 'text' if is_text else 'arrays'
  try:
    if name in trust_flags.MODELS:
      raise ValueError(f'it is not for {kind}')
    trust_flags.check(name)
    create_spec = trust.import_named(name, '--model', True).create_spec
  except (AttributeError, ImportError, TypeError, ValueError) as e:
    raise ValueError(
      f'model must be {" or ".join(known)} for {kind}, or a module with a'
      f' function create_spec. Found {name!r}: {e}.'
    ) from e
  spec = create_spec(store)
  if not isinstance(spec, models.ModelSpec):
    raise ValueError(
      f'create_spec of {name} must return a models.ModelSpec. Found {spec!r}.'
    )
  return spec
