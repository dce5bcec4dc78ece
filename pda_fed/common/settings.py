"""Settings as data: nested frozen dataclasses, JSON and dotted names.

A setting is a field made by `setting`, with its help and its check. From such
fields come JSON (`as_json`, `flatten`), the flags of programs (`by_name`), and
copies with other values (`replace`):

    >>> @dataclasses.dataclass(frozen=True)
    ... class Server(Group):
    ...   PREFIX = 'server.'
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

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import json
import types
from typing import Any, ClassVar, get_args, get_origin, Optional, Union

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
    PREFIX: What names of its settings begin with: 'server.', or nothing.
    ONLY: What its settings are for, if they do not say so themselves.
  """

  PREFIX: ClassVar[str] = ''
  ONLY: ClassVar[Optional[str]] = None

  def __post_init__(self):
    of = typed.hints(type(self))
    for field in dataclasses.fields(self):  # type: ignore[arg-type]
      name = f'{self.PREFIX}{field.name}'
      value = typed.cast(getattr(self, field.name), of[field.name], name)
      object.__setattr__(self, field.name, value)
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
  """A setting of a spec.

  Attributes:
    name: The name, as flags have it.
    path: Its group, if it is in one, and its field.
    hint: The type of its value.
    default: The default value.
    help: What the value is.
    choices: The allowed values, or None.
    only: What the setting is for, if not for all runs.
  """

  name: str
  path: tuple[str, ...]
  hint: Any
  default: Any
  help: str
  choices: Optional[Sequence[Any]]
  only: Optional[str]

  @property
  def type(self) -> Any:
    """The type of its value without None."""
    return _without_none(self.hint)

  def of(self, spec: Any) -> Any:
    """Returns the setting's value in a spec."""
    return functools.reduce(getattr, self.path, spec)


def _without_none(hint: Any) -> Any:
  kinds = [kind for kind in typed.kinds(hint) if kind is not type(None)]
  return kinds[0] if len(kinds) == 1 else Union[tuple(kinds)]


@functools.cache
def by_name(cls: Any) -> Mapping[str, Leaf]:
  """Returns the settings of a class by name, as flags and JSON name them.

  Args:
    cls: A dataclass of settings and of groups of them.
  """
  found: dict[str, Leaf] = {}
  for field in dataclasses.fields(cls):
    hint = typed.hints(cls)[field.name]
    if typed.is_object(hint):
      for leaf in by_name(hint).values():
        path = field.name, *leaf.path
        found[leaf.name] = dataclasses.replace(leaf, path=path)
    else:
      name = f'{cls.PREFIX}{field.name}'
      names = ('help', 'choices', 'only')
      about = {n: field.metadata.get(n) for n in names}
      about['only'] = about['only'] or cls.ONLY
      found[name] = Leaf(name, (field.name,), hint, field.default, **about)
  return types.MappingProxyType(found)


def find(cls: Any, name: str) -> tuple[Leaf, str]:
  """Returns the setting of a name, and which setting of its `Choice`, or ''.

  Example: 'method.alpha_i' is the setting 'alpha_i' of the choice 'method'.

  Args:
    cls: A dataclass of settings and groups.
    name: Its name.

  Raises:
    ValueError: If there is no such setting.
  """
  known = by_name(cls)
  if name in known:
    return known[name], ''
  head, _, rest = name.partition('.')
  if head in known and known[head].type is Choice and rest:
    return known[head], rest
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
    ValueError: If a name is unknown, or a value is invalid.
  """
  cls: Any = type(spec)
  found: dict[str, dict[str, Any]] = {}
  for name, value in values.items():
    leaf, inner = find(cls, name)
    found.setdefault(leaf.name, {})[inner] = value
  changes: dict[tuple[str, ...], dict[str, Any]] = {}
  for name, given in found.items():
    leaf = by_name(cls)[name]
    new = leaf.of(spec)
    if '' in given:
      value = given.pop('')
      if leaf.type is not Choice or value != new.name:
        new = typed.cast(value, leaf.hint, name)
    if given:
      new = Choice(new.name, {**new.settings, **given})
    *group, field = leaf.path
    changes.setdefault(tuple(group), {})[field] = new
  own = changes.pop((), {})
  for (group,), changed in changes.items():
    own[group] = dataclasses.replace(getattr(spec, group), **changed)
  return dataclasses.replace(spec, **own)


def flatten(content: Any, cls: Any) -> dict[str, Any]:
  """Returns JSON as values by name, for `replace`.

  Args:
    content: An object of settings, and of groups of them.
    cls: The class that it describes.

  Raises:
    TypeError: If a group is not an object.
    ValueError: If a setting has two values.
  """
  values: dict[str, Any] = {}
  for name, value in _object(content, 'the file').items():
    group = typed.hints(cls).get(name)
    pairs = {name: value}
    if typed.is_object(group):
      inner = _object(value, name)
      pairs = {f'{group.PREFIX}{n}': v for n, v in inner.items()}
    for known in values.keys() & pairs:
      raise ValueError(f'{known} must have one value. Found two.')
    values |= pairs
  return values


def _object(value: Any, name: str) -> Mapping[str, Any]:
  if not isinstance(value, Mapping):
    raise TypeError(f'{name} must be an object. Found {value!r:.80}.')
  return value


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
    parts = [part for part in text.split(',') if part]
    is_of_texts = str in get_args(kinds[0])
    return parts if is_of_texts else [_literal(part) for part in parts]
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
