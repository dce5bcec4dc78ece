"""Flags of settings: generated from the fields of a dataclass.

    setting_flags.define(Config)
    ...
    config = setting_flags.make(Config)

Name, type, choices and help stand beside the field; see `common.settings`.
"""

from collections.abc import Mapping
from typing import Any, get_origin, Optional

from absl import flags
from pda_fed.common import settings
from pda_fed.common import typed


def define(cls: type, *, shows_defaults: bool = True) -> None:
  """Defines the flags of all settings of a class.

  Args:
    cls: A dataclass of settings and groups.
    shows_defaults: Whether the help names the default values.
  """
  for name, leaf in settings.by_name(cls).items():
    if name in flags.FLAGS:
      continue
    text, default = leaf.help, leaf.default
    is_named = isinstance(default, settings.Choice)
    if shows_defaults and default not in (None, ()) and not is_named:
      text += f' Default: {_shown(default)}.'
    choices = [choice for choice in leaf.choices or () if choice is not None]
    if leaf.type is bool:
      flags.DEFINE_bool(name, None, text)
    elif leaf.hint in (int, float):
      define_number = {int: flags.DEFINE_integer, float: flags.DEFINE_float}
      define_number[leaf.type](name, None, text)
    elif choices:
      flags.DEFINE_string(name, None, f'<{"|".join(choices)}>: {text}')
    elif leaf.type in (int, float):  # 'none' removes a value of a preset.
      text += f'\n({typed.describe_type(leaf.hint)})'
      flags.DEFINE_string(name, None, text)
    elif get_origin(leaf.type) is list:  # Given once for each.
      flags.DEFINE_multi_string(name, None, text)
    else:
      flags.DEFINE_string(name, None, text)


def _shown(value: Any) -> str:
  if isinstance(value, tuple):
    return ','.join(map(_shown, value))
  return f'{value:g}' if isinstance(value, float) else str(value)


def parsed(leaf: settings.Leaf, value: Any) -> Any:
  """Returns a flag's value as a JSON value."""
  if not isinstance(value, str) or leaf.type in (str, settings.Choice):
    return value
  try:
    return settings.parse(value, leaf.hint)
  except ValueError as e:
    raise ValueError(f'{leaf.name} {e}') from e


def given(cls: type) -> dict[str, Any]:
  """Returns the settings of a class that flags give, as JSON values by name.

  Args:
    cls: A dataclass of settings and groups.
  """
  return {
    name: parsed(leaf, flags.FLAGS[name].value)
    for name, leaf in settings.by_name(cls).items()
    if flags.FLAGS[name].value is not None
  }


def make(cls: Any, values: Optional[Mapping[str, Any]] = None) -> Any:
  """Returns the settings of a class that flags give.

  Args:
    cls: A dataclass of settings.
    values: Values of its fields, instead of those of flags.

  Raises:
    ValueError: If a value is invalid or of another type.
  """
  try:
    return cls(**(given(cls) if values is None else values))
  except TypeError as e:
    raise ValueError(str(e)) from e
