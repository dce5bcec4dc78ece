"""Who is private, public, validation and test."""

import collections
import hashlib
import sys

from data_prep import assignment
from data_prep.sources import base
import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest


def _config(**overrides):
  settings = {'seed': 0, 'num_public_users': 0, **overrides}
  return assignment.PartitionConfig(**settings)


def _rows(group):
  columns = (group.names, group.ids, group.start.tolist(), group.stop.tolist())
  return list(zip(*columns, strict=True))


class TestPartition:
  def test_draw_is_pinned(self):
    # A changed draw would silently change the data of runs made before.
    pinned = [75, 328, 760, 802, 940]
    counts = {str(i): 300 for i in range(1000)}
    config = _config(seed=1, num_public_users=5)
    result = assignment.partition_users(counts, config)
    assert sorted(map(int, result.public.ids)) == pinned
    # By hashlib alone.
    hashes = {
      i: hashlib.blake2b(
        b'1:str:%d' % i, digest_size=16, person=b'pda_fed public'
      ).digest()
      for i in range(1000)
    }
    assert sorted(sorted(hashes, key=hashes.get)[:5]) == pinned
    # Nor does the order of users matter.
    counts = {str(i): 300 for i in reversed(range(1000))}
    again = assignment.partition_users(counts, config)
    assert again.public.ids == result.public.ids

  def test_a_lone_surrogate_is_an_id(self):
    counts = dict.fromkeys(['\ud800', '\udfff'], 300)
    config = _config(num_public_users=1)
    assert len(assignment.partition_users(counts, config).public) == 1

  def test_every_overflow_user_is_equally_likely(self):
    counts = {str(i): 300 for i in range(10)}
    drawn = collections.Counter()
    for seed in range(1000):
      config = _config(seed=seed, num_public_users=3)
      drawn.update(assignment.partition_users(counts, config).public.ids)
    # Binomial with mean 300 and standard deviation 14.5.
    assert all(abs(drawn[user] - 300) < 5 * 14.5 for user in counts)

  @pytest.mark.parametrize(
    ('counts', 'number', 'advice'),
    [
      ([7, 1, 9, 0, 5], 2, 'users=2 with max_sentences=3 is possible'),
      ([7, 1, 9, 0, 5], 3, 'users=3 with max_sentences=2 is possible'),
      # One sentence leaves none over: fewer users, then.
      ([7, 1, 9, 0, 5], 4, 'users=1 with max_sentences=4 is possible'),
      ([7, 1, 9, 0, 5], 6, 'users=1 with max_sentences=4 is possible'),
      ([1, 1, 0], 1, 'No user has two sentences'),
    ],
  )
  def test_more_public_users_than_overflow_users(self, counts, number, advice):
    words = f'must be at most 0: .* Found {number}. .*{advice}; or name users'
    config = _config(num_public_users=number, max_sentences=99)
    with pytest.raises(ValueError, match=words):
      assignment.partition_users(
        {f'u{i}': n for i, n in enumerate(counts)}, config
      )

  @pytest.mark.parametrize(
    'max_sentences', [assignment.NO_LIMIT, sys.maxsize, 10**30]
  )
  def test_unlimited_sentences(self, max_sentences):
    config = _config(max_sentences=max_sentences)
    result = assignment.partition_users({'a': 5, 'b': 10**6}, config)
    assert _rows(result.private) == [('a', 'a', 0, 5), ('b', 'b', 0, 10**6)]
    assert not any(result.left_out.values())

  @pytest.mark.parametrize(
    ('counts', 'opted_in', 'error', 'message'),
    [
      ({'a': 1.0}, [], TypeError, 'num_sentences .* integer'),
      ({'a': True}, [], TypeError, 'num_sentences .* integer'),
      ({'a': -1}, [], ValueError, 'num_sentences .* Found -1'),
      ({None: 1}, [], TypeError, 'user ids must be strings. Found None'),
      ({'a': 1, 'b': 0}, ['b'], ValueError, "public_user_ids .* 1 .*'b'"),
      ({'a': 1}, ['a', 'x', 'y'], ValueError, "public_user_ids .* 2 .*'x'"),
    ],
  )
  def test_bad_users(self, counts, opted_in, error, message):
    with pytest.raises(error, match=message):
      assignment.partition_users(counts, _config(), opted_in=opted_in)

  @pytest.mark.parametrize(
    ('overrides', 'error', 'message'),
    [
      ({'seed': -1}, ValueError, 'seed must be .*Found -1'),
      ({'seed': None}, TypeError, 'seed must be an integer. Found None'),
      ({'max_sentences': 0}, ValueError, 'max_sentences .*1.* Found 0'),
      ({'max_sentences': 2.5}, TypeError, 'max_sentences .* Found 2.5'),
      ({'num_public_users': -1}, ValueError, 'num_public_users .*Found -1'),
    ],
  )
  def test_bad_config(self, overrides, error, message):
    with pytest.raises(error, match=message):
      _config(**overrides)


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


_NOBODY = assignment.HoldoutConfig(validation_fraction=0, test_fraction=0)


def _assign(splits, public_user_ids=(), holdout=_NOBODY, **settings):
  return assignment.assign_users(
    _Counts(splits), _config(**settings), holdout, public_user_ids
  )


