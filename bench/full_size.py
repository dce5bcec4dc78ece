"""Predicts what full-size StackOverflow takes on 1, 8 and 32 GPUs.

    python -m bench.scaling --axes=plan

Predicts disk space, time and memory from the pieces of `bench.pieces`. Numbers
of users and sentences are those of TFF's documentation. Every client is assumed
to have 256 sentences, the maximum that is kept: an upper bound.
"""

import dataclasses
import math
import types
from typing import Optional

import numpy as np
from pda_fed import models
from pda_fed.common import validate
from pda_fed.vectorized import devices as devices_lib

from bench import pieces as pieces_lib

_BATCH = 16
_MAX_SENTENCES = 256
_ROW_TOKENS = 21
_TOKEN_BYTES = 2
_NAME_BYTES = 8  # Approximate size of a user's id.
# A process of the JAX engine; see `bench.scaling --axes=memory`.
_PROCESS_BYTES, _PROCESS_BYTES_PER_USER = 130e6, 13
_ROUNDS_PER_DISPATCH = 20
# Memory that JAX allocates of an H200's 141 GB.
_GPU_BYTES = 105e9


@dataclasses.dataclass(frozen=True)
class Split:
  """Users and sentences of a split, as TFF documents them."""

  users: int
  sentences: int

  @property
  def most_stored(self) -> int:
    """Upper bound on the number of stored sentences."""
    return min(self.sentences, self.users * _MAX_SENTENCES)


SPLITS = {
  'train': Split(342_477, 135_818_730),
  'held-out': Split(38_758, 16_491_230),
  'test': Split(204_088, 16_586_035),
}
_NUM_PARAMETERS = sum(models.RecurrentSpec().parameter_counts.values())
CHECKPOINT_BYTES = 2 * 4 * _NUM_PARAMETERS  # Weights and momentum.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
  """A run.

  Attributes:
    cohort: Number of clients of a round, or its mean with Poisson sampling.
    rounds: Number of rounds.
    steps: Number of local steps of a client.
    public_users: Number of public users trained in each round.
    is_poisson: Whether the number of clients varies.
    num_parameters: Number of weights of the model.
    evaluated: Number of sentences of all evaluations. Default: that of the
      recorded runs, 500 users every 100 rounds, and the test users once.
  """

  cohort: int = 100
  rounds: int = 1600
  steps: int = _MAX_SENTENCES // _BATCH
  public_users: int = 0
  is_poisson: bool = True
  num_parameters: int = _NUM_PARAMETERS
  evaluated: int = 16 * 500 * _MAX_SENTENCES + SPLITS['test'].most_stored

  def __post_init__(self):
    validate.integers(
      1, cohort=self.cohort, rounds=self.rounds, steps=self.steps
    )
    validate.integers(0, public_users=self.public_users)


@dataclasses.dataclass(frozen=True)
class Prediction:
  """Predicted time and memory of a run.

  Attributes:
    num_devices: Number of devices that share each round.
    clients_per_chunk: Number of clients side by side.
    clients: Seconds of a round, without reduction and reading.
    reduction: Seconds of a round's sums over devices.
    reading: Seconds to read a round's clients, on the host that reads most.
    evaluation: Seconds of all evaluations.
    total: Seconds of the run.
    device_bytes: Memory of a device.
    host_bytes: Memory of a host, without the mapped store.
  """

  num_devices: int
  clients_per_chunk: int
  clients: float
  reduction: float
  reading: float
  evaluation: float
  total: float
  device_bytes: float
  host_bytes: float

  @property
  def round(self) -> float:
    """Seconds of a round."""
    return self.clients + self.reduction + self.reading


def expected_chunks(
  cohort: int, clients_per_chunk: int, num_devices: int, is_poisson: bool
) -> float:
  """Returns the number of chunks of the device with the most chunks.

  Example:

    >>> expected_chunks(100, 13, 8, is_poisson=False)
    1.0
    >>> round(expected_chunks(100, 13, 8, is_poisson=True), 2)
    1.32

  Args:
    cohort: See `Work`.
    clients_per_chunk: Number of clients side by side.
    num_devices: Number of devices that share the chunks.
    is_poisson: Whether the cohort varies. The result is then the mean.
  """
  together = clients_per_chunk * num_devices
  if not is_poisson:
    return float(math.ceil(cohort / together))
  from scipy import stats

  # There is an i-th chunk if more clients come than i - 1 chunks hold.
  most = math.ceil((cohort + 10 * math.sqrt(cohort) + 10) / together)
  return float(stats.poisson.sf(np.arange(most) * together, cohort).sum())


