"""What people see of a store."""

from data_prep import summary


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
