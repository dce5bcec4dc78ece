"""JSON values as typed values."""

from collections.abc import Mapping
import dataclasses
from typing import Any, Literal, Optional

import numpy as np
from pda_fed.common import typed
import pytest


@dataclasses.dataclass
class _Inner:
  size: int
  kind: Literal['a', 'b'] = 'a'


@dataclasses.dataclass
class _Outer:
  inner: Optional[_Inner]
  names: tuple[str, ...]
  metrics: dict[str, Optional[float]] = dataclasses.field(default_factory=dict)


def test_objects_become_dataclasses():
  content = {
    'inner': {'size': 3, 'kind': 'b'},
    'names': ['x', 'y'],
    'metrics': {'loss': 1, 'accuracy': None},
  }
  found = typed.from_json(_Outer, content)
  assert found.inner == _Inner(3, 'b')
  assert found.names == ('x', 'y')
  assert isinstance(found.metrics['loss'], float)
  assert typed.as_json(found) == content


@pytest.mark.parametrize(
  'content, words',
  [
    (3, 'it must be an object. Found 3'),
    ({'names': []}, 'it must have the field inner'),
    ({'inner': None, 'names': [], 'metric': 1}, 'metric .* mean metrics'),
    ({'inner': {'size': '3'}, 'names': []}, 'inner.size must be an integer'),
    ({'inner': {'size': 3, 'kind': 'c'}, 'names': []}, "one of 'a', 'b'"),
    ({'inner': {'siz': 3}, 'names': []}, 'inner.siz .* mean inner.size|size'),
    ({'inner': None, 'names': 'xy'}, 'names must be a list'),
    ({'inner': None, 'names': [3]}, 'names must be a text'),
    ({'inner': None, 'names': [], 'metrics': {'a': 'x'}}, 'metrics.a must be'),
    ({'inner': [], 'names': []}, 'inner must be an object or none'),
  ],
)
def test_what_has_other_fields_or_types(content, words):
  with pytest.raises((TypeError, ValueError), match=words):
    typed.from_json(_Outer, content)


def test_numbers():
  assert typed.cast(np.int64(3), int, 'x') == 3
  assert typed.cast(3, Optional[float], 'x') == 3.0
  for value in (True, float('inf'), '3', None):
    with pytest.raises(TypeError, match='x must be a finite number'):
      typed.cast(value, float, 'x')
  assert typed.cast({'a': [1]}, Mapping[str, Any], 'x') == {'a': [1]}
