"""Groups clients into chunks whose array shapes do not vary between rounds.

Most clients are small, and padding all of them to the size of the largest would
waste most of the work. So clients are sorted by size and grouped into chunks
that train side by side. Each chunk takes as many steps as its largest client.
The numbers of steps and chunks are data, not shapes, so a program is compiled
once, whatever cohorts a Poisson sampler draws.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Optional

import numpy as np
from pda_fed.common import validate
from pda_fed.jax import canaries as canaries_lib

# A function of the clients' indices and the padded number of clients. It
# returns arrays of examples, [clients, steps, batch, ...], and weights,
# [clients, steps, batch].
Examples = tuple[np.ndarray, ...]
LoadFn = Callable[[np.ndarray, int], tuple[Examples, np.ndarray]]


class ClientChunks(NamedTuple):
  """Clients of a round; the first axis is the device.

  Example: see `chunk_clients`.

  Attributes:
    examples: Arrays [devices, chunks, clients, steps, batch, ...].
    weights: float32 [devices, chunks, clients, steps, batch].
    present: bool [devices, chunks, clients]; False is padding.
    num_steps: int32 [devices, chunks].
    num_chunks: int32 [devices]; further chunks are padding.
  """

  examples: Examples
  weights: np.ndarray
  present: np.ndarray
  num_steps: np.ndarray
  num_chunks: np.ndarray


class RoundInputs(NamedTuple):
  """The data of a round, or of several rounds with a leading axis.

  Example: see `stack_rounds`.

  Attributes:
    round_num: Index of the round.
    private: Private clients; None is a cohort without any.
    public: Clients whose updates form the public update; None if the method
      uses none.
    schedules: Values of the method's schedules, by field name.
    canaries: The canaries of an audit; None without an audit.
  """

  round_num: np.ndarray
  private: Optional[ClientChunks]
  public: Optional[ClientChunks] = None
  schedules: Mapping[str, float] = {}
  canaries: Optional[canaries_lib.CanaryInputs] = None


def bucket_size(count: int) -> int:
  """Rounds up to 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: few shapes, little waste.

  Args:
    count: The number to round up, at least 0.
  """
  power = 1
  while power < count:
    power *= 2
  return power // 4 * 3 if 0 < count <= power // 4 * 3 else power


def assign_chunks(
  num_steps: np.ndarray, clients_per_chunk: int, num_devices: int
) -> list[list[np.ndarray]]:
  """Sorts clients into chunks of similar size and assigns them to devices.

  Args:
    num_steps: Number of steps of each client.
    clients_per_chunk: Clients in a chunk; the last one may have fewer.
    num_devices: Number of devices. Each chunk, largest first, goes to the
      device with the least work.

  Returns:
    For each device, its chunks as arrays of client indices.
  """
  order = np.argsort(-num_steps, kind='stable')
  load = [0] * num_devices
  devices = [[] for _ in range(num_devices)]
  for start in range(0, len(order), clients_per_chunk):
    chunk = order[start : start + clients_per_chunk]
    device = load.index(min(load))
    devices[device].append(chunk)
    load[device] += int(num_steps[chunk[0]])
  return devices


def chunk_rounds(
  num_examples: Sequence[np.ndarray],
  loads: Sequence[LoadFn],
  *,
  batch_size: int,
  clients_per_chunk: int,
  num_devices: int = 1,
  min_chunks: int = 1,
  own_devices: Optional[Sequence[int]] = None,
) -> list[ClientChunks]:
  """Loads the clients of several rounds and arranges them in chunks.

  Example: see `chunk_clients`.

  Args:
    num_examples: For each round, the number of examples of each client.
    loads: For each round, the function that returns the arrays of its clients,
      padded at the end.
    batch_size: Number of examples in a step.
    clients_per_chunk: Number of clients that train side by side.
    num_devices: Number of devices that share the clients.
    min_chunks: Minimum room for chunks on each device. Equal room gives equal
      shapes.
    own_devices: Indices of this host's devices. Only their clients are loaded
      and returned. By default all devices.

  Returns:
    The chunks of each round, with equal shapes.

  Raises:
    ValueError: If `clients_per_chunk` or `num_devices` is less than 1.
  """
  validate.integers(
    1, clients_per_chunk=clients_per_chunk, num_devices=num_devices
  )
  own = range(num_devices) if own_devices is None else own_devices
  rounds = []
  for sizes in num_examples:
    steps = -(-np.asarray(sizes) // batch_size)
    assigned = assign_chunks(steps, clients_per_chunk, num_devices)
    rounds.append((steps, assigned))
  most = max(len(chunks) for _, assigned in rounds for chunks in assigned)
  room = bucket_size(max(most, min_chunks))
  return [
    _load_chunks(
      steps, [assigned[d] for d in own], load, room, clients_per_chunk
    )
    for (steps, assigned), load in zip(rounds, loads, strict=True)
  ]


def _load_chunks(
  steps: np.ndarray,
  assigned: list[list[np.ndarray]],
  load: LoadFn,
  room: int,
  clients_per_chunk: int,
) -> ClientChunks:
  """Loads a round's clients, given the chunks of each device."""
  num_devices = len(assigned)
  loaded = []
  present = np.zeros((num_devices, room * clients_per_chunk), bool)
  num_steps = np.zeros((num_devices, room), np.int32)
  for device, chunks in enumerate(assigned):
    # Only the last chunk overall can be short, and it is the last of its
    # device.
    places = np.concatenate([*chunks, np.zeros(0, np.int64)])
    loaded.append(load(places.astype(np.int64), room * clients_per_chunk))
    present[device, : len(places)] = True
    num_steps[device, : len(chunks)] = [steps[c].max() for c in chunks]
  split = num_devices, room, clients_per_chunk

  def stack(*arrays: np.ndarray) -> np.ndarray:
    return np.stack(arrays).reshape(*split, *arrays[0].shape[1:])

  return ClientChunks(
    examples=tuple(map(stack, *(examples for examples, _ in loaded))),
    weights=stack(*(weights for _, weights in loaded)),
    present=present.reshape(split),
    num_steps=num_steps,
    num_chunks=np.array([len(chunks) for chunks in assigned], np.int32),
  )


