from pda_fed import methods
from pda_fed.compare import styles
from pda_fed.methods import base

_NAMES = ['cold', 'warm', 'pda', 'semi_dp', 'dope', 'adadps']


def test_tables_have_one_order():
  found = styles.in_order({*_NAMES, 'unknown', 'another'})
  assert found == [*_NAMES, 'another', 'unknown']


def test_every_method_has_a_colour_of_its_own(monkeypatch):
  for name in ('mine', 'yours'):
    monkeypatch.setitem(base.REGISTRY, name, methods.WarmStart)
  names = [*_NAMES, 'mine', 'yours', 'not installed here']
  assert len({styles.colour(name) for name in names}) == len(names)
