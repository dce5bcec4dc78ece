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


def chunk_clients(
  num_examples: np.ndarray,
  load: LoadFn,
  *,
  batch_size: int,
  clients_per_chunk: int,
  num_devices: int = 1,
  min_chunks: int = 1,
  own_devices: Optional[Sequence[int]] = None,
) -> ClientChunks:
  """Loads clients and arranges them in chunks.

  Example:

    >>> def load(places, num_clients):
    ...   shape = (num_clients, 2, 16)  # Two steps are enough for all of them.
    ...   return (np.zeros((*shape, 21)),), np.ones(shape, np.float32)
    >>> sizes = np.array([3, 20, 16])
    >>> chunks = chunk_clients(sizes, load, batch_size=16, clients_per_chunk=2)
    >>> int(chunks.present.sum()), chunks.examples[0].shape
    (3, (1, 2, 2, 2, 16, 21))

  Args:
    num_examples: The number of examples of each client.
    load: Returns the arrays of the clients, padded at the end.
    batch_size: Number of examples in a step.
    clients_per_chunk: Number of clients that train side by side.
    num_devices: Number of devices that share the clients.
    min_chunks: Minimum room for chunks on each device. Equal room gives equal
      shapes.
    own_devices: Indices of this host's devices. Only their clients are loaded
      and returned. By default all devices.

  Returns:
    The chunks.

  Raises:
    ValueError: If `clients_per_chunk` or `num_devices` is less than 1.
  """
  validate.integers(
    1, clients_per_chunk=clients_per_chunk, num_devices=num_devices
  )
  steps = -(-np.asarray(num_examples) // batch_size)
  assigned = assign_chunks(steps, clients_per_chunk, num_devices)
  counts = np.array([len(chunks) for chunks in assigned], np.int32)
  room = bucket_size(max(int(counts.max()), min_chunks))
  if own_devices is not None:
    assigned = [assigned[device] for device in own_devices]
    counts, num_devices = counts[list(own_devices)], len(own_devices)
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
    num_chunks=counts,
  )


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
  """
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


def chunk_rounds(
  num_examples: Sequence[np.ndarray],
  loads: Sequence[LoadFn],
  *,
  min_chunks: int = 1,
  **options,
) -> list[ClientChunks]:
  """Chunks the clients of several rounds, with equal shapes.

  Example:

    >>> def load(places, num_clients):
    ...   shape = (num_clients, 2, 16)
    ...   return (np.zeros((*shape, 21)),), np.ones(shape, np.float32)
    >>> rounds = chunk_rounds(
    ...   [np.array([3, 20, 16]), np.array([5])], [load, load],
    ...   batch_size=16, clients_per_chunk=2,
    ... )
    >>> [chunks.examples[0].shape for chunks in rounds]
    [(1, 2, 2, 2, 16, 21), (1, 2, 2, 2, 16, 21)]

  Args:
    num_examples: For each round, the number of examples of each client.
    loads: For each round, the function that loads its clients.
    min_chunks: See `chunk_clients`.
    **options: See `chunk_clients`.

  Returns:
    The chunks of each round.

  Raises:
    ValueError: See `chunk_clients`.
  """

  def chunk(size, load, room):
    return chunk_clients(size, load, min_chunks=room, **options)

  rounds = [
    chunk(size, load, min_chunks)
    for size, load in zip(num_examples, loads, strict=True)
  ]
  rooms = [clients.num_steps.shape[1] for clients in rounds]
  return [
    clients if room == max(rooms) else chunk(size, load, max(rooms))
    for clients, room, size, load in zip(
      rounds, rooms, num_examples, loads, strict=True
    )
  ]


def one_batch(
  examples: Examples,
  num_devices: int = 1,
  own_devices: Optional[Sequence[int]] = None,
) -> ClientChunks:
  """Returns a single client with a single batch, on the first device.

  Example:

    >>> one_batch((np.zeros([8, 21]),)).examples[0].shape
    (1, 1, 1, 1, 8, 21)

  Args:
    examples: Arrays [batch, ...].
    num_devices: Number of devices. All but the first are idle.
    own_devices: The devices of this host; by default all.

  Returns:
    A single chunk with that client.
  """
  places = range(num_devices) if own_devices is None else own_devices
  first = np.asarray(places) == 0

  def on_first(array: np.ndarray) -> np.ndarray:
    chunks = np.zeros((len(first), 1, 1, 1, *array.shape), array.dtype)
    chunks[first] = array
    return chunks

  return ClientChunks(
    examples=tuple(map(on_first, examples)),
    weights=on_first(np.ones(len(examples[0]), np.float32)),
    present=first[:, None, None],
    num_steps=first[:, None].astype(np.int32),
    num_chunks=first.astype(np.int32),
  )
