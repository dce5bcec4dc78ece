"""Splits users into private and public ones by number of sentences.

This is the partition of the StackOverflow experiments (section "Evaluation
with User-level Differential Privacy") of

  Public Data-Assisted Mirror Descent for Private Model Training.
  Ehsan Amid, Arun Ganesh, Rajiv Mathews, Swaroop Ramaswamy, Shuang Song,
  Thomas Steinke, Vinith M. Suriyakumar, Om Thakkar, Abhradeep Thakurta.
  ICML 2022, https://arxiv.org/abs/2112.00193

A user with more than `max_sentences` sentences becomes a private user with the
first `max_sentences` of them, and a new *overflow* user with up to
`max_sentences` of the rest. Some overflow users are drawn as public. People who
opted in to be public are public with their first `max_sentences` sentences, and
never private.

Epsilon compares data with and without one private user, so the public users
must not depend on who is private. The draw therefore ranks users by a hash of
the seed and the user's own id: without a user who is not drawn, it draws the
same users.

The partition only needs counts and describes slices, so it can be computed and
checked before any text is read.
"""

import collections
from collections.abc import Sequence
import dataclasses
import hashlib
from typing import Optional

import numpy as np
from numpy import typing as npt
from pda_fed.common import validate

# A `max_sentences` that keeps all sentences. A constant, not the largest count,
# which may be that of a private user. Twice as much fits into an int64.
NO_LIMIT = 2**61


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionConfig:
  """How users are split.

  Example: see `partition_users`.

  Attributes:
    seed: Seed of the draw of public users, at least 0.
    max_sentences: Maximum number of sentences of a user, at least 1. From
      `partition.NO_LIMIT` on, all of them are kept.
    num_public_users: Number of overflow (or whole) users to draw as public, at
      least 0.
    keep_overflow_users: Whether overflow users that are not public become
      private users instead of being dropped. One person may then be two private
      users, and the guarantee for a user is weaker for a person: see
      `Partition.max_private_users_per_person`.
  """

  seed: int
  max_sentences: int = 256
  num_public_users: int = 100
  keep_overflow_users: bool = False

  def __post_init__(self):
    validate.integers(0, seed=self.seed)
    validate.integers(1, max_sentences=self.max_sentences)
    validate.integers(0, num_public_users=self.num_public_users)
    # A truthy string such as 'False' must not weaken the guarantee.
    if not isinstance(self.keep_overflow_users, bool):
      raise TypeError(
        'keep_overflow_users must be True or False. Found '
        f'{self.keep_overflow_users!r}.'
      )


# Compared by identity: == of dataclasses fails for arrays.
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class UserSlices:
  """Users, each a slice of the sentences of one user of the source.

  Example: see `partition_users`.

  Attributes:
    user: Index of each user in the source, ascending.
    start: First sentence of each user, counted within the source user.
    stop: One past the last sentence of each user, counted in the same way.
  """

  user: np.ndarray
  start: np.ndarray
  stop: np.ndarray

  def __len__(self) -> int:
    return self.user.size

  @property
  def num_sentences(self) -> np.ndarray:
    """Number of sentences of each user."""
    return self.stop - self.start


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
  """Private and public users, and what is left out.

  Every sentence of the source is in exactly one slice or is one of the
  `num_unused_sentences`.

  Example: see `partition_users`.

  Attributes:
    private: The private users.
    public: The public users. Each is the overflow of a private user, with
      slices that start at `max_sentences`, or a person who opted in, with
      slices that start at 0.
    dropped: The overflow users that are neither private nor public.
    num_empty_users: Number of source users without a sentence. They are in no
      group.
    num_unused_sentences: Number of sentences beyond twice `max_sentences` of
      their user, or beyond `max_sentences` of a user who opted in.
    max_private_users_per_person: 2 if a person may be two private users, else
      1. A guarantee for a user holds for a person only if this is 1.
  """

  private: UserSlices
  public: UserSlices
  dropped: UserSlices
  num_empty_users: int
  num_unused_sentences: int
  max_private_users_per_person: int


