"""Measures federated rounds in JAX: time, memory, and how they grow.

    python -m bench.vectorized_round --work=small,paper
    python -m bench.vectorized_round --work=full --compute_dtype=bfloat16
    python -m bench.vectorized_round --data_dir=data/stackexchange --rounds=20
    python -m bench.vectorized_round --work=small --scale=1,2,4
    python -m bench.vectorized_round --work=small,paper --pfl

TensorFlow is not needed. On a CPU, every core is a device that trains a part of
the clients. With --pfl, rounds of pfl-research with the same sizes are measured
alternately with ours.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
import contextlib
import dataclasses
import resource
import statistics
import time
from typing import Optional

from absl import flags
import data_prep
import numpy as np
from pda_fed import models
from pda_fed import privacy
from pda_fed.common import tables
from pda_fed.jax import devices as devices_lib
from pda_fed.jax.federated import chunks

from bench import pfl_peer

_WORK = flags.DEFINE_list(
  'work', ['small', 'paper'], 'Sizes to measure: small, paper, full.'
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir',
  None,
  'Token store whose users to train, instead of random ones.',
)
_ROUNDS = flags.DEFINE_integer(
  'rounds', 5, 'Number of measured rounds of each configuration.', lower_bound=1
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
_PFL = flags.DEFINE_bool(
  'pfl',
  False,
  'Also measure pfl-research, which is installed into build/pfl-venv.',
)
_PFL_PYTHON = flags.DEFINE_string(
  'pfl_python',
  None,
  'Python interpreter with pfl, to use instead of installing pfl.',
)
_SCALE = flags.DEFINE_list(
  'scale', ['1'], 'Multiples of the cohort to measure.'
)


@dataclasses.dataclass(frozen=True)
class _Work:
  """A cohort and a model."""

  clients: int
  sentences: int
  spec: models.RecurrentSpec


_WORKS = {
  'small': _Work(50, 32, models.RecurrentSpec(num_words=1000, lstm_size=64)),
  'paper': _Work(8, 64, models.RecurrentSpec()),
  'full': _Work(100, 256, models.RecurrentSpec()),
}
_BATCH = 16


def _trainer(spec: models.RecurrentSpec, clients: int, compute_dtype: str):
  """Returns the trainer of DP-FedAvg."""
  from pda_fed import jax as pda_jax

  return pda_jax.Federated(
    spec.jax_model(),
    privacy.PrivacyPlan(
      population=100 * clients,
      expected_cohort=clients,
      rounds=100,
      delta=1e-5,
      noise_multiplier=0.4,
      clip_norm=0.3,
    ),
    client_optimizer=pda_jax.sgd(0.5),
    server_optimizer=pda_jax.sgd(1.0, 0.9),
    compute_dtype=compute_dtype,
  )


def _made_up_round(work: _Work, clients: int, per_chunk: int, num_devices: int):
  """Returns clients with full batches of random words."""
  rng = np.random.default_rng(0)
  steps = -(-work.sentences // _BATCH)
  shape = steps, _BATCH, 21

  def load(places, num_clients):
    tokens = np.zeros((num_clients, *shape), np.uint16)
    tokens[: len(places)] = rng.integers(
      1, work.spec.num_words + 1, (len(places), *shape)
    )
    weights = np.zeros((num_clients, *shape[:2]), np.float32)
    weights[: len(places)] = 1
    return (tokens,), weights

  return chunks.chunk_clients(
    np.full(clients, work.sentences),
    load,
    batch_size=_BATCH,
    clients_per_chunk=per_chunk,
    num_devices=num_devices,
  )


def _real_round(store, clients: int, seed: int, per_chunk, num_devices):
  """Returns random users of a store."""
  rng = np.random.default_rng(seed)
  sizes = store.num_examples('private')
  users = rng.choice(len(sizes), clients, replace=False)
  steps = -(-int(sizes.max()) // _BATCH)

  def load(places, num_clients):
    cohort = data_prep.load_cohort(
      store,
      'private',
      users[places],
      batch_size=_BATCH,
      steps=steps,
      num_clients=num_clients,
    )
    return cohort.examples, cohort.weights

  return chunks.chunk_clients(
    sizes[users],
    load,
    batch_size=_BATCH,
    clients_per_chunk=per_chunk,
    num_devices=num_devices,
  )


def _measure(
  work: _Work,
  clients: int,
  dtype: str,
  per_chunk: int,
  store: Optional[data_prep.TokenStore],
  peer: Optional[pfl_peer.PflRounds],
) -> tuple[float, float, int, Optional[float]]:
  """Measures rounds, alternating with the peer's.

  Returns:
    Median seconds of a round, seconds of compilation, clients in a chunk, and
    the peer's median.
  """
  import jax
  from pda_fed import jax as pda_jax

  used = devices_lib.choose_devices()
  sizes = (
    np.full(clients, work.sentences)
    if store is None
    else store.num_examples('private')
  )
  per_chunk = per_chunk or devices_lib.choose_clients_per_chunk(
    sum(work.spec.parameter_counts.values()),
    used[0],
    -(-sizes // _BATCH),
    -(-clients // len(used)),
  )
  per_chunk = min(per_chunk, clients)
  trainer = _trainer(work.spec, clients, dtype)
  state = trainer.init(trainer.model.initial_params(0))
  key = pda_jax.noise_key(0)
  room = _ROUNDS_PER_DISPATCH.value

  def make(seed):
    args = per_chunk, len(used)
    private = (
      _made_up_round(work, clients, *args)
      if store is None
      else _real_round(store, clients, seed, *args)
    )
    return pda_jax.RoundInputs(round_num=np.int32(seed), private=private)

  seconds, peers = [], []
  for i in range(_ROUNDS.value + 1):
    inputs = pda_jax.stack_rounds(
      [make(i * room + j) for j in range(room)], room
    )
    started = time.perf_counter()
    state, metrics = jax.block_until_ready(
      trainer.run(state, inputs, room, key)
    )
    seconds.append((time.perf_counter() - started) / room)
    if peer is not None:
      peers.append(peer.round())
  if not np.isfinite(metrics['train_loss']).all():
    raise ValueError(f'The loss is not finite: {metrics}.')
  median = statistics.median(seconds[1:])
  peers_median = statistics.median(peers[1:]) if peers else None
  return median, seconds[0] - median, per_chunk, peers_median


def _peer(work: _Work, clients: int):
  """Starts pfl-research for a work, if asked for."""
  if not _PFL.value and _PFL_PYTHON.value is None:
    return contextlib.nullcontext()
  return pfl_peer.running(
    pfl_peer.ensure_python(_PFL_PYTHON.value),
    clients=clients,
    sentences=work.sentences,
    **dataclasses.asdict(work.spec),
  )


def _memory() -> str:
  """Returns the peak memory so far, of the accelerator if there is one."""
  import jax

  stats = jax.devices()[0].memory_stats()
  peak = stats and stats.get('peak_bytes_in_use')
  if peak is None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  return f'{peak / 2**30:.2f}'


def main() -> None:
  """Measures according to the flags, and prints a table."""
  devices_lib.use_all_cores()
  store = data_prep.open_store(_DATA_DIR.value) if _DATA_DIR.value else None
  if store is None:
    unknown = set(_WORK.value) - set(_WORKS)
    if unknown:
      raise ValueError(f'--work must be among {list(_WORKS)}. Found {unknown}.')
    works = {name: _WORKS[name] for name in _WORK.value}
  elif _PFL.value or _PFL_PYTHON.value is not None:
    raise ValueError('--pfl must not be given with --data_dir.')
  else:
    works = {'store': _Work(100, 0, store.spec)}
  rows = []
  for name, work in works.items():
    for scale in map(float, _SCALE.value):
      for dtype in _COMPUTE_DTYPE.value:
        for per_chunk in map(int, _CLIENTS_PER_CHUNK.value):
          clients = round(work.clients * scale)
          with _peer(work, clients) as peer:
            median, compilation, used, peers = _measure(
              work, clients, dtype, per_chunk, store, peer
            )
          rows.append(
            (
              f'{name}: {clients} x {work.sentences or "all"}',
              dtype,
              used,
              f'{median:.4f}',
              f'{median / clients * 1000:.2f}',
              f'{compilation:.1f}',
              _memory(),
              *([f'{peers:.4f}', f'{median / peers:.2f}'] if peers else []),
            )
          )
          print(*rows[-1], flush=True)
  header = ['clients x sentences', 'products', 'chunk', 's/round']
  header += ['ms/client', 'compile s', 'peak GiB so far']
  header += ['pfl-research s', 'ratio'][: len(rows[0]) - len(header)]
  print(tables.format_table(header, rows))


if __name__ == '__main__':
  cli.run(main)
