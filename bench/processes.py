"""Measures rounds shared by one-core processes, and sums over them.

    python -m bench.scaling --axes=processes

Processes communicate through `jax.distributed` on the loopback, as hosts do.
All of them stay alive and jobs alternate, so that other load on the machine
affects all of them alike.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import multiprocessing
import os
import socket
import statistics
import time
from typing import Any

import numpy as np
from pda_fed import models
from pda_fed.common import tables
import tqdm

from bench import full_size
from bench import made_up_rounds
from bench import pieces as pieces_lib

_SMALL = models.RecurrentSpec(num_words=1000, embedding_size=16, lstm_size=32)
_STEPS = 1  # Each client trains on one batch.
# Name, model, and number of clients of a process.
WORKS = (
  ('small model', _SMALL, 48),
  ("paper's model", models.RecurrentSpec(), 4),
)
_JOIN_S = 60


class _Worker:
  """The jobs of a process."""

  def __init__(self, index: int, count: int, port: int):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[index % len(cores)]})
    # One device per process, even if the parent has set another number.
    os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=1'
    import jax

    jax.config.update('jax_platforms', 'cpu')
    if count > 1:
      jax.config.update('jax_cpu_collectives_implementation', 'gloo')
      address = f'127.0.0.1:{port}'
      jax.distributed.initialize(
        address, count, index, coordinator_bind_address=address
      )
    self._jax, self._devices = jax, jax.devices()
    self._rounds: dict[str, made_up_rounds.Rounds] = {}
    self._sums: dict[Any, Callable[[], Any]] = {}

  def _together(self) -> None:
    """Waits for the other processes."""
    self._sum('ordered', 2)()

  def round(self, name: str, share: float) -> float:
    """Returns the seconds of a round with a share of a work's clients."""
    spec, clients = next((s, c) for n, s, c in WORKS if n == name)
    if name not in self._rounds:
      self._rounds[name] = made_up_rounds.Rounds(
        spec, self._devices, most_chunks=clients, most_steps=_STEPS
      )
    run = self._rounds[name]
    total = round(share * clients) * len(self._devices)
    self._together()
    return run(clients=total, clients_per_chunk=1, steps=_STEPS)

  def sum(self, kind: str, size: int) -> float:
    """Returns the seconds of the sum of float32 numbers over processes."""
    run = self._sum(kind, size)
    self._together()
    started = time.perf_counter()
    self._jax.block_until_ready(run())
    return time.perf_counter() - started

  def _sum(self, kind: str, size: int) -> Callable[[], Any]:
    key = kind, size
    if key not in self._sums:
      self._sums[key] = made_up_rounds.build_sum(kind, size, self._devices)
      self._jax.block_until_ready(self._sums[key]())  # Compiles.
    return self._sums[key]


def _serve(pipe, index: int, count: int, port: int) -> None:
  """Runs in a process, and answers until the pipe is closed."""
  worker = _Worker(index, count, port)
  while True:
    try:
      name, *args = pipe.recv()
    except EOFError:
      return
    pipe.send(getattr(worker, name)(*args))


class Group:
  """Processes that share rounds, or run their own."""

  def __init__(self, pipes: Sequence[Any]):
    self._pipes = pipes

  def __call__(self, *command: Any) -> float:
    """Runs a command on all processes; returns the seconds of the slowest."""
    for pipe in self._pipes:
      pipe.send(command)
    return max(pipe.recv() for pipe in self._pipes)


def _free_port() -> int:
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    return s.getsockname()[1]


@contextlib.contextmanager
def _groups() -> Iterator[dict[str, Group]]:
  """Yields one process, two that share rounds, and two independent ones."""
  context = multiprocessing.get_context('spawn')
  with contextlib.ExitStack() as stack:

    def start(index: int, count: int, port: int):
      own, other = context.Pipe()
      process = context.Process(
        target=_serve, args=(other, index, count, port), daemon=True
      )
      process.start()
      other.close()
      # Closing the pipe ends the process. Both pipes of a pair are closed
      # before either process is joined.
      stack.callback(process.join, _JOIN_S)
      return own

    alone = [start(i, 1, 0) for i in range(2)]
    port = _free_port()
    shared = [start(i, 2, port) for i in range(2)]
    for pipe in (*alone, *shared):
      stack.callback(pipe.close)
    yield {
      'one': Group(alone[:1]),
      'apart': Group(alone),
      'shared': Group(shared),
    }


@dataclasses.dataclass(frozen=True)
class Found:
  """Medians, in seconds.

  Attributes:
    work: Name of the work.
    clients: Number of clients of a process.
    one: A round of one process.
    shared: A round of two processes, with twice the clients.
    apart: A round of two independent processes: it shows what using the second
      core costs on this machine.
    predicted_one: Prediction of `one`, from rounds with a half and a quarter of
      the clients.
    predicted_shared: Prediction of `shared`, from `apart` and the sum over
      processes.
    efficiency: Median of one / shared.
    against_apart: Median of apart / shared.
  """

  work: str
  clients: int
  one: float
  shared: float
  apart: float
  predicted_one: float
  predicted_shared: float
  efficiency: float
  against_apart: float


