"""Assigns users to private, public, validation and test by their counts.

Validation and test users come from the source's own splits, if it has them.
Otherwise they are train users chosen by a hash of their id. Nobody is in two
groups, with one exception (see `data_prep.partition`): a public user may be the
overflow of a private one.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import hashlib
import itertools

from data_prep import partition
from data_prep.sources import base
import numpy as np
from pda_fed.common import validate

PRIVATE = 'private'
PUBLIC = 'public'
VALIDATION = 'validation'
TEST = 'test'
GROUPS = (PRIVATE, PUBLIC, VALIDATION, TEST)

# Suffix of the name of an overflow user.
OVERFLOW_SUFFIX = '#overflow'


@dataclasses.dataclass(frozen=True, kw_only=True)
class HoldoutConfig:
  """Which users are held out if the source has no such split.

  Example:

    >>> HoldoutConfig(validation_fraction=0.1, test_fraction=0.2).test_fraction
    0.2

  Attributes:
    validation_fraction: Expected fraction of users in validation.
    test_fraction: Expected fraction of users in test.
  """

  validation_fraction: float = 0.05
  test_fraction: float = 0.05

  def __post_init__(self):
    validate.in_range(
      0,
      1,
      validation_fraction=self.validation_fraction,
      test_fraction=self.test_fraction,
    )
    both = self.validation_fraction + self.test_fraction
    if both >= 1:
      raise ValueError(
        'validation_fraction and test_fraction together must be in [0, 1).'
        f' Found {both}.'
      )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Group:
  """Users of a group, ordered by name.

  Attributes:
    names: Names in the store: the id, with a suffix for overflow users.
    split: The source's split that the users come from.
    ids: Ids in the source.
    start: First sentence of each user.
    stop: One past the last sentence of each user.
  """

  names: tuple[str, ...]
  split: str
  ids: tuple[str, ...]
  start: np.ndarray
  stop: np.ndarray

  def __len__(self) -> int:
    return len(self.names)

  @property
  def num_sentences(self) -> np.ndarray:
    return self.stop - self.start

  def part(self, first: int, last: int) -> 'Group':
    """Returns the users from number `first` to the one before `last`."""
    fields = {
      name: getattr(self, name)[first:last]
      for name in ('names', 'ids', 'start', 'stop')
    }
    return Group(split=self.split, **fields)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Assignment:
  """Assignment of users to groups, made before any text is read.

  Example: see `prepare`.

  Attributes:
    groups: For each of `GROUPS`, its users.
    held_out_by: For validation and test: 'split' or 'hash'.
    train_counts: Number of sentences of each private or public person, before
      the cut.
    left_out: For each reason, the number of users or sentences that are in no
      group.
    max_private_users_per_person: See `partition.Partition`.
  """

  groups: Mapping[str, Group]
  held_out_by: Mapping[str, str]
  train_counts: np.ndarray
  left_out: Mapping[str, int]
  max_private_users_per_person: int

  @property
  def num_sentences(self) -> int:
    """Number of sentences of all groups."""
    return int(sum(g.num_sentences.sum() for g in self.groups.values()))


def _hash_fraction(user: str) -> float:
  """Returns a number in [0, 1) that only depends on the id."""
  # Independent of the seed, so that test users stay test users.
  digest = hashlib.blake2b(
    user.encode(), digest_size=8, person=b'pda_fed holdout'
  ).digest()
  return int.from_bytes(digest, 'big') / 2**64


def _choose_by_hash(
  users: base.UserCounts, config: HoldoutConfig, taken: Collection[str]
) -> dict[str, np.ndarray]:
  fractions = np.array(
    [2.0 if u in taken else _hash_fraction(u) for u in users.ids]
  )
  # From both ends, so that one fraction does not affect the other's users.
  return {
    VALIDATION: fractions < config.validation_fraction,
    TEST: (fractions >= 1 - config.test_fraction) & (fractions < 1),
  }


def _make_group(
  users: base.UserCounts, split: str, slices: partition.UserSlices
) -> Group:
  ids = [users.ids[i] for i in slices.user.tolist()]
  names = [
    user + (OVERFLOW_SUFFIX if start else '')
    for user, start in zip(ids, slices.start.tolist(), strict=True)
  ]
  order = sorted(range(len(names)), key=names.__getitem__)
  return Group(
    names=tuple(names[i] for i in order),
    split=split,
    ids=tuple(ids[i] for i in order),
    start=slices.start[order],
    stop=slices.stop[order],
  )


def _select(users: base.UserCounts, mask: np.ndarray) -> base.UserCounts:
  return base.UserCounts(
    ids=tuple(itertools.compress(users.ids, mask)),
    num_sentences=users.num_sentences[mask],
  )


def _held_out_group(users: base.UserCounts, split: str, limit: int) -> Group:
  index = np.flatnonzero(users.num_sentences)
  slices = partition.UserSlices(
    user=index,
    start=np.zeros_like(index),
    stop=np.minimum(users.num_sentences[index], limit),
  )
  return _make_group(users, split, slices)


def _read_users(source: base.UserSource, split: str) -> base.UserCounts:
  users = source.users(split)
  for user in users.ids:
    if not user or user.endswith(OVERFLOW_SUFFIX):
      raise ValueError(
        f'{source.name}: user ids must not be empty or end with'
        f' {OVERFLOW_SUFFIX}. Found {user!r}.'
      )
  return users


def _find_opted_in(
  users: base.UserCounts, public_user_ids: Sequence[str]
) -> list[int]:
  index = {user: i for i, user in enumerate(users.ids)}
  unknown = [user for user in public_user_ids if user not in index]
  if unknown:
    raise ValueError(
      'public_user_ids must be train users of the source. Found'
      f' {len(unknown)} that are not, such as {unknown[0]!r}.'
    )
  return [index[user] for user in public_user_ids]


def assign_users(
  source: base.UserSource,
  partition_config: partition.PartitionConfig,
  holdout_config: HoldoutConfig,
  public_user_ids: Sequence[str] = (),
  *,
  whole_users: bool = False,
) -> Assignment:
  """Assigns users to private, public, validation and test.

  Args:
    source: Source of the users. No sentence is read.
    partition_config: How train users are split into private and public.
    holdout_config: Which users are held out if the source has no split.
    public_user_ids: Users who opted in to be public with all of their data.
    whole_users: See `partition.partition_users`.

  Returns:
    The `Assignment`. It only depends on the arguments.

  Raises:
    ValueError: If there are fewer candidates than public users to draw, if the
      id of a public user is unknown or repeated, or if there are no private
      users.
  """
  limit = min(int(partition_config.max_sentences), partition.NO_LIMIT)
  train = _read_users(source, base.TRAIN)
  seen = set(train.ids)
  by_hash = _choose_by_hash(train, holdout_config, set(public_user_ids))
  is_train = np.ones(len(train.ids), bool)
  held_out, held_out_by = {}, {}
  left_out: dict[str, int] = {}
  for name, split in ((VALIDATION, base.HELDOUT), (TEST, base.TEST)):
    if split in source.splits:
      users = _read_users(source, split)
      # In TFF's data the test split has the same people at a later time. Their
      # text would be both private (or public) and test.
      is_new = np.array([user not in seen for user in users.ids], bool)
      left_out[f'{name} users who are in another group'] = int((~is_new).sum())
      seen.update(users.ids)
      held_out[name] = _select(users, is_new), split
      held_out_by[name] = 'split'
    else:
      is_train &= ~by_hash[name]
      held_out[name] = _select(train, by_hash[name]), base.TRAIN
      held_out_by[name] = 'hash'
  train = _select(train, is_train)
  result = partition.partition_users(
    train.num_sentences,
    partition_config,
    user_ids=train.ids,
    opted_in=_find_opted_in(train, public_user_ids),
    whole_users=whole_users,
  )
  if not len(result.private):
    raise ValueError(
      f'{source.name}: there must be a private user with a sentence. Found'
      ' none.'
    )
  groups = {
    PRIVATE: _make_group(train, base.TRAIN, result.private),
    PUBLIC: _make_group(train, base.TRAIN, result.public),
  }
  unused = result.num_unused_sentences
  empty = result.num_empty_users
  for name, (users, split) in held_out.items():
    groups[name] = _held_out_group(users, split, limit)
    empty += len(users.ids) - len(groups[name])
    unused += int(users.num_sentences.sum() - groups[name].num_sentences.sum())
  left_out['users without a sentence'] = empty
  left_out['overflow users that were not drawn'] = len(result.dropped)
  left_out['sentences of overflow users that were not drawn'] = int(
    result.dropped.num_sentences.sum()
  )
  left_out['sentences beyond the cut'] = unused
  return Assignment(
    groups=groups,
    held_out_by=held_out_by,
    train_counts=train.num_sentences,
    left_out=left_out,
    max_private_users_per_person=result.max_private_users_per_person,
  )
