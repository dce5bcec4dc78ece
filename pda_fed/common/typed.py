"""JSON values as typed values: dataclasses, lists, numbers and texts.

>>> @dataclasses.dataclass
... class Mark:
...   round: int
>>> from_json(Mark, {'round': 3})
Mark(round=3)
>>> from_json(Mark, {'round': '3'})
Traceback (most recent call last):
...
TypeError: round must be an integer. Found '3'.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import difflib
import functools
import math
import numbers
import types
from typing import Any, get_args, get_origin, get_type_hints, Literal, Union

_WORDS = {
  int: 'an integer',
  float: 'a finite number',
  str: 'a text',
  bool: 'true or false',
  type(None): 'none',
}


def hints(cls: Any) -> dict[str, Any]:
  """Returns the types of a class' attributes by name."""
  return _cached_hints(cls)


_cached_hints: Any = functools.cache(get_type_hints)


def kinds(hint: Any) -> tuple[Any, ...]:
  """Returns the types of a union; of another type, only that type."""
  is_union = get_origin(hint) in (Union, types.UnionType)
  return get_args(hint) if is_union else (hint,)


def is_object(kind: Any) -> bool:
  """Returns whether JSON objects with the fields of a type stand for it."""
  is_class = isinstance(kind, type) and dataclasses.is_dataclass(kind)
  return is_class and not hasattr(kind, 'from_json_value')


def describe_type(hint: Any) -> str:
  """Returns a type in words, for messages.

  Example:

    >>> describe_type(Union[float, None])
    'a finite number or none'

  Args:
    hint: A type of a field.
  """
  found = []
  for kind in kinds(hint):
    if get_origin(kind) is Literal:
      found.append(f'one of {", ".join(map(repr, get_args(kind)))}')
      continue
    is_list = get_origin(kind) in (list, tuple)
    is_choice = hasattr(kind, 'from_json_value')
    other = 'a name or an object' if is_choice else 'an object'
    found.append(_WORDS.get(kind, 'a list' if is_list else other))
  return ' or '.join(found)


def _is_number(value: Any, kind: type) -> bool:
  base = {int: numbers.Integral, float: numbers.Real}.get(kind)
  is_one = base is not None and isinstance(value, base)
  return is_one and not isinstance(value, bool) and math.isfinite(value)


def cast(value: Any, hint: Any, name: str) -> Any:
  """Returns a JSON value as a value of a type.

  Args:
    value: The value, or one that has the type already.
    hint: The type: a number, text, list, dict or dataclass, or a union. A class
      with a method `from_json_value` converts values itself.
    name: What errors call the value.

  Raises:
    TypeError: If it has another type.
    ValueError: If an object has other fields than its dataclass.
  """
  for kind in kinds(hint):
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or (kind is type(None) and value is None):
      return value
    if origin is Literal and value in inner:
      return value
    if origin in (list, tuple) and isinstance(value, (list, tuple)):
      if origin is list or ... in inner or len(value) == len(inner):
        return origin(cast(v, inner[0], name) for v in value)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
      return {n: cast(v, inner[1], f'{name}.{n}') for n, v in value.items()}
    if origin is not None:
      continue
    if kind not in (int, float) and isinstance(value, kind):
      return value
    if _is_number(value, kind):
      return kind(value)
    if is_object(kind) and isinstance(value, Mapping):
      return from_json(kind, value, name)
    if hasattr(kind, 'from_json_value'):
      return kind.from_json_value(value, name)
  raise TypeError(f'{name} must be {describe_type(hint)}. Found {value!r:.80}.')


def from_json(cls: type, content: Any, name: str = '') -> Any:
  """Returns a dataclass of a JSON object, whose fields it checks.

  Args:
    cls: The dataclass.
    content: The JSON object.
    name: What errors call it.

  Raises:
    TypeError: If a value has the wrong type.
    ValueError: If a field is unknown or missing, or a value is invalid.
  """
  if not isinstance(content, Mapping):
    raise TypeError(f'{name or "it"} must be an object. Found {content!r:.80}.')
  prefix = f'{name}.' if name else ''
  fields = {f.name: f for f in dataclasses.fields(cls)}
  for field in content:
    if field not in fields:
      raise ValueError(
        f'{prefix}{field} is not a field.{nearest(field, list(fields))}'
      )
  for field, f in fields.items():
    no_default = f.default is f.default_factory is dataclasses.MISSING
    if no_default and field not in content:
      raise ValueError(f'it must have the field {prefix}{field}.')
  of = hints(cls)
  return cls(**{n: cast(v, of[n], prefix + n) for n, v in content.items()})


def nearest(name: str, known: Sequence[str]) -> str:
  """Returns ' Did you mean X?' if known names are near, else ''."""
  last = name.rpartition('.')[2].lower()
  close = [k for k in known if k.rpartition('.')[2].lower() == last]
  close = close or difflib.get_close_matches(name, known, 1, 0.6)
  return f' Did you mean {" or ".join(close)}?' if close else ''


def as_json(value: Any, *, only_results: bool = False) -> Any:
  """Returns a value as JSON values.

  Args:
    value: A dataclass, a list or a JSON value.
    only_results: Whether to leave out settings that do not affect results; see
      `settings.setting`.
  """
  if hasattr(value, 'as_json_value'):
    return value.as_json_value()
  if dataclasses.is_dataclass(value):
    return {
      field.name: as_json(getattr(value, field.name), only_results=only_results)
      for field in dataclasses.fields(value)
      if not only_results or field.metadata.get('affects_result', True)
    }
  if isinstance(value, (tuple, list)):
    return [as_json(v, only_results=only_results) for v in value]
  return value


def flat(value: Any, prefix: str = '') -> dict[str, Any]:
  """Returns nested JSON objects as one, with dotted names.

  Example:

    >>> flat({'server': {'momentum': 0.9}})
    {'server.momentum': 0.9}

  Args:
    value: JSON values.
    prefix: Dotted name of the object.
  """
  if not isinstance(value, Mapping):
    return {prefix: value}
  found: dict[str, Any] = {}
  for name, inner in value.items():
    found |= flat(inner, f'{prefix}.{name}' if prefix else str(name))
  return found


def differences(old: Any, new: Any) -> list[str]:
  """Returns 'name: old -> new' for each value that differs.

  Example:

    >>> differences({'server': {'momentum': 0}}, {'server': {'momentum': 0.9}})
    ['server.momentum: 0 -> 0.9']

  Args:
    old: JSON values.
    new: JSON values.
  """
  before, after = flat(old), flat(new)
  missing = object()
  lines = []
  for name in sorted(before.keys() | after.keys()):
    pair = before.get(name, missing), after.get(name, missing)
    if pair[0] != pair[1]:
      shown = ['none' if v is missing else repr(v) for v in pair]
      lines.append(f'{name}: {shown[0]} -> {shown[1]}')
  return lines