def test_by_hand():
  sizes = [1, 255, 256, 257, 512, 513, 2000]
  users = {f'u{size:04}': size for size in sizes}
  private = [
    (f'u{size:04}', f'u{size:04}', 0, min(size, 256)) for size in sizes
  ]
  # The defaults are the paper's.
  assert assignment.PartitionConfig(seed=0).max_sentences == 256
  assert assignment.PartitionConfig(seed=0).num_public_users == 100
  for number in (0, 4):
    plan = _assign({'train': {**users, 'z': 0}}, num_public_users=number)
    assert _rows(plan.groups['private']) == private
    assert (
      _rows(plan.groups['public'])
      == [
        ('u0257#overflow', 'u0257', 256, 257),
        ('u0512#overflow', 'u0512', 256, 512),
        ('u0513#overflow', 'u0513', 256, 512),
        ('u2000#overflow', 'u2000', 256, 512),
      ][:number]
    )
    assert plan.left_out == {
      'users without a sentence': 1,
      'overflow users that were not drawn': 4 - number,
      'sentences of overflow users that were not drawn': (
        0 if number else 1 + 3 * 256
      ),
      'sentences beyond the cut': 1 + 1488,
    }
    assert plan.num_train_users == 7


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


def test_the_hash_of_a_missing_split_depends_on_the_id_alone():
  default = assignment.HoldoutConfig()
  users = {f'u{i}': 300 for i in range(2000)}
  more = {**users, **{f'x{i}': 5 for i in range(1000)}}
  first = _assign({'train': users}, (), default, num_public_users=9)
  other = _assign({'train': more}, (), default, num_public_users=9, seed=1)
  for name in ('validation', 'test'):
    assert first.held_out_by[name] == 'hash'
    assert first.groups[name].split == 'train'
    kept = [u for u in other.groups[name].names if u in users]
    assert kept == list(first.groups[name].names)
    assert 60 < len(kept) < 140  # Of a binomial with mean 100.
  # Another seed makes others public and leaves the rest as it is.
  public = [set(plan.groups['public'].ids) for plan in (first, other)]
  assert public[0] != public[1]


def test_people_who_opted_in_are_public_as_a_whole():
  users = {f'u{i:03}': 300 for i in range(200)} | {'u003': 10, 'u007': 1000}
  nearly_all = assignment.HoldoutConfig(
    validation_fraction=0.5, test_fraction=0.4
  )
  ids = ['u007', 'u100', 'u003']
  plan = _assign({'train': users}, ids, nearly_all)
  assert _rows(plan.groups['public']) == [
    ('u003', 'u003', 0, 10),
    ('u007', 'u007', 0, 256),
    ('u100', 'u100', 0, 256),
  ]
  for name in ('private', 'validation', 'test'):
    assert not set(ids) & set(plan.groups[name].ids)
  drawn = _assign({'train': users}, ids, num_public_users=1).groups['public']
  assert [start for *_, start, _ in _rows(drawn)].count(256) == 1
  assert set(ids) < set(drawn.ids)


@pytest.mark.parametrize(
  ('train', 'ids', 'words'),
  [
    ({'a': 3, 'b': 3}, ['v'], "public_user_ids .* 1 that are not, such as 'v'"),
    ({'': 3, 'a': 3}, [], "user ids .*Found ''"),
    ({'a#overflow': 3, 'a': 3}, [], "user ids .*Found 'a#overflow'"),
    ({'a': 0}, [], 'counts: there must be a private user'),
  ],
)
def test_bad_users_of_a_source(train, ids, words):
  with pytest.raises(ValueError, match=words):
    _assign({'train': train, 'heldout': {'v': 3}}, ids)


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
  share=st.floats(0, 0.5),
  draw=st.integers(0, 2**64),
)
def test_properties(train, heldout, test, share, draw):
  splits = {'train': train, 'heldout': heldout, 'test': test}
  splits = {name: users for name, users in splits.items() if users is not None}
  rng = np.random.default_rng(draw)
  opted_in = [u for u, n in train.items() if n and rng.random() < 0.2]
  holdout = assignment.HoldoutConfig(validation_fraction=0.2, test_fraction=0.2)
  number = int(share * sum(n > 4 for n in train.values()))
  try:
    plan = _assign(
      splits,
      opted_in,
      holdout,
      max_sentences=4,
      num_public_users=number,
      seed=draw,
    )
  except ValueError as e:
    assert 'there must be a private user' in str(e) or 'at most' in str(e)
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
  # Whoever opted in is public and nothing else; nobody is private twice.
  assert set(opted_in) <= people['public']
  assert not set(opted_in) & people['private']
  assert len(groups['public']) == len(opted_in) + number
  assert len(groups['private']) == len(people['private'])
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
  total = sum(sum(users.values()) for users in splits.values())
  others = sum(  # Of people of a split who are also in an earlier one.
    count
    for split in ('heldout', 'test')
    for user, count in splits.get(split, {}).items()
    if user in train or (split == 'test' and user in (heldout or {}))
  )
  left_out = [n for why, n in plan.left_out.items() if why[:9] == 'sentences']
  assert len(sentences) + sum(left_out) + others == total
