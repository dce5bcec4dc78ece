"""Measured costs of rounds, from which `bench.full_size` predicts.

A device trains chunks of clients one after another. Each step of a chunk has a
constant cost (latency and the server's weights), and a cost for each client
that trains in it:

    seconds of a round = fixed + steps x (step + client x clients side by side)

where `steps` is the number of local steps of a device's chunks, one chunk after
another.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
from typing import Any, NamedTuple, Optional

import numpy as np
from pda_fed.common import validate

# Measured on our machines. `bench.scaling --axes=pieces` measures this one.
DEFAULT_FILE = pathlib.Path(__file__).resolve().with_suffix('.json')


class MeasuredRound(NamedTuple):
  """A round on one device.

  Attributes:
    steps: Number of local steps of its chunks, one after another.
    clients_per_chunk: Number of clients side by side.
    seconds: Duration of the round.
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
    fixed: Seconds of the noise, the server's step and the call.
    step: Seconds of a step of a chunk, without its clients.
    client: Seconds of a step for each client of the chunk.
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
  """Fits costs to measured rounds by least squares.

  Errors are relative, so that short rounds count as much as long ones. Costs
  that would be negative are 0.

  Example:

    >>> cost = RoundCost(fixed=0.5, step=0.1, client=0.01)
    >>> sizes = [(1, 1), (4, 1), (4, 10)]
    >>> rounds = [MeasuredRound(*s, cost.seconds(*s)) for s in sizes]
    >>> found = fit_cost(rounds)
    >>> [round(x, 6) for x in dataclasses.astuple(found)]
    [0.5, 0.1, 0.01]

  Args:
    rounds: Measured rounds. If all have the same number of clients side by
      side, as on a CPU, `step` is 0.
    fixed: Known value of the fixed cost. Rounds of one cohort cannot separate
      it from the clients' cost.

  Returns:
    The costs.

  Raises:
    ValueError: If there are too few rounds to separate the costs.
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
      'rounds must differ in steps and in clients side by side, to separate'
      f' {list(wanted)}. Found {list(rounds)}.'
    )
  known = fixed or 0.0
  found, _ = optimize.nnls(design, 1 - known / seconds)
  costs = {'fixed': known, 'step': 0.0, **dict(zip(wanted, found, strict=True))}
  return RoundCost(**{name: float(value) for name, value in costs.items()})


@dataclasses.dataclass(frozen=True)
class Link:
  """The connection over which devices exchange sums.

  Example:

    >>> Link('two steps', bytes_per_second=100.0, latency=1.0).seconds(200, 2)
    4.0

  Attributes:
    name: Name in tables.
    bytes_per_second: Rate at which a device sends, while it also receives.
    latency: Seconds before the first byte of a message.
  """

  name: str
  bytes_per_second: float
  latency: float

  def __post_init__(self):
    validate.positive(bytes_per_second=self.bytes_per_second)
    validate.non_negative(latency=self.latency)

  def seconds(self, size: float, num_devices: int) -> float:
    """Returns the seconds to sum arrays over devices.

    Each device sends one n-th of its numbers to each other device, adds the
    numbers it receives, and sends the sum to each other device: 2 (n - 1)
    messages.

    Args:
      size: Size of a device's numbers, in bytes.
      num_devices: n. A single device sends nothing.
    """
    message = self.latency + size / num_devices / self.bytes_per_second
    return 2 * (num_devices - 1) * message


def fit_link(name: str, size: int, seconds: float, of_two: float) -> Link:
  """Fits a link to sums over two devices.

  Args:
    name: Name in tables.
    size: Size of the larger sum, in bytes.
    seconds: Seconds of the larger sum.
    of_two: Seconds of a sum of two numbers, which is only latency.

  Raises:
    ValueError: If the larger sum did not take longer.
  """
  validate.positive(**{'seconds - of_two': seconds - of_two})
  return Link(name, size / (seconds - of_two), of_two / 2)


@dataclasses.dataclass(frozen=True)
class Pieces:
  """Measured costs of a kind of device.

  Attributes:
    device: Name in tables: the kind of device, and what it computed.
    cost: Cost of a round of the paper's model.
    evaluation: Seconds per sentence in an evaluation, on one device.
    read: Seconds to read and arrange a client of 256 sentences, on its host.
    device_bytes_per_client: Memory of a client in training. 0 on a CPU, which
      uses the host's memory.
    devices_per_host: Number of devices of a host.
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
    pieces: The measured costs.
    rounds: Rounds to which the costs were fitted.
    how: Where and how the costs were measured.
  """
  entry = dataclasses.asdict(pieces)
  del entry['cost']
  return {**entry, 'how': how, 'rounds': [list(r) for r in rounds]}


def from_json(entry: Mapping[str, Any]) -> Pieces:
  """Reads an entry of a file of pieces, and fits costs to its rounds.

  Args:
    entry: Result of `to_json`. It may have a `fixed` cost.

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
  """A measured round that was not used to fit costs.

  Attributes:
    device: Name of the device whose pieces predict it.
    what: Name in tables.
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
    devices: Costs of kinds of devices.
    links: Connections between devices.
    checks: Rounds to compare with predictions.
  """

  devices: list[Pieces]
  links: list[Link]
  checks: list[Check]


def load(path: pathlib.Path) -> Loaded:
  """Reads a file of pieces.

  Args:
    path: A JSON file with `devices`, and optionally `links` and `checks`.
      Default links are those of `DEFAULT_FILE`.

  Raises:
    OSError: If the file cannot be read.
    ValueError: If it is not a file of pieces.
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
  """Writes parts of a file of pieces, and keeps its other parts.

  Args:
    path: The file. It is created if missing.
    **parts: `devices` or `links`.
  """
  old = json.loads(path.read_text()) if path.exists() else {}
  path.write_text(json.dumps({**old, **parts}, indent=1) + '\n')
