"""Methods by name."""

from collections.abc import Iterable
import importlib
from typing import Optional

from pda_fed.methods import base


def names() -> list[str]:
  """Returns the names of all methods, in the order of tables.

  Example:

    >>> names()[:3]
    ['cold', 'warm', 'pda']
  """
  return in_order(base.REGISTRY)


def in_order(some: Iterable[str]) -> list[str]:
  """Returns names in the order of tables; unknown names come last.

  Example:

    >>> in_order(['unknown', 'pda', 'cold'])
    ['cold', 'pda', 'unknown']

  Args:
    some: Names of methods.
  """
  return sorted(some, key=lambda n: ((find(n) or base.Method).order, n))


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


def get(name: str) -> type[base.Method]:
  """Returns the method of this name or module.

  Example:

    >>> get('pda').title
    'PDA-DPMD'

  Args:
    name: A name of `names()`, or a module such as my_package.my_method, which
      is imported and must define one method.

  Raises:
    ValueError: If there is no such method.
  """
  if name in base.REGISTRY:
    return base.REGISTRY[name]
  try:
    module = importlib.import_module(name)
  except (ImportError, TypeError, ValueError) as e:
    raise ValueError(
      f'method must be one of {", ".join(names())}, or a module such as'
      f' my_package.my_method. Found {name!r}: {e}.'
    ) from e
  found = [m for m in base.REGISTRY.values() if m.__module__ == module.__name__]
  if len(found) != 1:
    raise ValueError(
      f'{name} must define one subclass of methods.Method with a name. Found'
      f' {len(found)}.'
    )
  return found[0]
