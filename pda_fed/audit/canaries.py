"""Canaries: artificial clients, or examples, that send random directions.

A canary sends its own fixed direction in every round that samples it. In many
dimensions, random directions are nearly orthogonal to each other and to
everything else. So canaries hardly change the model, and their inner product
with a noised mean reveals whether they took part.

Directions are rows of a Hadamard matrix with random signs: coordinate k of
canary i is

    sign_k (-1)^popcount(i & k mod M) / sqrt(d),    M: a power of two,

so that thousands of inner products are one sum over blocks and one fast
Hadamard transform of M numbers. Half of the canaries use all weights of the
model. Each of the others uses the weights of one array, to detect an array
without noise.
"""

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
from pda_fed import privacy
from pda_fed.common import validate
from pda_fed.privacy import seeds as seeds_lib

# Minimum number of dimensions per canary. With fewer, directions would overlap.
_DIMENSIONS_EACH = 8
# Norm of a canary's update over the clipping norm: large enough to be clipped.
_NORM = 10.0
# Row indices of a Hadamard matrix have 16 bits.
_MOST = 2**16
# With fewer, even nine correct guesses out of ten show an epsilon below 1.
LEAST_CANARIES = 100
_USUAL = 1000


def check_count(**named: int) -> None:
  """Raises ValueError unless every value is a number of canaries that tells.

  Example:

    >>> check_count(audit_canaries=500)

  Args:
    **named: Numbers of canaries, by the name of the setting.

  Raises:
    ValueError: If a number is too small.
  """
  validate.integers(1, **named)
  for name, count in named.items():
    if count < LEAST_CANARIES:
      raise ValueError(
        f'{name} must be at least {LEAST_CANARIES}: with fewer, a lower bound'
        f' shows almost nothing. Found {count}.'
      )


def usual_count(shapes: Sequence[tuple[int, ...]]) -> int:
  """Returns the default number of canaries for a model.

  Example:

    >>> usual_count([(64, 50), (50,)])
    406

  Args:
    shapes: The shapes of the model's arrays.

  Raises:
    ValueError: If the model is too small for an audit.
  """
  weights = sum(math.prod(shape) for shape in shapes)
  room = weights // _DIMENSIONS_EACH
  if room < LEAST_CANARIES:
    raise ValueError(
      f'audit must be off for a model with {weights:,} weights: it has room for'
      f' {room} canaries, but an audit needs {LEAST_CANARIES}.'
    )
  return min(_USUAL, room)


class Group(NamedTuple):
  """Canaries that share a range of coordinates.

  Attributes:
    start: The first coordinate.
    stop: One past the last coordinate.
    count: Number of canaries.
  """

  start: int
  stop: int
  count: int  # type: ignore[assignment]  # Not that of tuples.

  @property
  def period(self) -> int:
    """M, the size of the Hadamard matrix."""
    return 1 << (self.count - 1).bit_length()


