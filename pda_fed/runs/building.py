"""Builds the method and the model that a spec names.

A name is one of ours, or a module of the user's, which is imported only if the
user trusts it.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, get_origin

from pda_fed import methods
from pda_fed import models
from pda_fed import schedules
from pda_fed.common import settings
from pda_fed.common import trust
from pda_fed.common import typed

# Settings of a schedule, with what they mean for flags' help.
SCHEDULES = {
  'K': 'K of cos(pi t / 2K): the round, or epoch with --dataset, where {} is 0',
  'i': 'i of cos(pi t / (i T)), where T is the number of rounds or epochs',
  'constant': 'Constant value of {}; 1 uses the private mean alone',
}
MODELS = ('lstm', 'linear', 'cnn')
# Sizes of models that the data decide.
_OF_DATA = ('num_words', 'vocabulary_size', 'image_shape', 'num_classes')
# In JSON: the class of a model.
_KIND = 'kind'


def method_settings(method: type[methods.Method]) -> dict[str, str]:
  """Returns the settings of a method by name, with the field each one sets.

  Args:
    method: The method.
  """
  found, types = {}, typed.hints(method)
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
      names = [f'{group}.{other}' for other in known]
      near = typed.nearest(f'{group}.{name}', names)
      raise ValueError(
        f'{group}.{name} is not a setting of {owner}, which has'
        f' {", ".join(known) or "none"}.{near}'
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
  method = methods.get(choice.name or '', trust_code=trust_code)
  known, types = method_settings(method), typed.hints(method)
  _refuse_unknown(choice.settings, known, 'method', method.title)
  scheduled = {f for f in known.values() if types[f] is schedules.Schedule}
  values: dict[str, Any] = dict.fromkeys(scheduled, default_alpha)
  given: dict[str, str] = {}
  for name, value in choice.settings.items():
    field = known[name]
    if field in given:
      raise ValueError(
        f'method.{name} must not be given with method.{given[field]}: both set'
        f' {field}.'
      )
    given[field] = name
    hint = float if field in scheduled else types[field]
    values[field] = typed.cast(value, hint, f'method.{name}')
    if field in scheduled:
      kind = name.removeprefix(f'{field}_')
      values[field] = _schedule(kind, values[field], T)
  return method(**values)


def _schedule(kind: str, value: float, T: float) -> schedules.Schedule:
  if kind == 'constant':
    return schedules.constant(value)
  return schedules.cosine(value if kind == 'K' else value * T / 2)


def method_as_json(method: methods.Method) -> dict[str, Any]:
  """Returns a method's name and settings; a schedule has its kind."""
  found = {'name': method.name, **typed.as_json(method)}
  for name, schedule in method.schedules.items():
    if dataclasses.is_dataclass(schedule):
      kind = type(schedule).__name__.strip('_').lower()
      found[name] = {**found[name], _KIND: kind}
    else:
      of: Any = schedule
      found[name] = {_KIND: f'{of.__module__}.{of.__qualname__}'}
  return found


def build_model(
  choice: settings.Choice,
  ours: Mapping[str, Callable[[str], models.ModelSpec]],
  data: Any,
  *,
  trust_code: bool = False,
) -> models.ModelSpec:
  """Returns the model of a choice, for some data.

  Args:
    choice: The model's name or module, and its sizes.
    ours: Our models for these data by name, the default first. A name that ends
      with '-' is the prefix of names.
    data: What a module's `create_spec` takes: the data.
    trust_code: Whether a module may be imported.

  Raises:
    TypeError: If a size has the wrong type.
    UntrustedCodeError: If a module is not trusted.
    ValueError: If there is no such model or size, or it does not fit the data.
  """
  name = choice.name or next(iter(ours))
  prefix = f'{name.partition("-")[0]}-'
  build = ours.get(name) or ours.get(prefix)
  model: Any
  known = ' or '.join(n + 'DEPTH-WIDTH' * n.endswith('-') for n in ours)
  if build is not None:
    model = build(name)
  elif name in MODELS or not trust.is_name(name):
    raise ValueError(f'model must be {known} for these data. Found {name!r}.')
  else:
    model = _of_module(name, data, known, trust_code)
  types: Any = typed.hints(type(model))
  names = [field.name for field in dataclasses.fields(model)]
  sizes = {n: types[n] for n in names if n not in _OF_DATA}
  _refuse_unknown(choice.settings, sizes, 'model', type(model).__name__)
  changes = {}
  for name, value in choice.settings.items():
    is_one_of_list = get_origin(sizes[name]) is tuple and type(value) is int
    value = [value] if is_one_of_list else value
    changes[name] = typed.cast(value, sizes[name], f'model.{name}')
  return dataclasses.replace(model, **changes)


def _of_module(
  name: str, data: Any, known: str, trust_code: bool
) -> models.ModelSpec:
  """Returns the model of a module's `create_spec`."""
  try:
    module = trust.import_named(name, 'model', trust_code)
    model = module.create_spec(data)
  except (AttributeError, ImportError, TypeError, ValueError) as e:
    raise ValueError(
      f'model must be {known}, or a module with a function create_spec. Found'
      f' {name!r}: {e}.'
    ) from e
  if not isinstance(model, models.ModelSpec):
    raise ValueError(
      f'create_spec of {name} must return a models.ModelSpec. Found {model!r}.'
    )
  return model


def model_as_json(model: models.ModelSpec) -> dict[str, Any]:
  """Returns a model's class and sizes, for `model_from_json`."""
  kind = type(model)
  is_ours = getattr(models, kind.__name__, None) is kind
  name = kind.__name__ if is_ours else f'{kind.__module__}.{kind.__qualname__}'
  return {_KIND: name, **typed.as_json(model)}


def model_from_json(
  content: Any, source: str, *, trust_code: bool = False
) -> models.ModelSpec:
  """Returns the model of `model_as_json`.

  Args:
    content: The class and sizes, as JSON values.
    source: The file that has them, for error messages.
    trust_code: Whether to import the module of a user's model.

  Raises:
    TypeError: If a size has the wrong type.
    UntrustedCodeError: If the class is in a module that is not trusted.
    ValueError: If there is no such class or size.
  """
  rest = dict(typed.cast(content, Mapping[str, Any], 'model'))
  name = typed.cast(rest.pop(_KIND, None), str, 'model.kind')
  module, _, last = name.rpartition('.')
  try:
    owner = trust.import_named(module, source, trust_code) if module else models
    kind: Any = getattr(owner, last)
  except (AttributeError, ImportError, ValueError) as e:
    raise ValueError(
      f'its class {name} cannot be imported: {e}. Make the module importable'
    ) from e
  if not (isinstance(kind, type) and issubclass(kind, models.ModelSpec)):
    raise ValueError(f'{name} is not a models.ModelSpec')
  return typed.from_json(kind, rest, 'model')
