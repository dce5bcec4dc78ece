"""Who is private, public, validation and test."""

from data_prep import assignment
from data_prep import partition
from data_prep.sources import base
import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest


class _Counts(base.Source):
  """A source of counts, which must never be asked for a sentence."""

  def __init__(self, splits):
    super().__init__('counts')
    self._splits = {
      split: dict(sorted(users.items())) for split, users in splits.items()
    }
    self.splits = tuple(splits)

  def users(self, split):
    users = self._splits[split]
    return base.UserCounts(
      ids=tuple(users), num_sentences=np.array(list(users.values()), np.int64)
    )

  def sentences(self, user, split, start, stop):
    raise AssertionError('A sentence was read.')


def _assign(splits, public_user_ids=(), holdout=None, **settings):
  settings = {'seed': 0, 'num_public_users': 0, **settings}
  return assignment.assign_users(
    _Counts(splits),
    partition.PartitionConfig(**settings),
    holdout or assignment.HoldoutConfig(),
    public_user_ids,
  )


_NOBODY = assignment.HoldoutConfig(validation_fraction=0, test_fraction=0)


def _rows(group):
  columns = (group.names, group.ids, group.start.tolist(), group.stop.tolist())
  return list(zip(*columns, strict=True))


def test_by_hand():
  sizes = [1, 255, 256, 257, 512, 513, 2000]
  users = {f'u{size:04}': size for size in sizes}
  plan = _assign({'train': users}, holdout=_NOBODY, num_public_users=4)
  assert _rows(plan.groups['private']) == [
    (f'u{size:04}', f'u{size:04}', 0, min(size, 256)) for size in sizes
  ]
  assert _rows(plan.groups['public']) == [
    ('u0257#overflow', 'u0257', 256, 257),
    ('u0512#overflow', 'u0512', 256, 512),
    ('u0513#overflow', 'u0513', 256, 512),
    ('u2000#overflow', 'u2000', 256, 512),
  ]
  assert plan.left_out['sentences beyond the cut'] == 1 + 1488
  assert plan.num_sentences == 1 + 255 + 5 * 256 + 1 + 3 * 256


def test_splits_of_the_source_are_held_out():
  plan = _assign(
    {
      'train': {'a': 300, 'b': 2},
      'heldout': {'c': 300, 'd': 0},
      # In TFF's data the test split holds later text of train users.
      'test': {'a': 9, 'c': 9, 'e': 4},
    }
  )
  assert plan.held_out_by == {'validation': 'split', 'test': 'split'}
  assert _rows(plan.groups['validation']) == [('c', 'c', 0, 256)]
  assert _rows(plan.groups['test']) == [('e', 'e', 0, 4)]
  assert plan.groups['validation'].split == 'heldout'
  assert plan.left_out['test users who are in another group'] == 2
  assert plan.left_out['users without a sentence'] == 1
  assert plan.left_out['sentences beyond the cut'] == 300 - 256
  assert plan.left_out['overflow users that were not drawn'] == 1


def test_a_missing_split_is_drawn_by_hash():
  users = {f'u{i}': 3 for i in range(1000)}
  plan = _assign({'train': users, 'heldout': {'v': 1}})
  assert plan.held_out_by == {'validation': 'split', 'test': 'hash'}
  assert plan.groups['validation'].names == ('v',)
  assert 20 < len(plan.groups['test']) < 90
  assert plan.groups['test'].split == 'train'


def test_the_hash_depends_on_the_id_alone():
  users = {f'u{i}': 300 for i in range(2000)}
  more = {**users, **{f'x{i}': 5 for i in range(1000)}}
  first = _assign({'train': users}, num_public_users=9)
  other = _assign({'train': more}, num_public_users=9, seed=1)
  for name in ('validation', 'test'):
    kept = [u for u in other.groups[name].names if u in users]
    assert kept == list(first.groups[name].names)
    assert 60 < len(kept) < 140  # Of a binomial with mean 100.
  # Another seed makes others public and leaves the rest as it is.
  public = [set(plan.groups['public'].ids) for plan in (first, other)]
  assert public[0] != public[1]


def test_people_who_opted_in():
  users = {f'u{i:03}': 300 for i in range(200)}
  everybody_held_out = assignment.HoldoutConfig(
    validation_fraction=0.5, test_fraction=0.4
  )
  ids = ['u007', 'u100', 'u003']
  plan = _assign({'train': users}, ids, holdout=everybody_held_out)
  assert _rows(plan.groups['public']) == [
    (user, user, 0, 256) for user in sorted(ids)
  ]
  for name in ('private', 'validation', 'test'):
    assert not set(ids) & set(plan.groups[name].ids)


