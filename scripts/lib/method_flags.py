"""--method, and flags for the settings of all registered methods."""

from collections.abc import Sequence
import dataclasses
import sys
from typing import Any, get_type_hints, Optional

from absl import flags
from pda_fed import methods
from pda_fed import schedules
from scripts.lib import cli
from scripts.lib import trust_flags

METHOD = flags.DEFINE_string(
  'method',
  'pda',
  f'The method: {", ".join(methods.names())}, or a module that defines one,'
  ' such as my_package.my_method.',
)
_DEFINE = {
  float: flags.DEFINE_float,
  int: flags.DEFINE_integer,
  bool: flags.DEFINE_bool,
  str: flags.DEFINE_string,
}
_SCHEDULES = {
  'K': 'K of alpha_t = cos(pi t / 2K), the round, or epoch at sample level,'
  ' where {} reaches 0.',
  'i': 'i of alpha_t = cos(pi t / (i T)). T is the number of rounds, or of'
  ' epochs at sample level.',
  'constant': 'Constant value of {}. 1 uses the private mean alone.',
}
flags.adopt_module_key_flags(trust_flags)
# Flags of all methods, as far as defined.
_DEFINED: set[str] = set()


def settings_of(method: type[methods.Method]) -> dict[str, str]:
  """Returns the flags of a method, mapped to the fields that they set.

  Args:
    method: The method.
  """
  found, types = {}, get_type_hints(method)
  for field in dataclasses.fields(method):
    flag = f'{method.name}_{field.name}'
    if types[field.name] is not schedules.Schedule:
      found[flag] = field.name
      continue
    flag = 'alpha' if field.name == 'alpha' else flag
    found |= {f'{flag}_{kind}': field.name for kind in _SCHEDULES}
  return found


def define(method: type[methods.Method]) -> None:
  """Defines the flags of a method that do not exist yet.

  Args:
    method: The method.

  Raises:
    ValueError: If there is no kind of flag for the type of a setting.
  """
  types = get_type_hints(method)
  fields = {field.name: field for field in dataclasses.fields(method)}
  for flag, name in settings_of(method).items():
    if flag in flags.FLAGS:
      continue
    if types[name] is schedules.Schedule:
      text = _SCHEDULES[flag.rpartition('_')[2]].format(name)
      flags.DEFINE_float(flag, None, text)
    elif types[name] in _DEFINE:
      field = fields[name]
      text = field.metadata.get('description', 'A setting.')
      _DEFINE[types[name]](
        flag, None, f'{method.title}: {text} Default: {field.default}.'
      )
    else:
      raise ValueError(
        f'{name} of {method.__qualname__} must be a float, int, bool, str or'
        f' Schedule. Found {types[name]}.'
      )
    _DEFINED.add(flag)


for _name in methods.names():
  define(methods.get(_name))


def name_of(argument: str) -> str:
  """Returns the name of the flag that an argument sets, '' if none."""
  if not argument.startswith('-'):
    return ''
  name = argument.lstrip('-').partition('=')[0]
  negated = name.removeprefix('no')
  return negated if negated in _DEFINED else name


def load(name: str, source: Optional[str] = None) -> type[methods.Method]:
  """Returns a method, and defines its flags.

  Args:
    name: Name or module of the method.
    source: The file that names it; None for a flag, which may stand in a flag
      file.

  Raises:
    UntrustedCodeError: If only a file names the module, without --trust_code.
    ValueError: If there is no such method.
  """
  if name not in methods.names():
    trust_flags.check(name, source)
  method = methods.get(name, trust_code=True)
  define(method)
  return method


def define_named(
  arguments: Sequence[str], source: Optional[str] = None
) -> None:
  """Defines the flags of the method that --method names in arguments.

  Args:
    arguments: Command line of a program, before flags are parsed.
    source: The file that holds the arguments; None for this program's.

  Raises:
    UntrustedCodeError: See `load`.
    ValueError: See `load`.
  """
  words = [*arguments, '']
  for word, following in zip(words, words[1:], strict=False):
    if name_of(word) == METHOD.name:
      value = word.partition('=')[2] or following
      load(value, source)


