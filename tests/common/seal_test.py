"""Checksums inside of JSON."""

import json

from pda_fed.common import seal
import pytest


def test_what_is_sealed_comes_back():
  fields = {'b': (1, 2.5), 'a': {'x': None, 'y': 'ü'}, 'n': 10**30}
  sealed = json.loads(json.dumps(seal.seal(fields)))
  assert seal.unseal(sealed) == {**fields, 'b': [1, 2.5]}


@pytest.mark.parametrize(
  'change',
  [
    {'a': 2},
    {'a': 1.0},
    {'a': True},
    {'b': 1},
    {'sha256': '0' * 64},
    {'sha256': None},
  ],
)
def test_what_was_changed_is_refused(change):
  sealed = seal.seal({'a': 1})
  with pytest.raises(ValueError, match='sha256 must match the other'):
    seal.unseal({**sealed, **change})


def test_a_checksum_is_required():
  with pytest.raises(ValueError, match='sha256 must be given'):
    seal.unseal({'a': 1})
