"""The order and the colours of methods in tables and figures."""

from collections.abc import Iterable

from pda_fed import methods

# In the order of tables.
_COLOURS = {
  'cold': '#5b8def',
  'warm': '#e08e2b',
  'pda': '#2fa37c',
  'semi_dp': '#b05cc6',
  'dope': '#d64550',
  'adadps': '#8c6d46',
}
# Of methods of others.
_OTHERS = ('#c2185b', '#00838f', '#7cb342', '#5d4037', '#f9a825', '#37474f')
_UNKNOWN = '0.5'


def in_order(some: Iterable[str]) -> list[str]:
  """Returns names in the order of tables; other methods come last.

  Args:
    some: Names of methods.
  """
  places = {name: place for place, name in enumerate(_COLOURS)}
  return sorted(some, key=lambda name: (places.get(name, len(places)), name))


def colour(method: str) -> str:
  """Returns a method's colour in figures, in matplotlib's format.

  Args:
    method: The method's name in results.
  """
  others = [name for name in methods.names() if name not in _COLOURS]
  if method in others:
    return _OTHERS[others.index(method) % len(_OTHERS)]
  return _COLOURS.get(method, _UNKNOWN)