def _hint(flag: str) -> str:
  """Returns a hint: the settings of the method that a flag starts with."""
  for name in methods.names():
    if flag.removeprefix('no').startswith(f'{name}_'):
      return f'. {_has(name)}.'
  return ''


def _has(name: str) -> str:
  found = ', '.join(f'--{flag}' for flag in settings_of(methods.get(name)))
  return f'--method={name} has {found or "no settings"}'


cli.BEFORE_PARSING.append(define_named)
cli.OF_UNKNOWN_FLAG.append(_hint)


def arguments_for(method: str, arguments: Sequence[str]) -> list[str]:
  """Returns arguments without the settings of other methods.

  Args:
    method: Name or module of a method.
    arguments: Command line of a training binary.
  """
  own = settings_of(methods.get(method))
  kept, words = [], list(arguments)
  while words:
    word = words.pop(0)
    name = name_of(word)
    is_apart = name in _DEFINED and '=' not in word and words
    is_apart = is_apart and not flags.FLAGS[name].boolean
    values = [words.pop(0)] if is_apart else []
    if name not in _DEFINED or name in own:
      kept += [word, *values]
  return kept


def check_owned(compared: Sequence[str], arguments: Sequence[str]) -> None:
  """Raises ValueError if a setting belongs to none of the compared methods.

  Args:
    compared: Names or modules of methods.
    arguments: The command line of a training binary.
  """
  owned = {flag for m in compared for flag in settings_of(methods.get(m))}
  for name in map(name_of, arguments):
    if name in _DEFINED - owned:
      raise ValueError(
        f'--{name} must be a setting of {", ".join(compared)}. It is a setting'
        f' of {_owners(name)}.'
      )


def _owners(flag: str) -> str:
  found = [n for n in methods.names() if flag in settings_of(methods.get(n))]
  return ', '.join(found)


def build(
  default_alpha: schedules.Schedule,
  T: float,
  given: Optional[Sequence[str]] = None,
) -> methods.Method:
  """Returns the method that the flags ask for, with its settings.

  A flag file may hold settings of several methods. On the command line,
  settings of another method are an error.

  Args:
    default_alpha: Schedule if no flag sets one.
    T: Number of rounds, or of epochs, for cos(pi t / (i T)).
    given: Command line. Default: this program's.

  Raises:
    ValueError: If the method is unknown, or a setting belongs to another
      method.
  """
  method = methods.get(METHOD.value)
  own = settings_of(method)
  for name in map(name_of, sys.argv[1:] if given is None else given):
    if name in _DEFINED and name not in own:
      raise ValueError(
        f'--{name} must be given with --method={_owners(name)}.'
        f' {_has(METHOD.value)}.'
      )
  values: dict[str, Any] = {}
  types = get_type_hints(method)
  for flag, field in own.items():
    value = flags.FLAGS[flag].value
    if types[field] is schedules.Schedule:
      values.setdefault(field, {})
      if value is not None:
        values[field][flag] = _schedule(flag, value, T)
    elif value is not None:
      values[field] = value
  for field, found in values.items():
    if isinstance(found, dict):
      values[field] = _only(found, default_alpha)
  return method(**values)


def _schedule(flag: str, value: float, T: float) -> schedules.Schedule:
  kind = flag.rpartition('_')[2]
  if kind == 'constant':
    return schedules.constant(value)
  return schedules.cosine(value if kind == 'K' else value * T / 2)


def _only(
  found: dict[str, schedules.Schedule], default: schedules.Schedule
) -> schedules.Schedule:
  if len(found) > 1:
    prefix = next(iter(found)).rpartition('_')[0]
    choices = ', '.join(f'--{prefix}_{kind}' for kind in _SCHEDULES)
    raise ValueError(
      f'Give at most one of {choices}. Found'
      f' {", ".join(f"--{flag}" for flag in found)}.'
    )
  return next(iter(found.values()), default)