def engine_choice(
  work: Work, pieces: pieces_lib.Pieces, num_devices: int
) -> int:
  """Returns the number of clients that the engine trains side by side.

  Args:
    work: The run.
    pieces: Measured costs of the device.
    num_devices: Number of devices.
  """
  is_cpu = not pieces.device_bytes_per_client
  device = types.SimpleNamespace(
    platform='cpu' if is_cpu else 'gpu',
    memory_stats=lambda: {'bytes_limit': _GPU_BYTES},
  )
  return devices_lib.choose_clients_per_chunk(
    work.num_parameters,
    device,
    np.full(work.cohort, work.steps),
    math.ceil(work.cohort / num_devices),
  )


def predict(
  work: Work,
  pieces: pieces_lib.Pieces,
  link: pieces_lib.Link,
  num_devices: int,
  clients_per_chunk: Optional[int] = None,
) -> Prediction:
  """Predicts time and memory of a run from pieces.

  Example:

    >>> cost = pieces_lib.RoundCost(fixed=1.0, step=0.25, client=0.5)
    >>> pieces = pieces_lib.Pieces('device', cost, 0.0, 0.0, 0.0, 8)
    >>> link = pieces_lib.Link('link', 100.0, 0.0)
    >>> work = Work(
    ...   cohort=8, rounds=10, steps=2, is_poisson=False, num_parameters=100)
    >>> found = predict(work, pieces, link, 2, clients_per_chunk=4)
    >>> found.clients, found.reduction, found.total
    (5.5, 4.0, 95.0)

  Args:
    work: The run.
    pieces: Measured costs of the device.
    link: Connection between devices.
    num_devices: Number of devices that share each round.
    clients_per_chunk: Number of clients side by side. Default: the fastest.

  Raises:
    ValueError: If a number is less than 1.
  """
  validate.integers(1, num_devices=num_devices)
  if clients_per_chunk is None:
    largest = work.cohort + 4 * math.sqrt(work.cohort) * work.is_poisson
    sizes = range(1, math.ceil(largest / num_devices) + 1)
    found = [predict(work, pieces, link, num_devices, c) for c in sizes]
    return min(found, key=lambda p: p.round)
  validate.integers(1, clients_per_chunk=clients_per_chunk)
  chunks = expected_chunks(
    work.cohort, clients_per_chunk, num_devices, work.is_poisson
  )
  clients = pieces.cost.seconds(chunks * work.steps, clients_per_chunk)
  reductions = 1
  if work.public_users:
    together = min(clients_per_chunk, work.public_users)
    chunks = expected_chunks(work.public_users, together, num_devices, False)
    public = pieces.cost.seconds(chunks * work.steps, together)
    clients += public - pieces.cost.fixed
    reductions = 2
  hosts = math.ceil(num_devices / pieces.devices_per_host)
  own_clients = math.ceil(work.cohort / hosts)
  weights = 4 * work.num_parameters
  seconds = {
    'clients': clients,
    'reduction': reductions * link.seconds(weights, num_devices),
    'reading': (own_clients + work.public_users) * pieces.read,
  }
  evaluation = work.evaluated * pieces.evaluation
  # Tokens and weight of a sentence.
  sentence = _ROW_TOKENS * _TOKEN_BYTES + 4
  cohort_bytes = own_clients * work.steps * _BATCH * sentence
  return Prediction(
    num_devices,
    clients_per_chunk,
    **seconds,
    evaluation=evaluation,
    total=work.rounds * sum(seconds.values()) + evaluation,
    # Weights and momentum, before and after a round.
    device_bytes=4 * weights
    + clients_per_chunk * pieces.device_bytes_per_client,
    host_bytes=_PROCESS_BYTES
    + _PROCESS_BYTES_PER_USER * SPLITS['train'].users
    + 2 * weights
    + _ROUNDS_PER_DISPATCH * cohort_bytes,
  )


def store_bytes() -> int:
  """Returns an upper bound on the size of the token store, in bytes."""
  users = sum(s.users for s in SPLITS.values())
  sentences = sum(s.most_stored for s in SPLITS.values())
  offsets = 2 * 8 * users
  rows = sentences * _ROW_TOKENS * _TOKEN_BYTES
  return rows + offsets + users * _NAME_BYTES
