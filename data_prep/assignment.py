"""Says who is private, public, validation and test, by counts alone.

Train users are split as in the StackOverflow experiments (section "Evaluation
with User-level Differential Privacy") of

  Public Data-Assisted Mirror Descent for Private Model Training.
  Ehsan Amid, Arun Ganesh, Rajiv Mathews, Swaroop Ramaswamy, Shuang Song,
  Thomas Steinke, Vinith M. Suriyakumar, Om Thakkar, Abhradeep Thakurta.
  ICML 2022, https://arxiv.org/abs/2112.00193

A user with more than `max_sentences` sentences becomes a private user with the
first `max_sentences` of them, and a new *overflow* user with up to
`max_sentences` of the rest. Some overflow users are drawn as public; the others
are dropped, so that nobody is two private users. People who opted in to be
public are public with their first `max_sentences` sentences, and never private.

Epsilon compares data with and without one private user, so the public users
must not depend on who is private. The draw therefore ranks users by a hash of
the seed and the user's own id: without a user who is not drawn, it draws the
same users.

Validation and test users come from the source's own splits, if it has them.
Otherwise they are train users chosen by a hash of their id. Nobody is in two
groups, but that a public user may be the overflow of a private one.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import hashlib

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
# A `max_sentences` that keeps all sentences. A constant, not the largest count,
# which may be that of a private user. Twice as much fits into an int64.
NO_LIMIT = 2**61


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionConfig:
  """How train users are split into private and public.

  Example: see `partition_users`.

  Attributes:
    seed: Seed of the draw of public users, at least 0.
    max_sentences: Maximum number of sentences of a user, at least 1. From
      `assignment.NO_LIMIT` on, all of them are kept.
    num_public_users: Number of overflow (or whole) users to draw as public, at
      least 0.
  """

  seed: int
  max_sentences: int = 256
  num_public_users: int = 100

  def __post_init__(self):
    validate.integers(0, seed=self.seed)
    validate.integers(1, max_sentences=self.max_sentences)
    validate.integers(0, num_public_users=self.num_public_users)

  @property
  def limit(self) -> int:
    """Maximum number of sentences of a user."""
    return min(int(self.max_sentences), NO_LIMIT)


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
    validate.in_range(0, 1, validation_fraction=self.validation_fraction)
    validate.in_range(0, 1, test_fraction=self.test_fraction)
    both = self.validation_fraction + self.test_fraction
    if both >= 1:
      raise ValueError(
        'validation_fraction and test_fraction together must be in [0, 1).'
        f' Found {both}.'
      )


# Compared by identity: == of dataclasses fails for arrays.
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Group:
  """Users of a group, ordered by name: each a slice of a source's user.

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
    rows = ('names', 'ids', 'start', 'stop')
    parts = {name: getattr(self, name)[first:last] for name in rows}
    return dataclasses.replace(self, **parts)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
  """Private and public users, and what is left out.

  Example: see `partition_users`.

  Attributes:
    private: The private users.
    public: The public users. Each is the overflow of a private user, from
      `max_sentences` on, or a person who opted in, from 0 on.
    left_out: For each reason, the number of users or sentences in neither.
  """

  private: Group
  public: Group
  left_out: Mapping[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Assignment:
  """Users of all groups.

  Attributes:
    groups: For each of `GROUPS`, its users.
    held_out_by: For validation and test: 'split' or 'hash'.
    num_train_users: Number of private or public persons with a sentence.
    left_out: For each reason, the number of users or sentences in no group.
  """

  groups: Mapping[str, Group]
  held_out_by: Mapping[str, str]
  num_train_users: int
  left_out: Mapping[str, int]


def _group(
  slices: Sequence[tuple[str, int, int]], split: str = base.TRAIN
) -> Group:
  """Returns a group of slices (id, start, stop) of users."""
  named = sorted(
    (user + (OVERFLOW_SUFFIX if start else ''), user, start, stop)
    for user, start, stop in slices
  )
  names, ids, starts, stops = zip(*named, strict=True) if named else [()] * 4
  start, stop = np.array(starts, np.int64), np.array(stops, np.int64)
  return Group(names=names, split=split, ids=ids, start=start, stop=stop)


def _rank(user: str, seed: int) -> tuple[bytes, str]:
  """Returns a hash of the seed and the id, by which users are drawn."""
  # No other seed or id gives the same message. Lone surrogates have bytes of
  # their own.
  message = f'{seed}:str:{user}'.encode(errors='surrogatepass')
  digest = hashlib.blake2b(message, digest_size=16, person=b'pda_fed public')
  return digest.digest(), user


def _advice(counts: Sequence[int], wanted: int) -> str:
  """Returns settings for which there are enough overflow users."""
  largest_first = sorted(counts, reverse=True)
  found = 'No user has two sentences'
  for number in (max(1, len(counts) // 10), wanted):
    # Half of a user's sentences, so that public users have text as well.
    if number <= len(counts) and (limit := largest_first[number - 1] // 2):
      found = (
        f'num_public_users={number} with max_sentences={limit} is possible'
      )
  return f' {found}; or name users who opted in (--public_user_ids).'


def _draw(
  counts: Mapping[str, int], config: PartitionConfig, whole_users: bool
) -> list[str]:
  """Returns the public users that are drawn out of those with a sentence."""
  wanted, seed = config.num_public_users, int(config.seed)
  candidates = [u for u, n in counts.items() if whole_users or n > config.limit]
  most = len(candidates)
  why = f'the users with more than max_sentences={config.max_sentences}'
  if whole_users:
    most, why = max(most - 1, 0), 'one of the candidates must stay private'
  if wanted > most:
    advice = ''
    if not whole_users:
      advice = (
        f' {_advice([*counts.values()], wanted)}; or name users who opted'
      )
      advice += ' in (--public_user_ids).'
    raise ValueError(
      f'num_public_users must be at most {most}: {why}. Found {wanted}.{advice}'
    )
  return sorted(candidates, key=lambda user: _rank(user, seed))[:wanted]


def partition_users(
  num_sentences: Mapping[str, int],
  config: PartitionConfig,
  *,
  opted_in: Collection[str] = (),
  whole_users: bool = False,
) -> Partition:
  """Splits users into private and public ones.

  Example:

    >>> split = partition_users(
    ...   {'ann': 100, 'bob': 300, 'cy': 600},
    ...   PartitionConfig(seed=0, num_public_users=1),
    ... )
    >>> len(split.private), split.public.names
    (3, ('cy#overflow',))

  Args:
    num_sentences: Number of sentences of each user, by id. Ids decide who is
      drawn, so give ids that stay the same when a user is removed; an index
      does not.
    config: How to split.
    opted_in: Users who are public as a whole, in addition to the
      `config.num_public_users` that are drawn.
    whole_users: Whether to draw public users from all users, as if they had
      opted in, instead of from overflow users.

  Returns:
    The `Partition`. It only depends on the arguments.

  Raises:
    TypeError: If an id is not a string, or a number not an integer.
    ValueError: If a number is negative, there are too few candidates to draw,
      or a user who opted in is unknown or has no sentence.
  """
  for user, count in num_sentences.items():
    if not isinstance(user, str):
      raise TypeError(f'user ids must be strings. Found {user!r}.')
    if type(count) is not int or count < 0:  # Faster than `validate`.
      validate.integers(0, num_sentences=count)
  unknown = [user for user in opted_in if not num_sentences.get(user)]
  if unknown:
    raise ValueError(
      'public_user_ids must be train users of the source with a sentence. Found'
      f' {len(unknown)} that are not, such as {unknown[0]!r}.'
    )
  limit, whole = config.limit, set(opted_in)
  others = {u: n for u, n in num_sentences.items() if n and u not in whole}
  drawn = set(_draw(others, config, whole_users))
  if whole_users:
    whole, drawn = whole | drawn, set()
  private, public, dropped = [], [], []
  beyond = 0
  for user, count in num_sentences.items():
    if user in whole:
      public.append((user, 0, min(count, limit)))
      beyond += max(count - limit, 0)
    elif count:
      private.append((user, 0, min(count, limit)))
      beyond += max(count - 2 * limit, 0)
      if count > limit:
        overflow = (user, limit, min(count, 2 * limit))
        (public if user in drawn else dropped).append(overflow)
  return Partition(
    private=_group(private),
    public=_group(public),
    left_out={
      'users without a sentence': list(num_sentences.values()).count(0),
      'overflow users that were not drawn': len(dropped),
      'sentences of overflow users that were not drawn': sum(
        stop - start for _, start, stop in dropped
      ),
      'sentences beyond the cut': beyond,
    },
  )


def _held_out_by_hash(user: str, config: HoldoutConfig) -> str:
  """Returns the group that a user would be held out for; '' for none."""
  # Independent of the seed, so that test users stay test users.
  digest = hashlib.blake2b(
    user.encode(), digest_size=8, person=b'pda_fed holdout'
  ).digest()
  fraction = int.from_bytes(digest, 'big') / 2**64
  # From both ends, so that one fraction does not affect the other's users.
  if fraction < config.validation_fraction:
    return VALIDATION
  return TEST if fraction >= 1 - config.test_fraction else ''


def _read_users(source: base.UserSource, split: str) -> dict[str, int]:
  users = source.users(split)
  for user in users.ids:
    if not user or user.endswith(OVERFLOW_SUFFIX):
      raise ValueError(
        f'{source.name}: user ids must not be empty or end with'
        f' {OVERFLOW_SUFFIX}. Found {user!r}.'
      )
  found = dict(zip(users.ids, users.num_sentences.tolist(), strict=True))
  # A user who is listed twice would silently lose a part.
  if len(found) < len(users.ids):
    raise ValueError(f'{source.name}: user ids must be distinct in a split.')
  return found


def assign_users(
  source: base.UserSource,
  partition_config: PartitionConfig,
  holdout_config: HoldoutConfig,
  public_user_ids: Sequence[str] = (),
  *,
  whole_users: bool = False,
) -> Assignment:
  """Assigns users to groups, by nothing but the arguments.

  Args:
    source: Source of the users. No sentence is read.
    partition_config: How train users are split into private and public.
    holdout_config: Which users are held out if the source has no split.
    public_user_ids: Users who opted in to be public with all of their data.
    whole_users: See `partition_users`.

  Raises:
    ValueError: As `partition_users`, or if there are no private users.
  """
  limit = partition_config.limit
  train = _read_users(source, base.TRAIN)
  seen, opted_in = set(train), set(public_user_ids)
  by_hash = {
    u: _held_out_by_hash(u, holdout_config) for u in train if u not in opted_in
  }
  held_out, held_out_by, left_out = {}, {}, {}
  for name, split in ((VALIDATION, base.HELDOUT), (TEST, base.TEST)):
    if split in source.splits:
      users = _read_users(source, split)
      # In TFF's data the test split has the same people at a later time. Their
      # text would be both private (or public) and test.
      new = {u: n for u, n in users.items() if u not in seen}
      left_out[f'{name} users who are in another group'] = len(users) - len(new)
      seen.update(users)
      held_out[name], held_out_by[name] = (new, split), 'split'
    else:
      chosen = {u: train[u] for u, found in by_hash.items() if found == name}
      held_out[name], held_out_by[name] = (chosen, base.TRAIN), 'hash'
  for users, _ in held_out.values():
    train = {u: n for u, n in train.items() if u not in users}
  result = partition_users(
    train, partition_config, opted_in=public_user_ids, whole_users=whole_users
  )
  if not len(result.private):
    wanted = 'there must be a private user with a sentence'
    raise ValueError(f'{source.name}: {wanted}. Found none.')
  left_out |= result.left_out
  groups = {PRIVATE: result.private, PUBLIC: result.public}
  for name, (users, split) in held_out.items():
    slices = [(u, 0, min(n, limit)) for u, n in users.items() if n]
    groups[name] = _group(slices, split)
    beyond = sum(max(n - limit, 0) for n in users.values())
    left_out['sentences beyond the cut'] += beyond
    left_out['users without a sentence'] += len(users) - len(slices)
  return Assignment(
    groups=groups,
    held_out_by=held_out_by,
    num_train_users=sum(n > 0 for n in train.values()),
    left_out=left_out,
  )
