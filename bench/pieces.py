"""The measured pieces of a round, from which `bench.full_size` predicts.

A device trains chunks of clients one after the other. Each step of a chunk has
a cost of its own, latency and the server's weights, and a cost for each client
that trains in it:

    seconds of a round = fixed + steps x (step + client x clients side by side)

where `steps` is the length of the chain: the local steps of a device's chunks,
one chunk after the other.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
from typing import Any, NamedTuple, Optional

import numpy as np
from pda_fed.common import validate

# Measured on our machines; `bench.scaling --axes=pieces` measures others.
DEFAULT_FILE = pathlib.Path(__file__).resolve().with_suffix('.json')


class MeasuredRound(NamedTuple):
  """A round on one device.

  Attributes:
    steps: Local steps of its chunks, one after the other.
    clients_per_chunk: Clients side by side.
    seconds: What it took.
  """

  steps: float
  clients_per_chunk: int
  seconds: float


@dataclasses.dataclass(frozen=True)
class RoundCost:
  """Seconds of a round on one device.

  Example:

    >>> cost = RoundCost(fixed=0.5, step=0.1, client=0.01)
    >>> cost.seconds(steps=2, clients_per_chunk=10)
    0.9

  Attributes:
    fixed: Noise, the server's step and the call.
    step: A step of a chunk before its first client.
    client: A step for each client of the chunk.
  """

  fixed: float
  step: float
  client: float

  def __post_init__(self):
    for field in dataclasses.fields(self):
      validate.non_negative(**{field.name: getattr(self, field.name)})

  def seconds(self, steps: float, clients_per_chunk: int) -> float:
    """Returns the seconds of a round.

    Args:
      steps: See `MeasuredRound`.
      clients_per_chunk: See `MeasuredRound`.
    """
    return self.fixed + steps * (self.step + self.client * clients_per_chunk)


def fit_cost(
  rounds: Sequence[MeasuredRound], fixed: Optional[float] = None
) -> RoundCost:
  """Finds the costs that explain measured rounds, by least squares.

  Errors are relative, so that short rounds count as much as long ones. Costs
  are not negative: one that would be is taken to be 0.

  Example:

    >>> cost = RoundCost(fixed=0.5, step=0.1, client=0.01)
    >>> sizes = [(1, 1), (4, 1), (4, 10)]
    >>> rounds = [MeasuredRound(*s, cost.seconds(*s)) for s in sizes]
    >>> found = fit_cost(rounds)
    >>> [round(x, 6) for x in dataclasses.astuple(found)]
    [0.5, 0.1, 0.01]

  Args:
    rounds: If all have the same number of clients side by side, as on a CPU,
      all cost is the clients'.
    fixed: Known from elsewhere. Rounds of one cohort do not tell it from the
      clients' cost.

  Returns:
    The costs.

  Raises:
    ValueError: If the rounds are too few to tell the costs apart.
  """
  from scipy import optimize

  wanted = {'fixed': lambda r: 1.0, 'step': lambda r: r.steps}
  wanted['client'] = lambda r: r.steps * r.clients_per_chunk
  if fixed is not None:
    del wanted['fixed']
  if len({r.clients_per_chunk for r in rounds}) == 1:
    del wanted['step']
  seconds = np.array([r.seconds for r in rounds])
  design = np.array([[of(r) for of in wanted.values()] for r in rounds])
  design = design / seconds[:, None]
  if np.linalg.matrix_rank(design) < len(wanted):
    raise ValueError(
      f'rounds must differ in steps and in clients side by side, enough to'
      f' tell {list(wanted)} apart. Found {list(rounds)}.'
    )
  known = fixed or 0.0
  found, _ = optimize.nnls(design, 1 - known / seconds)
  costs = {'fixed': known, 'step': 0.0, **dict(zip(wanted, found, strict=True))}
  return RoundCost(**{name: float(value) for name, value in costs.items()})


@dataclasses.dataclass(frozen=True)
class Link:
  """How devices exchange their sums.

  Example:

    >>> Link('two steps', bytes_per_second=100.0, latency=1.0).seconds(200, 2)
    4.0

  Attributes:
    name: For tables.
    bytes_per_second: What a device sends, while it also receives.
    latency: Seconds of a message before its first byte.
  """

  name: str
  bytes_per_second: float
  latency: float

  def __post_init__(self):
    validate.positive(bytes_per_second=self.bytes_per_second)
    validate.non_negative(latency=self.latency)

  def seconds(self, size: float, num_devices: int) -> float:
    """Returns the seconds of the sum of arrays over devices.

    Each device sends the n-th part of its numbers to each of the others, adds
    what it gets and sends the sum to each of the others: 2 (n - 1) messages.

    Args:
      size: Bytes of a device's numbers.
      num_devices: n; one sends nothing.
    """
    message = self.latency + size / num_devices / self.bytes_per_second
    return 2 * (num_devices - 1) * message


def fit_link(name: str, size: int, seconds: float, of_two: float) -> Link:
  """Finds a link from sums over two devices.

  Args:
    name: For tables.
    size: Bytes of the larger sum.
    seconds: That it took.
    of_two: Seconds of a sum of two numbers, which is latency alone.

  Raises:
    ValueError: If the larger sum did not take longer.
  """
  validate.positive(**{'seconds - of_two': seconds - of_two})
  return Link(name, size / (seconds - of_two), of_two / 2)


@dataclasses.dataclass(frozen=True)
class Pieces:
  """What was measured on a kind of device.

  Attributes:
    device: Its kind, and what was computed, for tables.
    cost: What a round of the paper's model costs.
    evaluation: Seconds of a sentence in an evaluation, on one device.
    read: Seconds to read a client of 256 sentences and arrange it, on its host.
    device_bytes_per_client: Memory of a client in training; 0 on a CPU, whose
      memory is the host's.
    devices_per_host: That share a host.
  """

  device: str
  cost: RoundCost
  evaluation: float
  read: float
  device_bytes_per_client: float
  devices_per_host: int

  def __post_init__(self):
    validate.non_negative(
      evaluation=self.evaluation,
      read=self.read,
      device_bytes_per_client=self.device_bytes_per_client,
    )
    validate.integers(1, devices_per_host=self.devices_per_host)


def to_json(
  pieces: Pieces, rounds: Sequence[MeasuredRound], how: str
) -> dict[str, Any]:
  """Returns an entry of a file of pieces.

  Args:
    pieces: What was measured.
    rounds: From which the costs of a round come.
    how: Where and how it was measured.
  """
  entry = dataclasses.asdict(pieces)
  del entry['cost']
  return {**entry, 'how': how, 'rounds': [list(r) for r in rounds]}


def from_json(entry: Mapping[str, Any]) -> Pieces:
  """Reads an entry of a file of pieces: costs are fitted to its rounds.

  Args:
    entry: As `to_json` gives it; `fixed` may hold that part of the cost.

  Raises:
    ValueError: If the entry lacks a field, or a number is out of range.
  """
  fields = [f.name for f in dataclasses.fields(Pieces) if f.name != 'cost']
  missing = [name for name in (*fields, 'rounds') if name not in entry]
  if missing:
    raise ValueError(
      f'pieces must have {", ".join(missing)}. Found {sorted(entry)}.'
    )
  rounds = [MeasuredRound(*r) for r in entry['rounds']]
  for r in rounds:
    for name, value in r._asdict().items():
      validate.positive(**{name: value})
  cost = fit_cost(rounds, entry.get('fixed'))
  return Pieces(cost=cost, **{name: entry[name] for name in fields})


class Check(NamedTuple):
  """A measured round that costs were not fitted to.

  Attributes:
    device: Whose pieces predict it.
    what: For tables.
    steps: See `MeasuredRound`.
    clients_per_chunk: See `MeasuredRound`.
    seconds: See `MeasuredRound`.
  """

  device: str
  what: str
  steps: float
  clients_per_chunk: int
  seconds: float


class Loaded(NamedTuple):
  """A file of pieces.

  Attributes:
    devices: Pieces of kinds of devices.
    links: Between devices.
    checks: Rounds to put beside a prediction.
  """

  devices: list[Pieces]
  links: list[Link]
  checks: list[Check]


def load(path: pathlib.Path) -> Loaded:
  """Reads a file of pieces.

  Args:
    path: A JSON file with `devices`, and perhaps `links` and `checks`. Without
      links, those of `DEFAULT_FILE` are taken.

  Raises:
    OSError: If it cannot be read.
    ValueError: If it is no such file.
  """
  found = json.loads(pathlib.Path(path).read_text())
  if 'devices' not in found:
    raise ValueError(f'{path} must have devices. Found {sorted(found)}.')
  links = found.get('links')
  return Loaded(
    [from_json(entry) for entry in found['devices']],
    [Link(**link) for link in links] if links else load(DEFAULT_FILE).links,
    [Check(*check) for check in found.get('checks', [])],
  )


def save(path: pathlib.Path, **parts: Sequence[Mapping[str, Any]]) -> None:
  """Writes parts of a file of pieces, and leaves its others as they are.

  Args:
    path: The file; made if it is not there.
    **parts: `devices` or `links`.
  """
  old = json.loads(path.read_text()) if path.exists() else {}
  path.write_text(json.dumps({**old, **parts}, indent=1) + '\n')
