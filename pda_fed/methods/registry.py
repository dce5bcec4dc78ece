"""Methods by name."""

from typing import Optional

from pda_fed import errors
from pda_fed.common import trust
from pda_fed.methods import base


def names() -> list[str]:
  """Returns the names of all methods.

  Example:

    >>> names()[:3]
    ['adadps', 'cold', 'dope']
  """
  return sorted(base.REGISTRY)


def find(name: str) -> Optional[type[base.Method]]:
  """Returns the method of this name; None if no loaded file defines it.

  Results may come from a method that is not installed here.

  Example:

    >>> find('unknown') is None
    True

  Args:
    name: The method's name in results.
  """
  return base.REGISTRY.get(name)


def title(name: str) -> str:
  """Returns the title of a method, or its name if it is not loaded.

  Example:

    >>> title('pda'), title('unknown')
    ('PDA-DPMD', 'unknown')

  Args:
    name: The method's name in results.
  """
  method = find(name)
  return method.title if method else name


def get(name: str, *, trust_code: bool = False) -> type[base.Method]:
  """Returns the method of this name or module.

  Example:

    >>> get('pda').title
    'PDA-DPMD'

  Args:
    name: A name of `names()`, or a module such as my_package.my_method, which
      must define one method.
    trust_code: Whether to import the module if it is not imported yet, which
      runs its code.

  Raises:
    UntrustedCodeError: If the module is neither imported nor trusted.
    ValueError: If there is no such method.
  """
  if name in base.REGISTRY:
    return base.REGISTRY[name]
  wrong = (
    f'method must be one of {", ".join(names())}, or a module such as'
    f' my_package.my_method. Found {name!r}'
  )
  try:
    module = trust.import_named(name, 'method', trust_code)
  except errors.UntrustedCodeError as e:
    raise errors.UntrustedCodeError(
      f'{wrong}, which is not imported yet: that would run its code. If you'
      ' trust it, give --trust_code (in Python, trust_code=True).'
    ) from e
  except (ImportError, TypeError, ValueError) as e:
    raise ValueError(f'{wrong}: {e}.') from e
  found = [m for m in base.REGISTRY.values() if m.__module__ == module.__name__]
  if len(found) != 1:
    raise ValueError(
      f'{name} must define one subclass of methods.Method with a name. Found'
      f' {len(found)}.'
    )
  return found[0]
