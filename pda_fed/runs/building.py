"""Builds the method and the model that a spec names.

A name is one of ours, or a module of the user's, which is imported only if the
user trusts it.
"""

from collections.abc import Mapping
import dataclasses
import difflib
from typing import Any, get_type_hints, Optional

import data_prep
from data_prep import sample_level
from pda_fed import methods
from pda_fed import models
from pda_fed import schedules
from pda_fed.common import settings
from pda_fed.common import trust
from pda_fed.models import convolutional

# Settings of a schedule, with what they mean for flags' help.
SCHEDULES = {
  'K': 'K of cos(pi t / 2K): the round, or epoch with --dataset, where {} is 0',
  'i': 'i of cos(pi t / (i T)), where T is the number of rounds or epochs',
  'constant': 'Constant value of {}; 1 uses the private mean alone',
}
MODELS = ('lstm', 'linear', 'cnn')


def method_settings(method: type[methods.Method]) -> dict[str, str]:
  """Returns the settings of a method by name, with the field each one sets.

  Args:
    method: The method.
  """
  found, types = {}, get_type_hints(method)
  for field in dataclasses.fields(method):
    if types[field.name] is schedules.Schedule:
      found |= {f'{field.name}_{kind}': field.name for kind in SCHEDULES}
    else:
      found[field.name] = field.name
  return found


def _refuse_unknown(
  given: Mapping[str, Any], known: Mapping[str, Any], group: str, owner: str
) -> None:
  for name in given:
    if name not in known:
      close = difflib.get_close_matches(name, list(known), 1)
      hint = f' Did you mean {group}.{close[0]}?' if close else ''
      raise ValueError(
        f'{group}.{name} is not a setting of {owner}, which has'
        f' {", ".join(known) or "none"}.{hint}'
      )


def build_method(
  choice: settings.Choice,
  T: float,
  default_alpha: schedules.Schedule,
  *,
  trust_code: bool = False,
) -> methods.Method:
  """Returns the method of a choice.

  Args:
    choice: The method's name or module, and its settings.
    T: Number of rounds, or of epochs, for cos(pi t / (i T)).
    default_alpha: The schedule of settings that are one and are not given.
    trust_code: Whether a module may be imported.

  Raises:
    TypeError: If a setting has the wrong type.
    UntrustedCodeError: If a module is not trusted.
    ValueError: If there is no such method or setting.
  """
  method = methods.get(choice.name, trust_code=trust_code)
  known = method_settings(method)
  _refuse_unknown(choice.settings, known, 'method', method.title)
  types = get_type_hints(method)
  values: dict[str, Any] = {
    f.name: default_alpha
    for f in dataclasses.fields(method)
    if types[f.name] is schedules.Schedule
  }
  schedules_given: dict[str, str] = {}
  for name, value in choice.settings.items():
    field = known[name]
    if types[field] is not schedules.Schedule:
      values[field] = value
      continue
    if field in schedules_given:
      raise ValueError(
        f'method.{name} must not be given with'
        f' method.{schedules_given[field]}: both set {field}.'
      )
    schedules_given[field] = name
    values[field] = _schedule(name.rpartition('_')[2], value, T)
  return method(**values)


def _schedule(kind: str, value: float, T: float) -> schedules.Schedule:
  if kind == 'constant':
    return schedules.constant(value)
  return schedules.cosine(value if kind == 'K' else value * T / 2)


def _changed(
  spec: models.ModelSpec, given: Mapping[str, Any], of_data: tuple[str, ...]
) -> models.ModelSpec:
  """Returns a model with other sizes than those that the data decide."""
  known = {f.name: f for f in dataclasses.fields(spec) if f.name not in of_data}
  _refuse_unknown(given, known, 'model', type(spec).__name__)
  lists = {n: tuple(v) for n, v in given.items() if isinstance(v, list)}
  return dataclasses.replace(spec, **{**given, **lists})


