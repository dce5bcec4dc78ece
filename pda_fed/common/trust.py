"""Modules that files name: importing one runs its code."""

import importlib
import sys
import types

from pda_fed import errors


def is_name(text: str) -> bool:
  """Returns whether a text is the full name of a module.

  Example:

    >>> is_name('my_package.my_model'), is_name('wrn-16-4'), is_name('x..y')
    (True, False, False)

  Args:
    text: Any text.
  """
  return all(map(str.isidentifier, text.split('.')))


def is_ours(module: str) -> bool:
  """Returns whether a name is that of a module inside this package.

  Example:

    >>> is_ours('pda_fed.methods.dope'), is_ours('pda_fed..x'), is_ours('x')
    (True, False, False)

  Args:
    module: Full name of a module.
  """
  return module.startswith('pda_fed.') and is_name(module)


def check(module: str, source: str, trust_code: bool) -> None:
  """Raises unless a module may be imported.

  Args:
    module: Full name of the module.
    source: What names the module, such as the path of a file.
    trust_code: Whether the user trusts the code that `source` names.

  Raises:
    UntrustedCodeError: If the module is neither ours nor trusted.
  """
  if not trust_code and not is_ours(module):
    raise errors.UntrustedCodeError(
      f'{source} names the Python module {module!r}, and importing it runs its'
      ' code. Read it. If you trust it, give --trust_code (in Python,'
      ' trust_code=True).'
    )


def import_named(
  module: str, source: str, trust_code: bool
) -> types.ModuleType:
  """Imports a module that a file names, if the user trusts it.

  A module that is imported already has run its code, and is returned.

  Args:
    module: Full name of the module.
    source: What names the module, such as the path of a file.
    trust_code: Whether the user trusts the code that `source` names.

  Raises:
    ImportError: If the module cannot be imported.
    UntrustedCodeError: If the module is neither ours nor trusted.
    ValueError: If this is not the name of a module.
  """
  if module in sys.modules:
    return sys.modules[module]
  if not is_name(module):
    raise ValueError(f'{module!r} is not the name of a module')
  check(module, source, trust_code)
  return importlib.import_module(module)
