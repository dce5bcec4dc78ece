"""What people see of a store, and are told if it is of little use."""

import warnings

from data_prep import build
from data_prep import sources
from data_prep import summary
import pytest


def test_summary(small_store):
  text = summary.format_summary(small_store.manifest)
  lines = text.splitlines()
  assert lines[0].split() == (
    'users number sentences fewest median most unknown words'.split()
  )
  assert [line.split()[0] for line in lines[2:6]] == list(small_store.groups)
  assert lines[2].split()[1] == str(len(small_store.users('private')))
  share = small_store.manifest['vocabulary']['unknown_share']['private']
  assert lines[2].split()[-1] == f'{share:.1%}'
  assert 'sentences beyond the cut' in text
  assert 'Vocabulary: 1,000 words, origin generator. Covered:' in text
  assert small_store.manifest['public_users_sha256'] in text


def test_public_users_who_did_not_opt_in_are_named(small_store):
  manifest = small_store.manifest
  drawn = manifest['settings']['num_public_users']
  assert drawn > 0
  said = f'{drawn} public users are later sentences of private users.'
  assert said in summary.format_summary(manifest)
  settings = {**manifest['settings'], 'num_public_users': 0}
  text = summary.format_summary({**manifest, 'settings': settings})
  assert 'later sentences' not in text


def test_notes_of_the_source(small_store):
  notes = {'sites in several folders': [f's{i}' for i in range(21)]}
  text = summary.format_summary({**small_store.manifest, 'source_notes': notes})
  assert '21 sites in several folders: s0, s1,' in text
  assert 's19, ....' in text
  one = {**small_store.manifest, 'source_notes': {'files read': ['a']}}
  assert '1 file read: a.' in summary.format_summary(one).splitlines()


def test_a_group_without_users(small_store):
  groups = {'test': {'users': 0, 'sentences': 0, 'sentences_per_user': {}}}
  vocabulary = {
    **small_store.manifest['vocabulary'],
    'unknown_share': {'test': None},
  }
  text = summary.format_summary(
    {**small_store.manifest, 'groups': groups, 'vocabulary': vocabulary}
  )
  assert text.splitlines()[2].split() == ['test', '0', '0', *'----']


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
    summary.warn_of_unknown_words, _vocabulary(private, validation)
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
  (found,) = _messages(summary.warn_of_empty_groups, manifest)
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
