"""Loads cohorts of users as padded arrays, for static shapes."""

from collections.abc import Sequence
import dataclasses
from typing import Optional

from data_prep import user_store
import numpy as np
from pda_fed.common import validate


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CohortArrays:
  """The examples of a cohort.

  Example: see `load_cohort`.

  Attributes:
    examples: The arrays of the store's `read`, each [clients, steps, batch,
      ...], padded with 0. A token store has one array, of token ids.
    weights: float32 [clients, steps, batch]: 1 for an example, 0 for padding.
  """

  examples: tuple[np.ndarray, ...]
  weights: np.ndarray


def load_cohort(
  data: user_store.UserStore,
  group: str,
  users: Sequence[int],
  *,
  batch_size: int = 16,
  steps: Optional[int] = None,
  num_clients: Optional[int] = None,
) -> CohortArrays:
  """Reads the examples of a cohort into arrays of a fixed shape.

  Example:

  ```
  cohort = load_cohort(store, 'private', [3, 14, 15])
  cohort.examples[0].shape  # (3, 16, 16, 21)
  ```

  Args:
    data: The store.
    group: One of the store's groups.
    users: Indices of the users in the group.
    batch_size: Number of examples in a step.
    steps: Number of steps of a client. Default: as many as the group's largest
      user needs.
    num_clients: Size of the first dimension, at least the number of users.
      Default: the number of users. Further clients are padding.

  Returns:
    The arrays. A client's examples fill its steps in order.

  Raises:
    TypeError: If users are not integers, but for example a mask.
    ValueError: If a user or the cohort is too large.
    IndexError: If a user is not in the group.
  """
  validate.one_of(data.groups, group=group)
  validate.integers(1, batch_size=batch_size)
  if steps is None:
    most = int(data.num_examples(group).max(initial=1))
    steps = -(-most // batch_size)
  places = np.asarray(users)
  # A boolean mask would be read as the numbers 0 and 1.
  if places.ndim != 1 or (places.size and places.dtype.kind not in 'iu'):
    raise TypeError(
      f'users must be a vector of integers. Found the dtype {places.dtype} and'
      f' the shape {places.shape}.'
    )
  places = places.astype(np.int64)
  num_clients = len(users) if num_clients is None else num_clients
  validate.integers(1, steps=steps)
  validate.integers(len(users), num_clients=num_clients)
  offsets = data.row_offsets(group)
  if places.size and not 0 <= places.min() <= places.max() < offsets.size - 1:
    raise IndexError(
      f'users must be in [0, {offsets.size - 2}], the indices of {group}'
      f' users. Found {places.min()} to {places.max()}.'
    )
  starts, stops = offsets[places], offsets[places + 1]
  sizes = stops - starts
  room = steps * batch_size
  if sizes.max(initial=0) > room:
    raise ValueError(
      f'steps must be at least {-(-int(sizes.max()) // batch_size)} with'
      f' batch_size={batch_size} for a user of {sizes.max()} {data.UNIT}. Found'
      f' {steps}.'
    )
  examples = [
    np.zeros((num_clients, room, *shape), dtype)
    for shape, dtype in data.row_shapes
  ]
  for i, (start, stop) in enumerate(
    zip(starts.tolist(), stops.tolist(), strict=True)
  ):
    for array, rows in zip(examples, data.read(start, stop), strict=True):
      array[i, : stop - start] = rows
  weights = np.zeros((num_clients, room), np.float32)
  weights[: places.size] = np.arange(room) < sizes[:, None]
  return CohortArrays(
    examples=tuple(
      array.reshape(num_clients, steps, batch_size, *array.shape[2:])
      for array in examples
    ),
    weights=weights.reshape(num_clients, steps, batch_size),
  )
