"""Tests for data_prep.partition."""

import collections
import hashlib
import sys

from data_prep import partition
import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest


def _config(**overrides):
  settings = {'seed': 0, 'num_public_users': 0, **overrides}
  return partition.PartitionConfig(**settings)


def _partition(num_sentences, config, *, user_ids=None, **options):
  """Splits users, whose ids are their places unless they matter."""
  ids = map(str, range(len(num_sentences))) if user_ids is None else user_ids
  return partition.partition_users(
    num_sentences, config, user_ids=ids, **options
  )


def _rows(slices):
  columns = (slices.user, slices.start, slices.stop)
  return list(zip(*(column.tolist() for column in columns), strict=True))


# By hand: (sentences, the private slice, the overflow slice).
_BY_HAND = [
  (1, (0, 1), None),
  (255, (0, 255), None),
  (256, (0, 256), None),
  (257, (0, 256), (256, 257)),
  (512, (0, 256), (256, 512)),
  (513, (0, 256), (256, 512)),
  (2000, (0, 256), (256, 512)),
]


def test_by_hand():
  for number in (0, 4):
    # The defaults are the paper's.
    config = partition.PartitionConfig(seed=0, num_public_users=number)
    result = _partition([count for count, _, _ in _BY_HAND], config)
    assert _rows(result.private) == [
      (i, *private) for i, (_, private, _) in enumerate(_BY_HAND)
    ]
    overflow = [(i, *of) for i, (_, _, of) in enumerate(_BY_HAND) if of]
    public, dropped = (overflow, []) if number else ([], overflow)
    assert _rows(result.public) == public
    assert _rows(result.dropped) == dropped
    # 513 - 512 of user 5 and 2000 - 512 of user 6.
    assert result.num_unused_sentences == 1 + 1488
    assert result.max_private_users_per_person == 1
  assert result.public.num_sentences.tolist() == [1, 256, 256, 256]
  assert partition.PartitionConfig(seed=0).num_public_users == 100


def test_kept_overflow_users_are_private_and_reported():
  counts = [10, 300, 1000, 400]
  drop = _partition(counts, _config(num_public_users=1))
  keep = _partition(
    counts, _config(num_public_users=1, keep_overflow_users=True)
  )
  # The flag decides about the overflow alone, not about who is public.
  assert _rows(keep.public) == _rows(drop.public)
  both = _rows(drop.private) + _rows(drop.dropped)
  assert _rows(keep.private) == sorted(both)
  assert len(keep.dropped) == 0
  assert keep.max_private_users_per_person == 2
  assert drop.max_private_users_per_person == 1


def test_draw_is_pinned():
  # A changed draw would silently change the data of runs made before.
  pinned = [75, 328, 760, 802, 940]
  result = _partition(np.full(1000, 300), _config(seed=1, num_public_users=5))
  assert result.public.user.tolist() == pinned
  # By hashlib alone.
  hashes = {
    i: hashlib.blake2b(
      b'1:str:%d' % i, digest_size=16, person=b'pda_fed public'
    ).digest()
    for i in range(1000)
  }
  assert sorted(sorted(hashes, key=hashes.get)[:5]) == pinned


def test_a_lone_surrogate_is_an_id():
  config = _config(num_public_users=1)
  ids = ['\ud800', '\udfff']
  assert len(_partition([300, 300], config, user_ids=ids).public) == 1


def test_every_overflow_user_is_equally_likely():
  counts = np.full(10, 300)
  drawn = collections.Counter()
  for seed in range(1000):
    result = _partition(counts, _config(seed=seed, num_public_users=3))
    drawn.update(result.public.user.tolist())
  # Binomial with mean 300 and standard deviation 14.5.
  assert all(abs(drawn[user] - 300) < 5 * 14.5 for user in range(10))


def test_the_draw_does_not_depend_on_the_order():
  ids = np.arange(500).astype(str)
  counts = np.arange(500) + 100
  shuffle = np.random.default_rng(0).permutation(500)
  config = _config(num_public_users=20)
  straight = _partition(counts, config, user_ids=ids)
  shuffled = _partition(counts[shuffle], config, user_ids=ids[shuffle])
  assert sorted(ids[straight.public.user]) == sorted(
    ids[shuffle][shuffled.public.user]
  )


@pytest.mark.parametrize(
  ('counts', 'number', 'advice'),
  [
    ([7, 1, 9, 0, 5], 2, 'num_public_users=2 with max_sentences=3 is possible'),
    ([7, 1, 9, 0, 5], 3, 'num_public_users=3 with max_sentences=2 is possible'),
    # One sentence leaves none over: fewer users, then.
    ([7, 1, 9, 0, 5], 4, 'num_public_users=1 with max_sentences=4 is possible'),
    ([7, 1, 9, 0, 5], 6, 'num_public_users=1 with max_sentences=4 is possible'),
    ([1, 1, 0], 1, 'No user has two sentences'),
  ],
)
def test_more_public_users_than_overflow_users(counts, number, advice):
  words = f'must be at most 0, .* Found {number}. {advice}; or name users'
  with pytest.raises(ValueError, match=words):
    _partition(counts, _config(num_public_users=number, max_sentences=99))


