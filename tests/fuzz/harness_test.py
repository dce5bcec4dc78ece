"""The engine of the fuzz tests finds what it is there to find."""

import json
import random
import struct

from data_prep import errors
import pytest

from tests.fuzz import harness
from tests.fuzz import mutations

_WHOLE = {'a': [1, 2.5], 'b': 'x'}


def _run(load, folder, **fields):
  target = harness.Target(
    write=lambda f: (f / 'numbers.json').write_text(json.dumps(_WHOLE)),
    load=load,
    **fields,
  )
  harness.run(target, folder, 300)


def _load(folder):
  path = folder / 'numbers.json'
  try:
    return json.loads(path.read_text())
  except (OSError, RecursionError, ValueError) as e:
    raise errors.SourceError(f'{path}: {e}') from e


def _load_carefully(folder):
  found = _load(folder)
  if json.dumps(found) != json.dumps(_WHOLE):
    raise errors.SourceError(f'numbers.json: {found!r}')
  return found


def _load_without_name(folder):
  try:
    return _load_carefully(folder)
  except errors.SourceError as e:
    raise errors.SourceError('It is damaged.') from e


def test_a_careful_loader_passes(tmp_path):
  _run(_load_carefully, tmp_path, must_find=0.8)


@pytest.mark.parametrize(
  ('load', 'words'),
  [
    (lambda f: json.loads((f / 'numbers.json').read_text()), 'error of ours'),
    (lambda f: struct.unpack('>i', b'') if f else None, 'unpack requires'),
    (_load, 'seed .*a wrong result'),
    (_load_without_name, 'does not name the file'),
  ],
)
def test_bugs_are_found(tmp_path, load, words):
  with pytest.raises((AssertionError, struct.error), match=words):
    _run(load, tmp_path)


def test_a_loader_that_finds_little_is_found(tmp_path):
  with pytest.raises(AssertionError, match=' of 300 found'):
    _run(_load, tmp_path, check=harness.anything, must_find=0.9)


def test_a_seed_repeats_a_damage_and_damages_differ():
  data, text = bytes(range(256)) * 4, json.dumps(_WHOLE).encode()
  for mutate in (mutations.mutate_bytes, mutations.mutate_json):
    of = data if mutate is mutations.mutate_bytes else text
    first, again = (
      [mutate(random.Random(seed), of) for seed in range(500)] for _ in 'ab'
    )
    assert first == again
    assert len(set(first)) > 100
