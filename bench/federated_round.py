"""One federated round: stock TFF, our DP-FedAvg, our PDA-DPMD.

    python -m bench.federated_round --work=small,paper --rounds=5

Every algorithm does the same local training on the same users, on the same
worker, and rounds are taken in turn, so that a noisy machine is noisy for all.
What counts are the ratios of the medians.
"""

from scripts import cli  # First: it silences TensorFlow.

# isort: split
import dataclasses
import statistics
import time

from absl import flags
import numpy as np
from pda_fed import learning
from pda_fed import models
from pda_fed import privacy
from pda_fed import runtime
from pda_fed import schedules
from pda_fed import tables
import tensorflow_federated as tff

_WORK = flags.DEFINE_list('work', ['small', 'paper'], 'small, paper or both.')
_ROUNDS = flags.DEFINE_integer(
  'rounds', 5, 'Measured rounds of each.', lower_bound=1
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
}


def _build_processes(work: _Work) -> dict:
  model_fn = learning.build_model_fn(work.spec)
  client, server = (
    tff.learning.optimizers.build_sgdm(0.5),
    tff.learning.optimizers.build_sgdm(1.0, 0.9),
  )
  plan = privacy.PrivacyPlan(
    population=100 * work.clients,
    expected_cohort=work.clients,
    rounds=100,
    delta=1e-5,
    noise_multiplier=0.4,
    clip_norm=0.3,
  )
  public = [
    (tokens[:, :-1], tokens[:, 1:])
    for tokens in _sentences(work, max(10, work.clients // 10), seed=1)
  ]
  return {
    'stock TFF': tff.learning.algorithms.build_unweighted_fed_avg(
      model_fn, client, server
    ),
    'DP-FedAvg': learning.build_dp_fedavg(model_fn, plan, client, server),
    'PDA-DPMD': learning.build_pda_dpmd(
      model_fn,
      plan,
      client,
      server,
      public_data=public,
      alpha=schedules.cosine(100),
      public_users_per_round=max(1, work.clients // 10),
    ),
  }


def _sentences(work: _Work, users: int, seed: int) -> np.ndarray:
  rng = np.random.default_rng(seed)
  shape = users, work.sentences, 21
  return rng.integers(1, work.spec.num_words + 1, shape)


def _measure(work: _Work, rounds: int) -> dict[str, float]:
  """The median seconds of a round, after one that is not counted."""
  cohort = [
    learning.make_dataset(s, 16) for s in _sentences(work, work.clients, seed=0)
  ]
  processes = _build_processes(work)
  states = {name: p.initialize() for name, p in processes.items()}
  seconds = {name: [] for name in processes}
  for _ in range(rounds + 1):
    for name, process in processes.items():
      started = time.perf_counter()
      states[name] = process.next(states[name], cohort).state
      seconds[name].append(time.perf_counter() - started)
  return {name: statistics.median(s[1:]) for name, s in seconds.items()}


def main() -> None:
  """Measures the works that the flag names and prints a table."""
  unknown = set(_WORK.value) - set(_WORKS)
  if unknown:
    raise ValueError(f'--work must be of {list(_WORKS)}. Found {unknown}.')
  rows = []
  with runtime.local_workers():
    for name in _WORK.value:
      work = _WORKS[name]
      median = _measure(work, _ROUNDS.value)
      rows.append(
        (
          f'{name}: {work.clients} x {work.sentences}',
          *(f'{s:.2f}' for s in median.values()),
          f'{median["DP-FedAvg"] / median["stock TFF"]:.2f}',
          f'{median["PDA-DPMD"] / median["DP-FedAvg"]:.2f}',
        )
      )
  header = ['clients x sentences', 'stock TFF s', 'DP-FedAvg s', 'PDA-DPMD s']
  print(tables.format_table([*header, 'DP/stock', 'PDA/DP'], rows))


if __name__ == '__main__':
  cli.run(main)
