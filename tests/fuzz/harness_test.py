"""The engine of the fuzz tests finds what it is there to find."""

import json
import random
import struct

from data_prep import errors
import pytest

from tests.fuzz import harness
from tests.fuzz import mutations


def _target(load, check=harness.equal):
  def write(folder):
    (folder / 'numbers.json').write_text(json.dumps({'a': [1, 2.5], 'b': 'x'}))

  return harness.Target(write=write, load=load, check=check)


def _load_carefully(folder):
  path = folder / 'numbers.json'
  try:
    found = json.loads(path.read_text())
  except (OSError, RecursionError, ValueError) as e:
    raise errors.SourceError(f'{path}: {e}') from e
  if json.dumps(found) != json.dumps({'a': [1, 2.5], 'b': 'x'}):
    raise errors.SourceError(f'{path}: {found!r}')
  return found


def test_a_careful_loader_passes(tmp_path):
  assert harness.run(_target(_load_carefully), tmp_path, 300) > 250


@pytest.mark.parametrize(
  ('load', 'words'),
  [
    (lambda f: json.loads((f / 'numbers.json').read_text()), 'error of ours'),
    (lambda f: struct.unpack('>i', b'') if f else None, 'unpack requires'),
  ],
)
def test_errors_of_others_are_found(tmp_path, load, words):
  with pytest.raises((AssertionError, struct.error), match=words):
    harness.run(_target(load), tmp_path, 300)


def test_wrong_results_are_found(tmp_path):
  def load(folder):
    try:
      return json.loads((folder / 'numbers.json').read_text())
    except (OSError, RecursionError, ValueError) as e:
      raise errors.SourceError('numbers.json') from e

  with pytest.raises(AssertionError, match='seed .*a wrong result'):
    harness.run(_target(load), tmp_path, 300)


def test_messages_without_a_name_are_found(tmp_path):
  def load(folder):
    try:
      return _load_carefully(folder)
    except errors.SourceError as e:
      raise errors.SourceError('It is damaged.') from e

  with pytest.raises(AssertionError, match='does not name the file'):
    harness.run(_target(load), tmp_path, 300)


def test_a_seed_repeats_a_damage():
  data = bytes(range(256)) * 4
  text = json.dumps({'a': [1, {'b': None}], 'c': 'x'}).encode()
  for seed in range(200):
    one, other = random.Random(seed), random.Random(seed)
    assert mutations.mutate_bytes(one, data) == mutations.mutate_bytes(
      other, data
    )
    assert mutations.mutate_json(one, text) == mutations.mutate_json(
      other, text
    )


def test_damages_differ():
  data = bytes(range(256)) * 4
  found = {mutations.mutate_bytes(random.Random(i), data) for i in range(500)}
  assert len(found) > 400 and None in found
