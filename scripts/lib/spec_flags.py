"""The flags of a `RunSpec`: generated from its fields.

    spec_flags.define()
    ...
    spec = spec_flags.spec()

--config=FILE reads a JSON file of the same settings; flags change it. A
method's or a model's own settings are flags too (--method.alpha_i,
--model.lstm_size), also those of a module of the user's.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import pathlib
import re
import sys
from typing import Any, Optional

from absl import flags
from pda_fed import methods
from pda_fed.common import settings
from pda_fed.common import trust
from pda_fed.runs import building
from pda_fed.runs import spec as spec_lib
from scripts.lib import cli
from scripts.lib import setting_flags
from scripts.lib import trust_flags

# Settings of a choice that no method or model of ours has.
_OF_CHOICES = re.compile(r'(?:method|model)\.\w+')

flags.adopt_module_key_flags(trust_flags)


def define() -> None:
  """Defines --config and the flags of all settings of a run, once."""
  if 'config' in flags.FLAGS:
    return
  flags.DEFINE_string(
    'config',
    None,
    'JSON file of settings, such as the config.json of a run. Flags change'
    ' single ones.',
  )
  setting_flags.define(spec_lib.RunSpec)
  flags.adopt_module_key_flags(setting_flags)
  for method in map(methods.get, methods.names()):
    for name, field in building.method_settings(method).items():
      if f'method.{name}' not in flags.FLAGS:
        kind = name.removeprefix(f'{field}_')
        text = building.SCHEDULES.get(kind, 'A setting').format(field)
        flags.DEFINE_string(
          f'method.{name}', None, f'{text}. For --method={method.name}.'
        )
  if define_choices not in cli.BEFORE_PARSING:
    cli.BEFORE_PARSING.append(define_choices)


def define_choices(arguments: Sequence[str]) -> None:
  """Defines flags for settings of methods and models that are not ours.

  Args:
    arguments: A command line, with flag files expanded. The run refuses a
      setting that its method or model does not have.
  """
  for argument in arguments:
    name = argument.lstrip('-').partition('=')[0]
    if argument.startswith('-') and _OF_CHOICES.fullmatch(name):
      if name not in flags.FLAGS:
        flags.DEFINE_string(name, None, 'A setting of a module.')


def given() -> dict[str, Any]:
  """Returns the settings that flags give, by name, as JSON values."""
  found = setting_flags.given(spec_lib.RunSpec)
  for name in flags.FLAGS:
    if _OF_CHOICES.fullmatch(name) and flags.FLAGS[name].value is not None:
      found[name] = settings.parse(flags.FLAGS[name].value, Any)
  return found


def read_json(path: str) -> dict[str, Any]:
  """Returns the settings of a JSON file, by name.

  Args:
    path: The file: a spec, or the config.json of a run.

  Raises:
    ValueError: If it is not JSON, or has two values for one setting.
  """
  text = pathlib.Path(cli.shipped(path)).read_text(encoding='utf-8')
  try:
    content = settings.loads(text)
    if isinstance(content, Mapping) and 'spec' in content:
      content = content['spec']
    return settings.flatten(content, spec_lib.RunSpec)
  except (TypeError, ValueError) as e:
    raise ValueError(f'{path}: {e}') from e


def chooses(names: Collection[str]) -> bool:
  """Returns whether --config or flags give one of some settings."""
  path = flags.FLAGS['config'].value
  of_file = read_json(path) if path else {}
  return any(name in of_file or name in given() for name in names)


def _only_own(
  values: Mapping[str, Any], method: str, kept: Collection[str]
) -> dict[str, Any]:
  """Returns values without settings that only other methods have.

  A preset may have settings of a method for all runs that use the preset.

  Args:
    values: Values by name.
    method: The method.
    kept: Names that are kept: if the method does not have one, the run refuses
      it.
  """
  others = {
    f'method.{name}'
    for other in methods.names()
    for name in building.method_settings(methods.get(other))
  }
  if method in methods.names():
    own = building.method_settings(methods.get(method))
    others -= {f'method.{name}' for name in own}
  else:
    others = set()
  return {n: v for n, v in values.items() if n not in others or n in kept}


def spec(
  *, method: Optional[str] = None, words: Optional[Sequence[str]] = None
) -> spec_lib.RunSpec:
  """Returns the settings of --config and the flags.

  Args:
    method: Name or module of a method, instead of --method. Settings of other
      methods are then left out, also typed ones; see `check_owned`.
    words: What the user typed; by default the command line.

  Raises:
    ValueError: If a name is unknown, or a value is invalid or of another type.
  """
  path = flags.FLAGS['config'].value
  of_file = read_json(path) if path else {}
  of_flags = given()
  dataset = of_flags.get('dataset', of_file.get('dataset'))
  base = spec_lib.RunSpec.for_data(dataset)
  base = changed(base, of_file, f'{path}: ')
  if method is not None:
    of_flags['method'] = method
  name = of_flags.get('method', base.method.name)
  kept = typed(words) if method is None else ()
  return changed(base, _only_own(of_flags, name, kept))


def changed(
  spec: spec_lib.RunSpec, values: Mapping[str, Any], source: str = ''
) -> spec_lib.RunSpec:
  """Returns a spec with other values that a user gives.

  Args:
    spec: The spec.
    values: JSON values by name; see `RunSpec.with_values`.
    source: Where they come from; the beginning of errors.

  Raises:
    ValueError: If a name is unknown, or a value is invalid or of another type.
  """
  try:
    return spec.with_values(values)
  except (TypeError, ValueError) as e:
    raise ValueError(f'{source}{e}') from e


def typed(words: Optional[Sequence[str]] = None) -> set[str]:
  """Returns the names of flags on the command line, not in flag files."""
  words = sys.argv[1:] if words is None else words
  names = {w.lstrip('-').partition('=')[0] for w in words if w.startswith('-')}
  return names | {name.removeprefix('no') for name in names}


def check_owned(specs: Mapping[str, spec_lib.RunSpec]) -> None:
  """Raises ValueError if a typed setting belongs to none of the methods.

  Args:
    specs: The spec of each method that is compared.
  """
  kept = {n for spec in specs.values() for n in spec.method.settings}
  for name in typed():
    if name.startswith('method.') and name.removeprefix('method.') not in kept:
      raise ValueError(
        f'--{name} must be a setting of {", ".join(specs)}. None of them has'
        ' it.'
      )


def modules(spec: spec_lib.RunSpec) -> list[str]:
  """Returns the modules of others that a spec names."""
  names = [spec.method.name, spec.model.name]
  return [n for n in names if n and trust.is_name(n) and not _is_of_us(n)]


def _is_of_us(name: str) -> bool:
  # A module of others may be imported already, and its method registered.
  method = methods.find(name)
  is_method = method is not None and trust.is_ours(method.__module__)
  return is_method or name in building.MODELS


def check_modules(specs: Iterable[spec_lib.RunSpec], source: str) -> None:
  """Raises unless all modules that specs name are typed, or trusted.

  Args:
    specs: The specs of all runs that may be made.
    source: What names the modules.

  Raises:
    UntrustedCodeError: If only a file names a module, without --trust_code.
  """
  for name in dict.fromkeys(name for spec in specs for name in modules(spec)):
    trust.check(name, source, trust_flags.trusts([name]))


def trusts(spec: spec_lib.RunSpec) -> bool:
  """Returns whether the modules that a spec names may be imported."""
  return trust_flags.trusts(modules(spec))
