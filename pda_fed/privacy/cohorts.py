"""The users of a round: their draw, and the secret that noises their sum."""

from collections.abc import Mapping, Sequence
import hashlib
from typing import Any, TYPE_CHECKING, Union

import numpy as np
import numpy.typing as npt
from pda_fed.common import validate
from pda_fed.privacy import seeds as seeds_lib

if TYPE_CHECKING:
  from pda_fed.privacy import plan as plan_lib


def draw(plan: 'plan_lib.PrivacyPlan', round_num: int, seed: int) -> np.ndarray:
  """Returns `plan.cohort(round_num, seed)`."""
  validate.integers(0, round_num=round_num, seed=seed)
  is_epoch = plan.sampling == 'epochs'
  step, place = divmod(round_num, plan.rounds_per_epoch if is_epoch else 1)
  draws = seeds_lib.generator('sampling', seed, step).random(plan.population)
  if plan.sampling == 'poisson':
    return np.flatnonzero(draws < plan.sampling_rate)
  # Sorting gives the same order in every numpy version; `permutation` and
  # `choice` do not guarantee that.
  order = np.argsort(draws, kind='stable')
  size = int(plan.expected_cohort)
  return np.sort(order[place * size : (place + 1) * size])


class Cohort(Sequence):
  """The data of the users of one round, and the secrets of its run.

  Example:

    >>> users = {'Ann': [1.5], 'Bo': [0.5], 'Cy': [2.5]}
    >>> cohort = Cohort(users, [0, 2], 7, seeds_lib.SeedStreams())
    >>> cohort.names, list(cohort), cohort
    (('Ann', 'Cy'), [[1.5], [2.5]], Cohort(round_num=7))

  Attributes:
    round_num: The index of the round.
    indices: The places of the users among all users, in increasing order.
    names: The names of the users; their places, unless a mapping names them.
    seeds: The secrets of the run. A trainer makes the round's noise from
      `seeds.noise` and `round_num`.
  """

  def __init__(
    self,
    users: Union[Sequence[Any], Mapping[Any, Any]],
    indices: npt.ArrayLike,
    round_num: int,
    seeds: seeds_lib.SeedStreams,
  ):
    """Keeps the users' data where they are.

    Args:
      users: See `PrivacyPlan.cohorts`.
      indices: The places of the sampled users.
      round_num: The index of the round.
      seeds: The secrets of the run.
    """
    self.round_num = round_num
    self.indices = np.asarray(indices, np.int64)
    self.seeds = seeds
    self._users = users
    places = self.indices.tolist()
    if isinstance(users, Mapping):
      all_names = list(users)
      places = [all_names[i] for i in places]
    self.names = tuple(places)

  def __len__(self) -> int:
    """Returns the number of users."""
    return len(self.names)

  def __getitem__(self, i):
    """Returns the data of a user, or of several."""
    if isinstance(i, slice):
      return [self._users[name] for name in self.names[i]]
    return self._users[self.names[i]]

  def __repr__(self) -> str:
    """Does not tell who takes part, or how many: that is secret."""
    return f'Cohort(round_num={self.round_num})'

  def claim(self, *others: Any) -> None:
    """Claims the round's noise for these users; see `SeedStreams.claim`.

    A trainer calls it before it releases anything.

    Args:
      *others: What else the sum depends on, such as the model's weights.

    Raises:
      ReusedNoiseError: If other users, or other weights, have had this noise.
    """
    digest = hashlib.blake2b(digest_size=32)
    _feed(digest, others)
    for name, data in zip(self.names, self, strict=True):
      digest.update(repr(name).encode())
      _feed(digest, data)
    self.seeds.claim(self.round_num, digest.digest())


def _feed(digest: Any, value: Any) -> None:
  """Adds a value to a digest: arrays, numbers and text, nested or not."""
  if isinstance(value, Mapping):
    value = [pair for pair in value.items()]
  if isinstance(value, (list, tuple)):
    digest.update(b'(%d' % len(value))
    for item in value:
      _feed(digest, item)
    return
  array = np.asarray(value)
  digest.update(f'{array.dtype}{array.shape}'.encode())
  # Of other objects, only the user's name counts.
  if array.dtype != object:
    digest.update(np.ascontiguousarray(array).tobytes())