def chunk_clients(
  num_examples: np.ndarray, load: LoadFn, **options
) -> ClientChunks:
  """Loads the clients of one round and arranges them in chunks.

  Example:

    >>> def load(places, num_clients):
    ...   shape = (num_clients, 2, 16)  # Two steps are enough for all of them.
    ...   return (np.zeros((*shape, 21)),), np.ones(shape, np.float32)
    >>> sizes = np.array([3, 20, 16])
    >>> chunks = chunk_clients(sizes, load, batch_size=16, clients_per_chunk=2)
    >>> int(chunks.present.sum()), chunks.examples[0].shape
    (3, (1, 2, 2, 2, 16, 21))

  Args:
    num_examples: See `chunk_rounds`.
    load: See `chunk_rounds`.
    **options: See `chunk_rounds`.

  Returns:
    The chunks.

  Raises:
    ValueError: See `chunk_rounds`.
  """
  return chunk_rounds([num_examples], [load], **options)[0]


def chunk_users(
  users: Sequence[Examples], *, batch_size: int, **options
) -> ClientChunks:
  """Chunks users whose data are in memory.

  Example:

    >>> users = [(np.ones([3, 21]),), (np.ones([20, 21]),)]
    >>> chunks = chunk_users(users, batch_size=16, clients_per_chunk=2)
    >>> chunks.examples[0].shape, float(chunks.weights.sum())
    ((1, 1, 2, 2, 16, 21), 23.0)

  Args:
    users: The arrays of each user, with one row per example; at least one user.
    batch_size: See `chunk_clients`.
    **options: See `chunk_clients`.

  Returns:
    The chunks.

  Raises:
    ValueError: If the arrays of a user have different numbers of rows.
  """
  for place, user in enumerate(users):
    rows = [np.shape(array)[:1] for array in user]
    if len(set(rows)) > 1 or not rows[0]:
      raise ValueError(
        'users must have arrays with one row for each example. Found shapes'
        f' {[np.shape(array) for array in user]} of user {place}.'
      )
  sizes = np.array([len(user[0]) for user in users])
  # A bucket, so that few programs are compiled.
  steps = bucket_size(-(-int(sizes.max()) // batch_size))

  def load(places, num_clients):
    def stack(parts, like):
      room = (num_clients, steps * batch_size, *like.shape[1:])
      stacked = np.zeros(room, like.dtype)
      for row, part in zip(stacked, parts, strict=False):
        row[: len(part)] = part
      return stacked.reshape(num_clients, steps, batch_size, *like.shape[1:])

    arrays = [
      stack([users[place][i] for place in places], like)
      for i, like in enumerate(map(np.asarray, users[0]))
    ]
    ones = [np.ones(sizes[place], np.float32) for place in places]
    return tuple(arrays), stack(ones, np.zeros(0, np.float32))

  return chunk_clients(sizes, load, batch_size=batch_size, **options)