@dataclasses.dataclass(frozen=True)
class Sums:
  """Seconds of a sum over two processes.

  Attributes:
    size: Number of float32 numbers.
    ordered: Sum in the order of devices, as in a round.
    psum: XLA's own sum.
    of_two: Ordered sum of two numbers, which shows the latency.
  """

  size: int
  ordered: float
  psum: float
  of_two: float

  def link(self) -> pieces_lib.Link:
    """Returns the loopback as a link between devices."""
    name = 'loopback of 2 cores, measured'
    return pieces_lib.fit_link(name, 4 * self.size, self.ordered, self.of_two)


def measure(repeats: int) -> tuple[list[Found], Sums]:
  """Measures rounds and sums alternately.

  Args:
    repeats: Number of measurements of each job, after one to warm up.
  """
  size = full_size.Work().num_parameters
  sizes = {n: sum(s.parameter_counts.values()) for n, s, _ in WORKS}
  with _groups() as groups:
    jobs: dict[Any, tuple[str, tuple[Any, ...]]] = {
      ('sum', kind, count): ('shared', ('sum', kind, count))
      for kind, count in [
        *(('ordered', size), ('psum', size), ('ordered', 2)),
        *(('ordered', count) for count in sizes.values()),
      ]
    }
    for name, *_ in WORKS:
      for group, share in (
        *(('one', 0.25), ('one', 0.5), ('one', 1.0)),
        *(('apart', 1.0), ('shared', 1.0)),
      ):
        jobs[name, group, share] = group, ('round', name, share)
    seconds: dict[Any, list[float]] = {job: [] for job in jobs}
    with tqdm.tqdm(
      total=(repeats + 1) * len(jobs), desc='processes', disable=None
    ) as bar:
      for _ in range(repeats + 1):
        for job, (group, command) in jobs.items():
          seconds[job].append(groups[group](*command))
          bar.update()
  seconds = {job: s[1:] for job, s in seconds.items()}
  medians = {job: statistics.median(s) for job, s in seconds.items()}
  sums = Sums(
    size,
    medians['sum', 'ordered', size],
    medians['sum', 'psum', size],
    medians['sum', 'ordered', 2],
  )
  found = [
    _found(name, clients, medians, seconds, medians['sum', 'ordered', count])
    for (name, _, clients), count in zip(WORKS, sizes.values(), strict=True)
  ]
  return found, sums


def _found(name, clients, medians, seconds, sum_seconds) -> Found:
  """Returns predictions and measurements of a work."""
  cost = pieces_lib.fit_cost(
    [
      pieces_lib.MeasuredRound(
        _STEPS * round(share * clients), 1, medians[name, 'one', share]
      )
      for share in (0.25, 0.5)
    ]
  )
  one, shared = seconds[name, 'one', 1.0], seconds[name, 'shared', 1.0]
  apart = seconds[name, 'apart', 1.0]
  return Found(
    name,
    clients,
    one=medians[name, 'one', 1.0],
    shared=medians[name, 'shared', 1.0],
    apart=medians[name, 'apart', 1.0],
    predicted_one=cost.seconds(_STEPS * clients, 1),
    predicted_shared=medians[name, 'apart', 1.0] + sum_seconds,
    efficiency=float(np.median(np.divide(one, shared))),
    against_apart=float(np.median(np.divide(apart, shared))),
  )


def report(found: Sequence[Found], sums: Sums) -> str:
  """Returns tables of predictions, measurements and sums.

  Args:
    found: Results of each work.
    sums: Sums over two processes.
  """
  rows = [
    row
    for of in found
    for row in (
      (f'{of.work}: {of.clients} clients, 1 process', of.predicted_one, of.one),
      (
        f'{of.work}: {2 * of.clients} clients, 2 processes',
        *(of.predicted_shared, of.shared),
      ),
    )
  ]
  rows = [(n, f'{p:.4f}', f'{m:.4f}', f'{p / m:.2f}') for n, p, m in rows]
  header = ['round', 'predicted s', 'measured s', 'ratio']
  parts = [tables.format_table(header, rows)]
  rows = [
    (
      *(of.work, f'{of.one:.4f}', f'{of.shared:.4f}', f'{of.apart:.4f}'),
      *(f'{of.efficiency:.2f}', f'{of.against_apart:.2f}'),
    )
    for of in found
  ]
  header = ['weak scaling', '1 process s', '2 s', '2 apart s', '1 / 2']
  header += ['apart / 2']
  parts.append(tables.format_table(header, rows))
  millions = f'{sums.size / 1e6:.2f} M numbers'
  rows = [
    (f'{millions}, ordered', f'{1000 * sums.ordered:.1f}'),
    (f'{millions}, psum', f'{1000 * sums.psum:.1f}'),
    ('two numbers, ordered', f'{1000 * sums.of_two:.2f}'),
  ]
  parts.append(tables.format_table(['sum over 2 processes', 'ms'], rows))
  return '\n\n'.join(parts)