@pytest.mark.parametrize(
  ('ids', 'words'),
  [
    (['a', 'nobody', 'x'], "Found 2 that are not, such as 'nobody'"),
    (['v'], "Found 1 that are not, such as 'v'"),  # A validation user.
    (['a', 'a'], "Found 'a' more than once"),
  ],
)
def test_bad_public_user_ids(ids, words):
  splits = {'train': {'a': 3, 'b': 3}, 'heldout': {'v': 3}}
  with pytest.raises(ValueError, match=f'public_user_ids .*{words}'):
    _assign(splits, ids, holdout=_NOBODY)


def test_too_many_public_users():
  with pytest.raises(ValueError, match=r'num_public_users .* at most 1,.* 2\.'):
    _assign({'train': {'a': 300, 'b': 3}}, holdout=_NOBODY, num_public_users=2)


@pytest.mark.parametrize('user', ['', 'a#overflow'])
def test_ids_that_would_be_ambiguous(user):
  with pytest.raises(ValueError, match=f"user ids .*Found '{user}'"):
    _assign({'train': {user: 3, 'a': 3}}, holdout=_NOBODY)


def test_nobody_is_private():
  with pytest.raises(ValueError, match='counts: there must be a private user'):
    _assign({'train': {'a': 0}}, holdout=_NOBODY)


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    ({'validation_fraction': -0.1}, 'validation_fraction .* Found -0.1'),
    ({'test_fraction': 1.5}, 'test_fraction .* Found 1.5'),
    (
      {'validation_fraction': 0.5, 'test_fraction': 0.5},
      r'validation_fraction and test_fraction .* in \[0, 1\)\. Found 1\.0',
    ),
  ],
)
def test_bad_holdout(settings, words):
  with pytest.raises(ValueError, match=words):
    assignment.HoldoutConfig(**settings)


_USERS = st.dictionaries(
  st.text(st.sampled_from('ab!#z'), min_size=1, max_size=4),
  st.integers(0, 12),
  min_size=1,
  max_size=25,
)


@hypothesis.given(
  train=_USERS,
  heldout=st.none() | _USERS,
  test=st.none() | _USERS,
  keep=st.booleans(),
  draw=st.integers(0, 2**32),
)
def test_properties(train, heldout, test, keep, draw):
  splits = {'train': train, 'heldout': heldout, 'test': test}
  splits = {name: users for name, users in splits.items() if users is not None}
  rng = np.random.default_rng(draw)
  opted_in = [u for u, n in train.items() if n and rng.random() < 0.2]
  try:
    plan = _assign(
      splits,
      opted_in,
      holdout=assignment.HoldoutConfig(
        validation_fraction=0.2, test_fraction=0.2
      ),
      max_sentences=4,
      keep_overflow_users=keep,
      seed=draw,
    )
  except ValueError as e:
    assert 'there must be a private user' in str(e)
    return
  groups = plan.groups
  people = {name: set(group.ids) for name, group in groups.items()}
  for one, other in (
    ('private', 'validation'),
    ('private', 'test'),
    ('public', 'validation'),
    ('public', 'test'),
    ('validation', 'test'),
  ):
    assert not people[one] & people[other]
  # Whoever opted in is public and nothing else.
  assert set(opted_in) <= people['public']
  assert not set(opted_in) & people['private']
  names = [name for group in groups.values() for name in group.names]
  assert len(set(names)) == len(names)
  sentences = set()
  for group in groups.values():
    assert list(group.names) == sorted(group.names)
    for _, user, start, stop in _rows(group):
      mine = {(group.split, user, i) for i in range(start, stop)}
      assert 0 < len(mine) <= 4
      assert stop <= splits[group.split][user]
      assert not mine & sentences  # No sentence is in two users.
      sentences |= mine
  # By the flag alone, even if nobody is held twice.
  assert plan.max_private_users_per_person == (2 if keep else 1)
  held_twice = len(groups['private']) > len(people['private'])
  assert keep or not held_twice


def test_the_size_of_stackoverflow_needs_only_counts():
  # 342,477 users. No time is checked here, only that nothing is read; the
  # benchmark has the seconds.
  users = {f'{i:08}': 100 + i % 700 for i in range(342_477)}
  plan = _assign({'train': users}, num_public_users=100)
  assert len(plan.groups['public']) == 100
  assert len(plan.groups['private']) > 300_000
