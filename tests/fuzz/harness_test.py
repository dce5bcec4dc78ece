"""The engine of the fuzz tests finds what it is there to find."""

import json

from data_prep import errors
import pytest

from tests.fuzz import harness

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
  ('load', 'fields', 'words'),
  [
    (
      lambda f: json.loads((f / 'numbers.json').read_text()),
      {'check': harness.anything},
      'not an error of ours',
    ),
    (_load, {}, 'seed .*a wrong result'),
    (_load_without_name, {}, 'does not name the file'),
    (_load, {'check': harness.anything, 'must_find': 0.9}, ' of 300 found'),
  ],
)
def test_bugs_are_found(tmp_path, load, fields, words):
  with pytest.raises(AssertionError, match=words):
    _run(load, tmp_path, **fields)
