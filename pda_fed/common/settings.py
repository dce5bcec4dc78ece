"""Settings as data: nested frozen dataclasses, JSON and dotted names.

A setting is a field made by `setting`, with its help and its check. From such
fields come JSON (`as_json`, `flatten`), the flags of programs (`leaves`), and
copies with other values (`replace`):

    >>> @dataclasses.dataclass(frozen=True)
    ... class Server(Group):
    ...   learning_rate: float = setting(1.0, 'Learning rate of the server.')
    >>> @dataclasses.dataclass(frozen=True)
    ... class Spec(Group):
    ...   server: Server = Server()
    >>> replace(Spec(), {'server.learning_rate': 0.5}).server.learning_rate
    0.5
    >>> as_json(Spec())
    {'server': {'learning_rate': 1.0}}

A leaf is an int, float, bool or str, a list of these, None if it is Optional,
or a `Choice`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import json
import types
from typing import Any, ClassVar, get_origin, Optional, Union

from pda_fed.common import typed

# JSON of settings is that of other dataclasses.
as_json, differences = typed.as_json, typed.differences


def setting(
  default: Any,
  help: str,  # noqa: A002 - as in absl and argparse.
  *,
  choices: Optional[Sequence[Any]] = None,
  check: Optional[Callable[..., None]] = None,
  only: Optional[str] = None,
  affects_result: bool = True,
) -> Any:
  """Returns a dataclass field for a setting.

  Args:
    default: The default value.
    help: What the value is, as a flag's help says it.
    choices: The allowed values; None allows all.
    check: Called with the value by its name, unless the value is None; raises
      ValueError. See `common.validate`.
    only: What the setting is for, if not for all runs; see `spec.RunSpec`.
    affects_result: Whether a run with another value has other results. A
      stopped run may resume with other values of settings that do not.
  """
  metadata = {
    'help': help,
    'choices': choices,
    'check': check,
    'only': only,
    'affects_result': affects_result,
  }
  return dataclasses.field(default=default, metadata=metadata)


class Group:
  """Base class of groups of settings, which checks every value.

  Attributes:
    FLAT: Whether names of settings leave out the name of this group.
    ONLY: What its settings are for, if they do not say so themselves.
  """

  FLAT: ClassVar[bool] = False
  ONLY: ClassVar[Optional[str]] = None

  def __post_init__(self):
    of = typed.hints(type(self))
    for field in dataclasses.fields(self):  # type: ignore[arg-type]
      name = field.name
      value = typed.cast(getattr(self, name), of[name], name)
      object.__setattr__(self, name, value)
      choices = field.metadata.get('choices')
      check = field.metadata.get('check')
      if choices is not None and value not in choices:
        known = ', '.join(repr(c) for c in choices if c is not None)
        near = typed.nearest(str(value), [c for c in choices if c is not None])
        raise ValueError(
          f'{name} must be one of {known}. Found {value!r}.{near}'
        )
      if check is not None and value is not None:
        check(**{name: value})


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
    typed.cast(self.name, Optional[str], 'name')
    typed.cast(self.settings, Mapping[str, Any], 'settings')

  def __hash__(self):
    return hash(json.dumps([self.name, dict(self.settings)], sort_keys=True))

  @classmethod
  def from_json_value(cls, value: Any, name: str) -> 'Choice':
    """Returns the choice of a name, or of an object with a name.

    Args:
      value: A JSON value.
      name: What errors call it.

    Raises:
      TypeError: If it is something else.
    """
    given = dict(value) if isinstance(value, Mapping) else {'name': value}
    chosen = given.pop('name', None)
    if chosen is not None and not isinstance(chosen, str):
      words = typed.describe_type(Choice)
      raise TypeError(f'{name} must be {words}. Found {value!r:.80}.')
    return cls(chosen, given)

  def as_json_value(self) -> dict[str, Any]:
    """Returns an object that `from_json_value` takes."""
    return {'name': self.name, **self.settings}


@dataclasses.dataclass(frozen=True)
class Leaf:
  """A setting in a tree of settings.

  Attributes:
    path: Names of the groups, and of the field.
    type: The type of its value, without Optional.
    default: The default value.
    help: What the value is.
    choices: The allowed values, or None.
    only: What the setting is for, if not for all runs.
    affects_result: Whether a run with another value has other results.
  """

  path: tuple[str, ...]
  type: Any
  default: Any
  help: str
  choices: Optional[Sequence[Any]]
  only: Optional[str]
  affects_result: bool

  @property
  def name(self) -> str:
    return '.'.join(self.path)

  def of(self, spec: Any) -> Any:
    """Returns the setting's value in a spec."""
    return functools.reduce(getattr, self.path, spec)


def _without_none(hint: Any) -> Any:
  kinds = [kind for kind in typed.kinds(hint) if kind is not type(None)]
  return kinds[0] if len(kinds) == 1 else Union[tuple(kinds)]