@pytest.mark.parametrize(
  'max_sentences', [partition.NO_LIMIT, sys.maxsize, 10**30]
)
def test_unlimited_sentences(max_sentences):
  config = _config(max_sentences=max_sentences)
  result = _partition([5, 10**6], config)
  assert _rows(result.private) == [(0, 0, 5), (1, 0, 10**6)]
  assert len(result.dropped) == result.num_unused_sentences == 0


@hypothesis.given(
  counts=st.lists(st.integers(0, 20), max_size=40),
  max_sentences=st.integers(1, 8),
  public_share=st.floats(0, 1),
  keep=st.booleans(),
  seed=st.integers(0, 2**64),
)
def test_properties(counts, max_sentences, public_share, keep, seed):
  overflow = sum(count > max_sentences for count in counts)
  num_public = int(public_share * overflow)
  result = _partition(
    counts,
    partition.PartitionConfig(
      seed=seed,
      max_sentences=max_sentences,
      num_public_users=num_public,
      keep_overflow_users=keep,
    ),
  )
  groups = (result.private, result.public, result.dropped)

  seen = collections.Counter()
  for group in groups:
    assert np.all(np.diff(group.user) >= 0)
    assert np.all(group.num_sentences >= 1)
    assert np.all(group.num_sentences <= max_sentences)
    for user, start, stop in _rows(group):
      assert stop <= counts[user]
      seen.update((user, sentence) for sentence in range(start, stop))
  assert max(seen.values(), default=1) == 1
  assert len(seen) + result.num_unused_sentences == sum(counts)
  # A sentence is left out only where two users are full.
  for user, count in enumerate(counts):
    used = {sentence for u, sentence in seen if u == user}
    assert used == set(range(min(count, 2 * max_sentences)))

  assert len(result.public) == num_public
  assert sum(map(len, groups)) == sum(c > 0 for c in counts) + overflow
  assert len(result.dropped) == (0 if keep else overflow - num_public)
  assert result.num_empty_users == counts.count(0)
  per_person = collections.Counter(result.private.user.tolist())
  assert result.max_private_users_per_person == (2 if keep else 1)
  assert max(per_person.values(), default=1) <= (2 if keep else 1)


@pytest.mark.parametrize(
  ('counts', 'error', 'message'),
  [
    ([[1, 2]], TypeError, r'num_sentences must be a vector.*\(1, 2\)'),
    ([1.0, 2.0], TypeError, 'num_sentences .* integers.*float64'),
    ([True], TypeError, 'num_sentences .* integers.*bool'),
    ([3, -1], ValueError, 'num_sentences .* Found -1'),
  ],
)
def test_bad_counts(counts, error, message):
  with pytest.raises(error, match=message):
    _partition(counts, _config())


@pytest.mark.parametrize(
  ('ids', 'error', 'message'),
  [
    (['a'], ValueError, 'user_ids .* num_sentences, 2. Found 1'),
    (['a', 'a'], ValueError, "user_ids .* Found 'a' more than once"),
    (['a', None], TypeError, 'user_ids must be strings. Found None'),
    ([1, 2], TypeError, 'user_ids must be strings. Found 1'),
  ],
)
def test_bad_ids(ids, error, message):
  with pytest.raises(error, match=message):
    _partition([1, 2], _config(), user_ids=ids)


@pytest.mark.parametrize(
  ('overrides', 'error', 'message'),
  [
    ({'seed': -1}, ValueError, 'seed must be .*Found -1'),
    ({'seed': None}, TypeError, 'seed must be an integer. Found None'),
    ({'max_sentences': 0}, ValueError, 'max_sentences .*1.* Found 0'),
    ({'max_sentences': 2.5}, TypeError, 'max_sentences .* Found 2.5'),
    ({'num_public_users': -1}, ValueError, 'num_public_users .*Found -1'),
    ({'keep_overflow_users': 'False'}, TypeError, "Found 'False'"),
  ],
)
def test_bad_config(overrides, error, message):
  with pytest.raises(error, match=message):
    _config(**overrides)


def test_people_who_opted_in_are_public_as_a_whole():
  counts = [10, 300, 600, 1000, 5]
  config = _config(num_public_users=1, keep_overflow_users=True)
  result = _partition(counts, config, opted_in=[3, 0])
  by_user = {user: (start, stop) for user, start, stop in _rows(result.public)}
  assert by_user[0] == (0, 10)
  assert by_user[3] == (0, 256)
  (drawn,) = set(by_user) - {0, 3}
  assert drawn in (1, 2)
  assert by_user[drawn][0] == 256
  assert not {0, 3} & set(result.private.user.tolist())
  # Theirs beyond the cut, and beyond two users of everybody else.
  assert result.num_unused_sentences == (1000 - 256) + (600 - 512)


@pytest.mark.parametrize(
  ('opted_in', 'error', 'message'),
  [
    ([0.5], TypeError, 'opted_in must be a vector of integers'),
    ([[0]], TypeError, 'opted_in must be a vector of integers'),
    ([3], ValueError, r'opted_in must be in \[0, 2\].* Found 3'),
    ([-1], ValueError, r'opted_in must be in \[0, 2\].* Found -1'),
    ([2], ValueError, 'opted_in .* with a sentence. Found 2'),
  ],
)
def test_bad_opted_in(opted_in, error, message):
  with pytest.raises(error, match=message):
    _partition([4, 5, 0], _config(), opted_in=opted_in)