def _of_module(
  choice: settings.Choice, data: Any, known: str, trust_code: bool
):
  """Returns the model of a module's `create_spec`."""
  try:
    module = trust.import_named(choice.name, '--model', trust_code)
    spec = module.create_spec(data)
  except (AttributeError, ImportError, TypeError, ValueError) as e:
    raise ValueError(
      f'model must be {known}, or a module with a function create_spec. Found'
      f' {choice.name!r}: {e}.'
    ) from e
  if not isinstance(spec, models.ModelSpec):
    raise ValueError(
      f'create_spec of {choice.name} must return a models.ModelSpec. Found'
      f' {spec!r}.'
    )
  return _changed(spec, choice.settings, ())


def build_model_for_users(
  choice: settings.Choice,
  store: data_prep.UserStore,
  *,
  trust_code: bool = False,
) -> models.ModelSpec:
  """Returns the model of a choice, for the users of a store.

  Args:
    choice: The model's name or module, and its sizes.
    store: The users.
    trust_code: Whether a module may be imported.

  Raises:
    UntrustedCodeError: If a module is not trusted.
    ValueError: If there is no such model or size, or it does not fit the data.
  """
  is_text = isinstance(store, data_prep.TokenStore)
  name = choice.name
  if name is None:
    name = 'lstm' if is_text else 'cnn'
    if not is_text and len(store.input_shape) == 1:
      name = 'linear'
  if is_text and name == 'lstm':
    return _changed(store.spec, choice.settings, ('num_words',))
  of_data = ('image_shape', 'num_classes')
  if not is_text and name == 'linear':
    spec = models.linear(store.input_shape, store.num_classes)
    return _changed(spec, choice.settings, of_data)
  if not is_text and name == 'cnn':
    spec = models.for_images(store.input_shape, store.num_classes)
    return _changed(spec, choice.settings, of_data)
  known = 'lstm for text' if is_text else 'linear or cnn for arrays'
  if name in MODELS:
    raise ValueError(f'model must be {known}. Found {name!r}.')
  return _of_module(choice, store, known, trust_code)


_OF_DATASETS = {
  'digits': convolutional.DIGITS,
  'cifar10': convolutional.CIFAR10,
  'emnist': convolutional.EMNIST,
}


def build_model_for_examples(
  choice: settings.Choice,
  data: sample_level.SampleLevelData,
  *,
  trust_code: bool = False,
) -> models.ModelSpec:
  """Returns the model of a choice, for a data set of examples.

  Args:
    choice: The model's name or module, and its sizes.
    data: The data set.
    trust_code: Whether a module may be imported.

  Raises:
    UntrustedCodeError: If a module is not trusted.
    ValueError: If there is no such model or size, or it does not fit the data.
  """
  shape = data.train.inputs.shape[1:]
  name, of_data = choice.name, ('image_shape', 'num_classes')
  if data.is_text:
    known = 'lstm for text'
    if name in (None, 'lstm'):
      spec = models.LanguageSpec(vocabulary_size=data.num_classes)
      return _changed(spec, choice.settings, ('vocabulary_size',))
  elif len(shape) == 3:
    known = 'cnn or wrn-DEPTH-WIDTH for images'
    if name in (None, 'cnn'):
      spec = _OF_DATASETS.get(data.name) or models.for_images(
        shape, data.num_classes
      )
      return _changed(spec, choice.settings, of_data)
    if name.startswith('wrn-'):
      spec = models.wide_residual_net(name, shape, data.num_classes)
      return _changed(spec, choice.settings, of_data)
  else:
    known = 'linear for tables'
    if name in (None, 'linear'):
      spec = models.linear(shape, data.num_classes)
      return _changed(spec, choice.settings, of_data)
  if name in MODELS or name.startswith('wrn-'):
    raise ValueError(f'model must be {known}. Found {name!r}.')
  return _of_module(choice, data, known, trust_code)


def default_alpha(
  dataset: Optional[str], T: float, of_datasets: Mapping[str, float]
) -> schedules.Schedule:
  """Returns the paper's schedule of alpha.

  Args:
    dataset: The data set; None for users.
    T: Number of rounds, or of epochs.
    of_datasets: K by data set.
  """
  if dataset is None:
    return schedules.for_stackoverflow(5, T)
  return schedules.cosine(of_datasets[dataset])