def leaves(cls: type, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
  """Yields the settings of a class and of its groups, in order.

  Args:
    cls: A dataclass of settings and groups.
    path: Names of the groups that hold it.
  """
  for field in dataclasses.fields(cls):
    kind = _without_none(typed.hints(cls)[field.name])
    if typed.is_object(kind):
      yield from leaves(kind, (*path, field.name))
      continue
    names = ('help', 'choices', 'only', 'affects_result')
    about = {n: field.metadata[n] for n in names if n in field.metadata}
    about['only'] = about.get('only') or getattr(cls, 'ONLY', None)
    yield Leaf((*path, field.name), kind, field.default, **about)


@functools.cache
def by_name(cls: type) -> Mapping[str, Leaf]:
  """Returns the settings of a class by name, as flags and JSON name them.

  Args:
    cls: A dataclass of settings and groups. Groups that are `FLAT` are not in
      the names.
  """
  found: dict[str, Leaf] = {}
  for leaf in leaves(cls):
    kept, inner = [], cls
    for part in leaf.path[:-1]:
      inner = typed.hints(inner)[part]
      kept += [] if getattr(inner, 'FLAT', False) else [part]
    found['.'.join((*kept, leaf.path[-1]))] = leaf
  return types.MappingProxyType(found)


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
  raise ValueError(
    f'{name} is not a setting.{typed.nearest(name, list(known))}'
  )


def replace(spec: Any, values: Mapping[str, Any]) -> Any:
  """Returns a copy with other values.

  Args:
    spec: A dataclass of settings and groups.
    values: JSON values by name (see `find`). Another name of a `Choice`
      ('method') drops the settings of the former one.

  Raises:
    TypeError: If a value has the wrong type.
    ValueError: If a name is unknown or has two values, or a value is invalid.
  """
  found: dict[tuple[str, ...], dict[str, Any]] = {}
  names: dict[tuple[str, ...], dict[str, str]] = {}
  for name, value in values.items():
    leaf, inner = find(type(spec), name)
    other = names.setdefault(leaf.path, {}).setdefault(inner, name)
    if other != name:
      raise ValueError(f'{other} must have one value. Found two, also {name}.')
    found.setdefault(leaf.path, {})[inner] = value
  tree: dict[str, Any] = {}
  for path, given in found.items():
    group, own = tree, spec
    for part in path[:-1]:
      group, own = group.setdefault(part, {}), getattr(own, part)
    hint, new = typed.hints(type(own))[path[-1]], getattr(own, path[-1])
    if '' in given and (hint is not Choice or given[''] != new.name):
      new = typed.cast(given[''], hint, names[path][''])
    inner = {name: value for name, value in given.items() if name}
    if inner:
      new = Choice(new.name, {**new.settings, **inner})
    group[path[-1]] = new
  return _with(spec, tree)


def _with(spec: Any, tree: Mapping[str, Any], prefix: str = '') -> Any:
  """Returns a copy with the values of a tree of dicts."""
  changed = {}
  for name, value in tree.items():
    own = '' if getattr(getattr(spec, name), 'FLAT', False) else f'{name}.'
    if isinstance(value, dict):
      value = _with(getattr(spec, name), value, prefix + own)
    changed[name] = value
  try:
    return dataclasses.replace(spec, **changed)
  except (TypeError, ValueError) as e:
    if str(e).partition(' ')[0] in typed.hints(type(spec)):
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
  values: dict[str, Any] = {}
  for name, value in content.items():
    full = f'{prefix}.{name}' if prefix else name
    kind = _without_none(typed.hints(cls).get(name))
    is_group = typed.is_object(kind)
    values |= flatten(value, kind, full) if is_group else {full: value}
  return values


def _no_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
  names = [name for name, _ in pairs]
  for name in names:
    if names.count(name) > 1:
      raise ValueError(f'{name} must have one value. Found two.')
  return dict(pairs)


def loads(text: str) -> Any:
  """Returns the value of a JSON text; refuses two values for one name.

  Raises:
    ValueError: If the text is not JSON, or a name occurs twice.
  """
  return json.loads(text, object_pairs_hook=_no_duplicates)


def parse(text: str, hint: Any) -> Any:
  """Returns the value that a text stands for, as on a command line.

  Example:

    >>> parse('0.5', float), parse('none', Optional[float]), parse('8,16', list)
    (0.5, None, [8, 16])

  Args:
    text: The text.
    hint: The type of the value; Any for what the text looks like.

  Raises:
    ValueError: If the text has another type.
  """
  kinds = typed.kinds(hint)
  if type(None) in kinds and text.lower() == 'none':
    return None
  if kinds[0] is str:
    return text
  looks_like_list = kinds[0] is Any and ',' in text
  is_list = kinds[0] is list or get_origin(kinds[0]) in (list, tuple)
  if is_list or looks_like_list:
    return [_literal(part) for part in text.split(',') if part]
  try:
    return typed.cast(_literal(text), hint, 'it')
  except TypeError:
    if str in kinds:
      return text
  raise ValueError(f'must be {typed.describe_type(hint)}. Found {text!r}')


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
