"""Settings as data: nested frozen dataclasses, JSON and dotted names.

A setting is a field made by `setting`, with its help. From such fields come
JSON (`as_json`, `from_json`), the flags of programs (`leaves`), and copies with
other values (`replace`):

    >>> @dataclasses.dataclass(frozen=True)
    ... class Server:
    ...   learning_rate: float = setting(1.0, 'Learning rate of the server.')
    >>> @dataclasses.dataclass(frozen=True)
    ... class Spec:
    ...   server: Server = Server()
    >>> replace(Spec(), {'server.learning_rate': 0.5}).server.learning_rate
    0.5
    >>> as_json(Spec())
    {'server': {'learning_rate': 1.0}}

A leaf is an int, float, bool or str, a tuple of these, None if it is Optional,
or a `Choice`.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import difflib
import functools
import json
import types
from typing import Any, get_args, get_origin, get_type_hints, Optional, Union

_SCALARS = (int, float, str, bool)


def setting(
  default: Any,
  help: str,  # noqa: A002 - as in absl and argparse.
  *,
  choices: Optional[Sequence[Any]] = None,
  affects_result: bool = True,
) -> Any:
  """Returns a dataclass field for a setting.

  Args:
    default: The default value.
    help: What the value is, as a flag's help says it.
    choices: The allowed values; None if `__post_init__` checks the value.
    affects_result: Whether a run with another value has other results. A
      stopped run may resume with other values of settings that do not.
  """
  metadata = {
    'help': help,
    'choices': choices,
    'affects_result': affects_result,
  }
  return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Choice:
  """A name, and settings of what it stands for, such as a model's sizes.

  What it names is not imported: a module of the user may stand here.

  Example:

    >>> Choice('pda', {'alpha_i': 5}).settings
    {'alpha_i': 5}

  Attributes:
    name: The name; None lets the data decide.
    settings: Settings by name: numbers, texts, or lists of them.
  """

  name: Optional[str] = None
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    if self.name is not None and not isinstance(self.name, str):
      raise TypeError(f'name must be a string. Found {self.name!r}.')
    if not isinstance(self.settings, Mapping):
      raise TypeError(f'settings must be an object. Found {self.settings!r}.')

  def __hash__(self):
    return hash(json.dumps([self.name, dict(self.settings)], sort_keys=True))

  def only(self, names: Sequence[str]) -> 'Choice':
    """Returns the choice with only those settings that have these names."""
    kept = {n: v for n, v in self.settings.items() if n in names}
    return Choice(self.name, kept)


@dataclasses.dataclass(frozen=True)
class Leaf:
  """A setting in a tree of settings.

  Attributes:
    path: Names of the groups, and of the field.
    type: The type of its value, without Optional.
    default: The default value.
    help: What the value is.
    choices: The allowed values, or None.
    affects_result: Whether a run with another value has other results.
  """

  path: tuple[str, ...]
  type: Any
  default: Any
  help: str
  choices: Optional[Sequence[Any]]
  affects_result: bool

  @property
  def name(self) -> str:
    return '.'.join(self.path)


def _hints(cls: type) -> dict[str, Any]:
  return _cached_hints(cls)


@functools.cache
def _cached_hints(cls: type) -> dict[str, Any]:
  return get_type_hints(cls)


def _without_none(hint: Any) -> Any:
  """Returns a type without its None."""
  if get_origin(hint) in (Union, types.UnionType):
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 else Union[tuple(kinds)]
  return hint


def is_group(kind: Any) -> bool:
  """Returns whether a type is a group of settings."""
  is_class = isinstance(kind, type) and dataclasses.is_dataclass(kind)
  return is_class and kind is not Choice


def leaves(cls: type, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
  """Yields the settings of a class and of its groups, in order.

  Args:
    cls: A dataclass of settings and groups.
    path: Names of the groups that hold it.
  """
  for field in dataclasses.fields(cls):
    kind = _without_none(_hints(cls)[field.name])
    if is_group(kind):
      yield from leaves(kind, (*path, field.name))
      continue
    default = field.default
    if default is dataclasses.MISSING:
      default = None
      if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    yield Leaf(
      path=(*path, field.name),
      type=kind,
      default=default,
      help=field.metadata.get('help', ''),
      choices=field.metadata.get('choices'),
      affects_result=field.metadata.get('affects_result', True),
    )


def _kinds(hint: Any) -> tuple[Any, ...]:
  is_union = get_origin(hint) in (Union, types.UnionType)
  return get_args(hint) if is_union else (hint,)


def describe_type(hint: Any) -> str:
  """Returns a type in words, for messages.

  Example:

    >>> describe_type(Optional[float])
    'a number or none'

  Args:
    hint: A type of a leaf.
  """
  words = {
    int: 'an integer',
    float: 'a number',
    str: 'a text',
    bool: 'true or false',
    type(None): 'none',
    Choice: 'a name, or an object with a name and settings',
  }
  found = [words.get(kind, 'a list') for kind in _kinds(hint)]
  return ' or '.join(found)


def _cast(value: Any, hint: Any) -> Any:
  """Returns a JSON value as this type.

  Raises:
    TypeError: If it has another type.
  """
  for kind in _kinds(hint):
    if kind is type(None) and value is None:
      return None
    if kind is Choice and isinstance(value, Choice):
      return value
    if kind is Choice and (value is None or isinstance(value, str)):
      return Choice(value)
    if kind is Choice and isinstance(value, Mapping):
      rest = dict(value)
      return Choice(rest.pop('name', None), rest)
    if get_origin(kind) is tuple and isinstance(value, (list, tuple)):
      return tuple(_cast(v, get_args(kind)[0]) for v in value)
    if kind is float and isinstance(value, (int, float)):
      if not isinstance(value, bool):
        return float(value)
    elif kind in _SCALARS and type(value) is kind:
      return value
  raise TypeError


def parse(text: str, hint: Any) -> Any:
  """Returns the value that a text stands for, as on a command line.

  Example:

    >>> parse('0.5', float), parse('none', Optional[float]), parse('8,16', list)
    (0.5, None, [8, 16])

  Args:
    text: The text.
    hint: The type of the value.

  Raises:
    ValueError: If the text has another type.
  """
  kinds = _kinds(hint)
  if type(None) in kinds and text.lower() == 'none':
    return None
  if kinds == (str,) or kinds == (str, type(None)):
    return text
  if kinds[0] is list or get_origin(kinds[0]) is tuple:
    return [_literal(part) for part in text.split(',') if part]
  found = _literal(text)
  if kinds[0] is Any:
    return found
  try:
    return _cast(found, hint)
  except TypeError:
    with_text = str in kinds
    if with_text:
      return text
  raise ValueError(f'must be {describe_type(hint)}. Found {text!r}')


def _literal(text: str) -> Any:
  """Returns a number, true, false or none; any other text is itself."""
  words = {'true': True, 'false': False, 'none': None}
  if text.lower() in words:
    return words[text.lower()]
  for kind in (int, float):
    try:
      return kind(text)
    except ValueError:
      continue
  return text


def nearest(name: str, known: Sequence[str]) -> str:
  """Returns ' Did you mean X?' if known names are near, else ''."""
  last = name.rpartition('.')[2]
  close = [k for k in known if k.rpartition('.')[2] == last]
  close = close or difflib.get_close_matches(name, known, 1, 0.6)
  return f' Did you mean {" or ".join(close)}?' if close else ''


@functools.cache
def by_name(cls: type) -> Mapping[str, Leaf]:
  """Returns the settings of a class by name, as flags and JSON name them.

  Args:
    cls: A dataclass of settings and groups. A group with a class attribute
      `FLAT = True` gives its settings names without its own.
  """
  found: dict[str, Leaf] = {}
  for leaf in leaves(cls):
    found[_short_name(cls, leaf)] = leaf
  return types.MappingProxyType(found)


def _short_name(cls: type, leaf: Leaf) -> str:
  kept, inner = [], cls
  for i, part in enumerate(leaf.path):
    inner = _without_none(_hints(inner)[part])
    if i == len(leaf.path) - 1 or not getattr(inner, 'FLAT', False):
      kept.append(part)
  return '.'.join(kept)


def find(cls: type, name: str) -> tuple[Leaf, str]:
  """Returns the setting of a name, and which setting of its `Choice`, or ''.

  Example: 'method.alpha_i' is the setting 'alpha_i' of the choice 'method'.

  Args:
    cls: A dataclass of settings and groups.
    name: Its name in `by_name`, or its full name with all groups.

  Raises:
    ValueError: If there is no such setting.
  """
  known = by_name(cls)
  full = {leaf.name: leaf for leaf in known.values()}
  for names in (known, full):
    if name in names:
      return names[name], ''
    head, _, rest = name.rpartition('.')
    if head in names and names[head].type is Choice and rest:
      return names[head], rest
  raise ValueError(f'{name} is not a setting.{nearest(name, list(known))}')


def replace(spec: Any, values: Mapping[str, Any]) -> Any:
  """Returns a copy with other values.

  Args:
    spec: A dataclass of settings and groups.
    values: JSON values by name (see `find`). Another name of a `Choice`
      ('method') drops the settings of the former one.

  Raises:
    TypeError: If a value has the wrong type.
    ValueError: If a name is unknown or a value is invalid.
  """
  tree: dict[str, Any] = {}
  found = [
    (*find(type(spec), name), name, value) for name, value in values.items()
  ]
  # A choice's name comes before its settings.
  for leaf, inner, name, value in sorted(found, key=lambda f: bool(f[1])):
    group, own = tree, spec
    for part in leaf.path[:-1]:
      group, own = group.setdefault(part, {}), getattr(own, part)
    last = leaf.path[-1]
    if inner:
      choice = group.get(last, getattr(own, last))
      group[last] = Choice(choice.name, {**choice.settings, inner: value})
      continue
    hint = _hints(type(own))[last]
    try:
      group[last] = _cast(value, hint)
    except TypeError as e:
      raise TypeError(
        f'{name} must be {describe_type(hint)}. Found {value!r}.'
      ) from e
    if leaf.choices is not None and group[last] not in leaf.choices:
      known = ', '.join(map(str, leaf.choices))
      raise ValueError(f'{name} must be one of {known}. Found {value!r}.')
    if leaf.type is Choice and isinstance(value, str):
      if getattr(own, last).name == value:
        group[last] = getattr(own, last)
  return _with(spec, tree)


def _with(spec: Any, tree: Mapping[str, Any], prefix: str = '') -> Any:
  """Returns a copy with the values of a tree of dicts."""
  changed = {}
  for name, value in tree.items():
    is_inner = isinstance(value, dict)
    own = '' if getattr(getattr(spec, name), 'FLAT', False) else f'{name}.'
    changed[name] = (
      _with(getattr(spec, name), value, prefix + own) if is_inner else value
    )
  try:
    return dataclasses.replace(spec, **changed)
  except (TypeError, ValueError) as e:
    if str(e).partition(' ')[0] in _hints(type(spec)):
      raise type(e)(f'{prefix}{e}') from e  # Named as by the user.
    raise


def flatten(content: Any, cls: Any, prefix: str = '') -> dict[str, Any]:
  """Returns nested JSON as values by dotted name, for `replace`.

  Args:
    content: A JSON object.
    cls: The class that it describes.
    prefix: Dotted name of the object.

  Raises:
    TypeError: If a group is not an object.
  """
  if not isinstance(content, Mapping):
    raise TypeError(
      f'{prefix or "the file"} must be an object. Found {content!r:.80}.'
    )
  flat: dict[str, Any] = {}
  hints = _hints(cls)
  for name, value in content.items():
    full = f'{prefix}.{name}' if prefix else name
    kind = _without_none(hints.get(name))
    if is_group(kind):
      flat |= flatten(value, kind, full)
    else:
      flat[full] = value
  return flat


def _no_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
  names = [name for name, _ in pairs]
  for name in names:
    if names.count(name) > 1:
      raise ValueError(f'{name} must have one value. Found two')
  return dict(pairs)


def loads(text: str) -> Any:
  """Returns the value of a JSON text; refuses two values for one name.

  Raises:
    ValueError: If the text is not JSON, or a name occurs twice.
  """
  return json.loads(text, object_pairs_hook=_no_duplicates)


def as_json(value: Any, *, only_results: bool = False) -> Any:
  """Returns settings as JSON values.

  Args:
    value: A dataclass of settings and groups, or a value in it.
    only_results: Whether to leave out settings that do not affect results.
  """
  if isinstance(value, Choice):
    return {'name': value.name, **value.settings}
  if dataclasses.is_dataclass(value):
    return {
      field.name: as_json(getattr(value, field.name), only_results=only_results)
      for field in dataclasses.fields(value)
      if not only_results or field.metadata.get('affects_result', True)
    }
  if isinstance(value, (tuple, list)):
    return [as_json(v, only_results=only_results) for v in value]
  return value


def differences(old: Any, new: Any) -> list[str]:
  """Returns 'name: old -> new' for each setting that differs.

  Example:

    >>> differences({'server': {'momentum': 0}}, {'server': {'momentum': 0.9}})
    ['server.momentum: 0 -> 0.9']

  Args:
    old: JSON values.
    new: JSON values.
  """
  before, after = _flat(old), _flat(new)
  missing = object()
  lines = []
  for name in sorted(before.keys() | after.keys()):
    pair = before.get(name, missing), after.get(name, missing)
    if pair[0] != pair[1]:
      shown = ['none' if v is missing else repr(v) for v in pair]
      lines.append(f'{name}: {shown[0]} -> {shown[1]}')
  return lines


def _flat(value: Any, prefix: str = '') -> dict[str, Any]:
  if not isinstance(value, Mapping):
    return {prefix: value}
  found: dict[str, Any] = {}
  for name, inner in value.items():
    found |= _flat(inner, f'{prefix}.{name}' if prefix else str(name))
  return found