def _make_groups(sizes: Sequence[int], count: int) -> tuple[Group, ...]:
  """Lets half of the canaries use all weights, the rest one array each."""
  ends = np.cumsum([0, *sizes]).tolist()
  share = count // 2 // len(sizes)
  within = []
  for start, stop in zip(ends, ends[1:], strict=False):
    own = min(share, (stop - start) // _DIMENSIONS_EACH)
    if own >= 2 and len(sizes) > 1:
      within.append(Group(start, stop, own))
  rest = count - sum(group.count for group in within)
  if rest * _DIMENSIONS_EACH > ends[-1]:
    most = ends[-1] // _DIMENSIONS_EACH
    raise ValueError(
      f'audit_canaries must be at most {most} for a model with {ends[-1]:,}'
      f' weights: more directions would overlap. Found {count}.'
    )
  return (Group(0, ends[-1], rest), *within)


@dataclasses.dataclass(frozen=True)
class Directions:
  """The directions of canaries, as functions of random signs.

  It is hashable, so that a compiled program may depend on it. Functions take
  the array library `xp`, numpy or jax.numpy.

  Example: see `Canaries`, which has one.

  Attributes:
    groups: Ranges of coordinates, each with its number of canaries.
  """

  groups: tuple[Group, ...]

  @property
  def num_coordinates(self) -> int:
    return self.groups[0].stop

  @functools.cached_property
  def table(self) -> np.ndarray:
    """For each canary: start, stop, bits of its period, row, family."""
    return np.array(
      [
        (group.start, group.stop, group.period - 1, row, min(number, 1))
        for number, group in enumerate(self.groups)
        for row in range(group.count)
      ],
      np.int32,
    )

  def take(self, xp: Any, signs: Any, canaries: Any) -> Any:
    """Returns directions of norm 1.

    Args:
      xp: numpy or jax.numpy.
      signs: [2, coordinates], 1 or -1: for canaries that use all weights, and
        for those within an array.
      canaries: [n], indices of canaries.

    Returns:
      [n, coordinates] in float32.
    """
    table = xp.asarray(self.table)[canaries][:, :, None]
    start, stop, bits, row, family = (table[:, i] for i in range(5))
    k = xp.arange(self.num_coordinates, dtype=xp.int32)
    odd = _parity(row & (k - start) & bits)
    scale = (1 / xp.sqrt((stop - start).astype(xp.float32))).astype(xp.float32)
    own = xp.where(family == 0, signs[0], signs[1]).astype(xp.float32)
    values = xp.where(odd == 1, -scale, scale) * own
    return xp.where((k >= start) & (k < stop), values, 0).astype(xp.float32)

  def scores(self, xp: Any, signs: Any, vector: Any) -> Any:
    """Returns the inner product of each direction with a vector.

    Args:
      xp: numpy or jax.numpy.
      signs: See `take`.
      vector: [coordinates].

    Returns:
      [canaries] in float32.
    """
    signed = signs.astype(xp.float32) * vector
    found = []
    for number, group in enumerate(self.groups):
      # Canaries within an array have their own signs, because rows of two
      # Hadamard matrices may be equal.
      own = signed[min(number, 1)][group.start : group.stop]
      own = xp.pad(own, (0, -len(own) % group.period))
      folded = own.reshape(-1, group.period).sum(axis=0)
      rows = _hadamard(xp, folded)[: group.count]
      found.append(rows / math.sqrt(group.stop - group.start))
    return xp.concatenate(found)


def _parity(bits: Any) -> Any:
  """Returns 1 if a number below 2^16 has an odd number of ones, else 0."""
  # CPUs vectorize this, unlike counting bits.
  for shift in (8, 4, 2, 1):
    bits = bits ^ (bits >> shift)
  return bits & 1


def _hadamard(xp: Any, values: Any) -> Any:
  """Returns the Walsh-Hadamard transform of a vector of size 2^n."""
  size, half = len(values), 1
  while half < size:
    pairs = values.reshape(-1, 2, half)
    values = xp.stack(
      [pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1
    ).reshape(size)
    half *= 2
  return values


class Canaries:
  """The canaries of a run: their directions, updates and cohorts.

  A fair coin decides whether each canary takes part. Those that do are sampled
  like users: canary i is in a round if user i is in a second draw of the plan's
  cohorts.

  Example:

  ```
  canaries = Canaries([(500, 64), (64,)], plan, seed=seeds.audit, count=1000)
  updates = canaries.updates(canaries.cohort(round_num))
  ```

  Attributes:
    directions: Directions of the canaries.
    signs: int8 [2, coordinates]; see `Directions.take`.
    took_part: Whether each canary takes part.
    plan: The plan of the run.
  """

  def __init__(
    self,
    shapes: Sequence[tuple[int, ...]],
    plan: privacy.PrivacyPlan,
    *,
    seed: int,
    count: int,
  ):
    """Initializes the canaries.

    Args:
      shapes: The shapes of the model's arrays.
      plan: The plan of the run.
      seed: The seed of coins, signs and cohorts.
      count: Number of canaries.

    Raises:
      ValueError: If there are too many canaries for the model.
    """
    validate.integers(1, audit_canaries=count)
    validate.in_range(1, _MOST, audit_canaries=count)
    sizes = [math.prod(shape) for shape in shapes]
    self.directions = Directions(_make_groups(sizes, count))
    self.plan = plan
    self._seed = seed
    coins = seeds_lib.generator('audit', seed, 0)
    self.took_part = coins.random(count) < 0.5
    shape = 2, sum(sizes)
    bits = seeds_lib.generator('audit', seed, 1).integers(0, 2, shape)
    self.signs = (2 * bits - 1).astype(np.int8)

  def __len__(self) -> int:
    return len(self.took_part)

  @property
  def norm(self) -> float:
    """The norm of a canary's update; clipping reduces it to S."""
    return _NORM * self.plan.clip_norm

  def cohort(self, round_num: int) -> np.ndarray:
    """Returns the canaries that are in a round."""
    found = []
    for first in range(0, len(self), self.plan.population):
      users = self.plan.cohort(round_num, self._seed + first)
      found.append(first + users)
    drawn = np.concatenate(found)
    drawn = drawn[drawn < len(self)]
    return drawn[self.took_part[drawn]]

  def updates(self, canaries: np.ndarray) -> np.ndarray:
    """Returns the canaries' updates, [canaries, coordinates]."""
    found = np.zeros((len(canaries), self.directions.num_coordinates), 'f4')
    for update, canary in zip(found, canaries, strict=True):
      # Like `Directions.take`, but numpy is faster at repeating a row.
      start, stop, bits, row, family = self.directions.table[canary]
      signs = self.signs[family, start:stop]
      pattern = 1 - 2 * _parity(row & np.arange(bits + 1))
      repeated = np.resize(pattern.astype(np.float32), stop - start)
      update[start:stop] = repeated * signs
      update[start:stop] *= self.norm / math.sqrt(stop - start)
    return found

  def scores(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the inner product of each direction with a model's arrays."""
    flat = np.concatenate([np.asarray(a, np.float32).ravel() for a in arrays])
    return self.directions.scores(np, self.signs, flat)

  @property
  def added_noise(self) -> float:
    """How much canaries increase the noise of a round, as a fraction.

    Canaries of a round are nearly orthogonal: together their norm is
    S sqrt(q m). The norm of the noise is sigma S sqrt(d).
    """
    plan = self.plan
    mean_count = plan.sampling_rate * self.took_part.sum()
    noise = plan.update_noise_multiplier**2 * self.directions.num_coordinates
    return math.sqrt(1 + mean_count / noise) - 1
