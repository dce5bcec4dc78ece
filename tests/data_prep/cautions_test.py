"""Stores that can be written and are of little use: what is said of them."""

import warnings

from data_prep import build
from data_prep import cautions
from data_prep import sources
import pytest


def _messages(function, *arguments):
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    function(*arguments)
  return [str(warning.message) for warning in caught]


def _vocabulary(private, validation):
  shares = {'private': private, 'public': 0.9, 'validation': validation}
  return {'size': 2000, 'unknown_share': shares}


@pytest.mark.parametrize(
  ('private', 'validation', 'start'),
  [
    (0.3, 0.3, None),
    (0.301, 0.9, '30% of the words of private users'),
    (0.1, 0.45, '45% of the words of validation users'),
    (0.1, None, None),
  ],
)
def test_many_unknown_words(private, validation, start):
  found = _messages(
    cautions.warn_of_unknown_words, _vocabulary(private, validation)
  )
  assert len(found) == (start is not None)
  if start is not None:
    assert found[0].startswith(start)
    assert '2,000 words' in found[0]
    assert '--vocabulary_size' in found[0]


@pytest.mark.parametrize(
  ('by', 'advice'),
  [
    ('hash', 'Use a larger --validation_fraction'),
    ('split', 'own split has none'),
  ],
)
def test_no_validation_users(by, advice):
  manifest = {
    'groups': {'validation': {'users': 0}, 'test': {'users': 1}},
    'held_out_by': {'validation': by, 'test': by},
  }
  (found,) = _messages(cautions.warn_of_empty_groups, manifest)
  assert found.startswith('There are no validation users')
  assert advice in found


def _prepare(folder, lines, config):
  (folder / 'x.jsonl').write_text(lines)
  source = sources.open_source(f'jsonl:{folder}/x.jsonl')
  return _messages(build.prepare, source, folder / 'out', config)


def test_a_store_says_all_of_it_once(tmp_path, make_config):
  good = '{"user": "a", "text": "fine words, words"}\n'
  found = _prepare(
    tmp_path,
    good * 100 + '{"text": "mine"}\n',
    make_config(size=1, num_public_users=0),
  )
  faulty, unknown, validation, test = found
  assert faulty == (
    'jsonl:x.jsonl: 1 of 101 rows are faulty and were skipped. The first is'
    ' x.jsonl, line 101: it has no key "user", its keys are "text".'
  )
  assert unknown.startswith('50% of the words of private users')
  assert 'no validation users' in validation
  assert 'no test users' in test