def _advice(counts: np.ndarray, num_public_users: int) -> str:
  """Returns settings for which there are enough overflow users."""
  for number in (num_public_users, max(1, counts.size // 10)):
    if number <= counts.size:
      # Half of a user's sentences, so that public users have text as well.
      limit = int(np.sort(counts)[-number]) // 2
      if limit >= 1:
        return (
          f'num_public_users={number} with max_sentences={limit} is possible'
        )
  return 'No user has two sentences'


def partition_users(
  num_sentences: npt.ArrayLike,
  config: PartitionConfig,
  *,
  user_ids: Sequence[str],
  opted_in: Optional[npt.ArrayLike] = None,
  whole_users: bool = False,
) -> Partition:
  """Splits users into private and public ones.

  Example:

    >>> split = partition_users(
    ...   [100, 300, 600],
    ...   PartitionConfig(seed=0, num_public_users=1),
    ...   user_ids=['ann', 'bob', 'cy'],
    ... )
    >>> len(split.private), len(split.public), len(split.dropped)
    (3, 1, 1)

  Args:
    num_sentences: Number of sentences of each user: a vector of non-negative
      integers.
    config: How to split.
    user_ids: The users' ids in the order of `num_sentences`. They decide who is
      drawn, so give ids that stay the same when a user is removed; an index
      does not.
    opted_in: Indices of users who are public as a whole, in addition to the
      `config.num_public_users` that are drawn.
    whole_users: Whether to draw public users from all users, as if they had
      opted in, instead of from overflow users.

  Returns:
    The `Partition`. It only depends on the arguments.

  Raises:
    TypeError: If `num_sentences` or `opted_in` are not integers, or `user_ids`
      are not strings.
    ValueError: If `num_sentences` has a negative number, if `user_ids` repeat
      or do not match `num_sentences`, if there are fewer candidates than public
      users to draw, or if `opted_in` has a user without a sentence.
  """
  counts = vector_of_integers(num_sentences=num_sentences)
  validate.non_negative(num_sentences=counts.min(initial=0).item())
  limit = min(int(config.max_sentences), NO_LIMIT)
  chosen = _check_opted_in(opted_in, counts)
  ids = _check_ids(user_ids, counts.size)
  if whole_users:
    chosen = np.union1d(chosen, _draw_whole_users(counts, chosen, ids, config))
    config = dataclasses.replace(config, num_public_users=0)
  nonempty = np.setdiff1d(np.flatnonzero(counts), chosen)
  overflow = np.setdiff1d(np.flatnonzero(counts > limit), chosen)
  if config.num_public_users > overflow.size:
    raise ValueError(
      f'num_public_users must be at most {overflow.size}, the number of users'
      f' with more than max_sentences={config.max_sentences} sentences. Found'
      f' {config.num_public_users}.'
      f' {_advice(counts[nonempty], config.num_public_users)}; or name users'
      ' who opted in (--public_user_ids).'
    )

  is_public = np.zeros(counts.size, dtype=bool)
  is_public[_draw(overflow, ids, config)] = True

  public = overflow[is_public[overflow]]
  others = overflow[~is_public[overflow]]
  kept = others if config.keep_overflow_users else others[:0]
  dropped = others[kept.size :]

  public_user = np.concatenate([public, chosen])
  public_start = np.repeat([limit, 0], [public.size, chosen.size])
  public_order = np.argsort(public_user, kind='stable')
  unused_from = np.full_like(counts, 2 * limit)
  unused_from[chosen] = limit

  private_user = np.concatenate([nonempty, kept])
  private_start = np.repeat([0, limit], [nonempty.size, kept.size])
  # Stable, so that the slices of a person who is two users stay in order.
  order = np.argsort(private_user, kind='stable')
  return Partition(
    private=_slices(private_user[order], private_start[order], counts, limit),
    public=_slices(
      public_user[public_order], public_start[public_order], counts, limit
    ),
    dropped=_slices(dropped, np.full_like(dropped, limit), counts, limit),
    num_empty_users=counts.size - nonempty.size - chosen.size,
    num_unused_sentences=int(np.maximum(counts - unused_from, 0).sum()),
    # Not whether anybody is: one private user more could tell.
    max_private_users_per_person=2 if config.keep_overflow_users else 1,
  )


def _rank(user: str, seed: int) -> tuple[bytes, str]:
  """Returns a hash of the seed and the id, by which users are drawn."""
  # No other seed or id gives the same message. Lone surrogates have bytes of
  # their own.
  message = f'{seed}:str:{user}'.encode(errors='surrogatepass')
  digest = hashlib.blake2b(message, digest_size=16, person=b'pda_fed public')
  return digest.digest(), user


def _draw(
  candidates: np.ndarray, ids: Sequence[str], config: PartitionConfig
) -> np.ndarray:
  """Returns the candidates that are drawn as public."""
  seed = int(config.seed)
  ranked = sorted(candidates.tolist(), key=lambda i: _rank(ids[i], seed))
  return np.array(ranked[: config.num_public_users], np.int64)


def _draw_whole_users(
  counts: np.ndarray,
  chosen: np.ndarray,
  ids: Sequence[str],
  config: PartitionConfig,
) -> np.ndarray:
  candidates = np.setdiff1d(np.flatnonzero(counts), chosen)
  most = max(candidates.size - 1, 0)
  if config.num_public_users > most:
    raise ValueError(
      f'num_public_users must be at most {most}: one of the {candidates.size}'
      f' candidates must stay private. Found {config.num_public_users}.'
    )
  return _draw(candidates, ids, config)


def _slices(
  user: np.ndarray, start: np.ndarray, counts: np.ndarray, limit: int
) -> UserSlices:
  """Returns slices of at most `limit` sentences from `start` on."""
  return UserSlices(
    user=user, start=start, stop=np.minimum(counts[user], start + limit)
  )


def vector_of_integers(**named: npt.ArrayLike) -> np.ndarray:
  """Returns an argument, given by its name, as a vector of int64.

  Raises:
    TypeError: If it is something else, for example a mask.
  """
  ((name, values),) = named.items()
  vector = np.asarray(values)
  # A boolean mask would be read as the numbers 0 and 1.
  if vector.ndim != 1 or (vector.size and vector.dtype.kind not in 'iu'):
    raise TypeError(
      f'{name} must be a vector of integers. Found the dtype {vector.dtype} and'
      f' the shape {vector.shape}.'
    )
  return vector.astype(np.int64)


def _check_opted_in(
  opted_in: Optional[npt.ArrayLike], counts: np.ndarray
) -> np.ndarray:
  """Returns the indices ascending, or raises."""
  chosen = vector_of_integers(opted_in=[] if opted_in is None else opted_in)
  for index in chosen.tolist():
    if not 0 <= index < counts.size or not counts[index]:
      raise ValueError(
        f'opted_in must be in [0, {counts.size - 1}], and users with a'
        f' sentence. Found {index}.'
      )
  return np.unique(chosen)


def _check_ids(user_ids: Sequence[str], num_users: int) -> list[str]:
  """Returns the ids, which are distinct strings, or raises."""
  ids = list(user_ids)
  if len(ids) != num_users:
    raise ValueError(
      f'user_ids must be as many as num_sentences, {num_users}. Found'
      f' {len(ids)}.'
    )
  for user in ids:
    if not isinstance(user, str):
      raise TypeError(f'user_ids must be strings. Found {user!r}.')
  # A user who is listed twice would silently become two private users.
  if len(set(ids)) < num_users:
    twice = next(u for u, n in collections.Counter(ids).items() if n > 1)
    raise ValueError(
      f'user_ids must be distinct. Found {twice!r} more than once.'
    )
  return ids
