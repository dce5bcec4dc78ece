"""Measures federated rounds in JAX: time, memory, and how they grow.

    python -m bench.vectorized_round --work=small,paper
    python -m bench.vectorized_round --work=full --compute_dtype=bfloat16
    python -m bench.vectorized_round --data_dir=data/stackexchange --rounds=20
    python -m bench.vectorized_round --work=small --scale=1,2,4
    python -m bench.vectorized_round --pfl_python=build/pfl-venv/bin/python

TensorFlow is not needed. On a CPU, every core is a device that trains a part of
the clients. With --pfl_python, rounds of pfl-research with the same sizes
alternate with ours.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from collections.abc import Callable, Sequence
import dataclasses
import itertools
import resource
import time

from absl import flags
import data_prep
import jax
import numpy as np
import optax
from pda_fed import jax as pda_jax
from pda_fed.common import tables
from pda_fed.jax import devices as devices_lib
from pda_fed.jax.federated import chunks

from bench import rounds
from bench import timing

_DATA_DIR = flags.DEFINE_string(
  'data_dir',
  None,
  'Token store, of which 100 users train in a round, instead of --work.',
)
_ROUNDS_PER_DISPATCH = flags.DEFINE_integer(
  'rounds_per_dispatch', 1, 'Number of rounds in one call.', lower_bound=1
)
_COMPUTE_DTYPE = flags.DEFINE_list(
  'compute_dtype',
  ['float32'],
  'Data types of matrix products: float32, bfloat16 or both.',
)
_CLIENTS_PER_CHUNK = flags.DEFINE_list(
  'clients_per_chunk',
  ['0'],
  'Numbers of clients side by side. 0 lets the engine choose.',
)
_SCALE = flags.DEFINE_list(
  'scale', ['1'], 'Multiples of the cohort to measure.'
)
_BATCH = 16


class _RandomWords:
  """Clients with full batches of random words."""

  def __init__(self, work: rounds.Work):
    self._num_words = work.spec.num_words
    self._steps = -(-work.sentences // _BATCH)
    self.sizes = np.full(work.clients, work.sentences)

  def load(self, clients: np.ndarray, room: int):
    """Returns batches and their weights, with empty ones up to `room`."""
    shape = self._steps, _BATCH, 21
    tokens = np.zeros((room, *shape), np.uint16)
    tokens[: len(clients)] = np.random.default_rng(0).integers(
      1, self._num_words + 1, (len(clients), *shape)
    )
    weights = np.zeros((room, *shape[:2]), np.float32)
    weights[: len(clients)] = 1
    return (tokens,), weights


class _StoredUsers:
  """The private users of a store."""

  def __init__(self, store: data_prep.TokenStore):
    self._store = store
    self.sizes = store.num_examples('private')
    self._steps = -(-int(self.sizes.max()) // _BATCH)

  def load(self, clients: np.ndarray, room: int):
    """Returns batches and their weights, with empty ones up to `room`."""
    cohort = data_prep.load_cohort(
      self._store,
      'private',
      clients,
      batch_size=_BATCH,
      steps=self._steps,
      num_clients=room,
    )
    return cohort.examples, cohort.weights


def _inputs(
  users, num_clients: int, seed: int, per_chunk: int, num_devices: int
) -> pda_jax.RoundInputs:
  """Returns a round of random users."""
  rng = np.random.default_rng(seed)
  chosen = rng.choice(len(users.sizes), num_clients, replace=False)
  private = chunks.chunk_clients(
    users.sizes[chosen],
    lambda places, room: users.load(chosen[places], room),
    batch_size=_BATCH,
    clients_per_chunk=per_chunk,
    num_devices=num_devices,
  )
  return pda_jax.RoundInputs(round_num=np.int32(seed), private=private)


def _clients_per_chunk(work: rounds.Work, users, used: Sequence) -> int:
  return devices_lib.choose_clients_per_chunk(
    work.spec.num_parameters,
    used[0],
    -(-users.sizes // _BATCH),
    -(-work.clients // len(used)),
  )


def _round_fn(
  work: rounds.Work, users, dtype: str, per_chunk: int
) -> tuple[Callable[[], float], int]:
  """Returns a function that measures DP-FedAvg, and the clients in a chunk."""
  used = devices_lib.choose_devices()
  per_chunk = per_chunk or _clients_per_chunk(work, users, used)
  per_chunk = min(per_chunk, work.clients)
  trainer = pda_jax.Federated(
    work.spec.jax_model(),
    rounds.plan(work),
    client_optimizer=optax.sgd(0.5),
    server_optimizer=optax.sgd(1.0, 0.9),
    compute_dtype=dtype,
  )
  state = trainer.init(trainer.model.init(0))
  key = pda_jax.noise_key(0)
  room, seeds = _ROUNDS_PER_DISPATCH.value, itertools.count()

  def run() -> float:
    nonlocal state
    inputs = pda_jax.stack_rounds(
      [
        _inputs(users, work.clients, next(seeds), per_chunk, len(used))
        for _ in range(room)
      ],
      room,
    )
    started = time.perf_counter()
    state, metrics = jax.block_until_ready(
      trainer.run(state, inputs, room, key)
    )
    seconds = (time.perf_counter() - started) / room
    if not np.isfinite(metrics['train_loss']).all():
      raise ValueError(f'The loss is not finite: {metrics}.')
    return seconds

  return run, per_chunk


def _memory() -> str:
  """Returns the peak memory so far, of the accelerator if there is one."""
  stats = jax.devices()[0].memory_stats()
  peak = stats and stats.get('peak_bytes_in_use')
  if peak is None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  return f'{peak / 2**30:.2f}'


def _row(name: str, work: rounds.Work, users, dtype: str, per_chunk: int):
  run, per_chunk = _round_fn(work, users, dtype, per_chunk)
  with rounds.peer(work) as peer:
    median, first = timing.in_turn({'ours': run} | peer, rounds.ROUNDS.value)
  ours = median['ours']
  row = [f'{name}: {work.clients} x {work.sentences or "all"}', dtype]
  row += [per_chunk, f'{ours:.4f}', f'{ours / work.clients * 1000:.2f}']
  row += [f'{first["ours"]:.1f}', _memory()]
  if peer:
    theirs = median[rounds.PEER]
    row += [f'{theirs:.4f}', f'{ours / theirs:.2f}']
  print(*row, flush=True)
  return row


def main() -> None:
  """Measures according to the flags, and prints a table."""
  devices_lib.use_all_cores()
  if _DATA_DIR.value:
    store = data_prep.open_store(_DATA_DIR.value)
    works = {'store': rounds.Work(100, 0, store.spec)}
  else:
    works = rounds.chosen_works()
  rows = []
  for name, work in works.items():
    for scale, dtype, per_chunk in itertools.product(
      _SCALE.value, _COMPUTE_DTYPE.value, _CLIENTS_PER_CHUNK.value
    ):
      clients = round(work.clients * float(scale))
      scaled = dataclasses.replace(work, clients=clients)
      users = _StoredUsers(store) if _DATA_DIR.value else _RandomWords(scaled)
      rows.append(_row(name, scaled, users, dtype, int(per_chunk)))
  header = ['clients x sentences', 'products', 'chunk', 's/round']
  header += ['ms/client', 'compile s', 'peak GiB so far']
  header += ['pfl-research s', 'ratio'][: len(rows[0]) - len(header)]
  print(tables.format_table(header, rows))


if __name__ == '__main__':
  cli.run(main)
