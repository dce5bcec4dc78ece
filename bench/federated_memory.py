"""Measures the memory of a process over many rounds of PDA-DPMD in TFF.

    python -m bench.federated_memory --rounds=200

Cohorts are drawn by the plan, so their size varies from round to round, which
makes caches keyed by size grow.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
import os

from absl import flags
import numpy as np
from pda_fed import models
from pda_fed import privacy
from pda_fed import schedules
from pda_fed import tff as pda_tff
from pda_fed.common import tables
from pda_fed.tff import runtime
import tensorflow_federated as tff
import tqdm

_ROUNDS = flags.DEFINE_integer(
  'rounds', 200, 'Number of rounds.', lower_bound=20
)
_CLIENTS = flags.DEFINE_integer(
  'clients_per_round', 10, 'Expected number of users in a round.', lower_bound=1
)

_SPEC = models.RecurrentSpec(num_words=1000, embedding_size=16, lstm_size=32)
_POPULATION = 200


def _resident_megabytes() -> float:
  with open('/proc/self/statm') as statm:
    pages = int(statm.read().split()[1])
  return pages * os.sysconf('SC_PAGE_SIZE') / 2**20


def _users(rng: np.random.Generator, count: int) -> list[np.ndarray]:
  return [
    rng.integers(1, _SPEC.num_words + 1, (rng.integers(1, 33), 21))
    for _ in range(count)
  ]


def _build_process(plan: privacy.PrivacyPlan, public: list[np.ndarray]):
  sgd = tff.learning.optimizers.build_sgdm
  return pda_tff.build_pda_dpmd(
    pda_tff.build_model_fn(_SPEC),
    plan,
    sgd(0.5),
    sgd(1.0, 0.9),
    public_data=[(s[:, :-1], s[:, 1:]) for s in public],
    alpha=schedules.for_stackoverflow(5, plan.rounds),
    public_users_per_round=1,
    noise_seed=0,
  )


def main() -> None:
  """Runs the rounds, and prints the memory ten times."""
  rng = np.random.default_rng(0)
  plan = privacy.PrivacyPlan(
    population=_POPULATION,
    expected_cohort=_CLIENTS.value,
    rounds=_ROUNDS.value,
    delta=1e-3,
    noise_multiplier=0.4,
    clip_norm=0.3,
  )
  users = [pda_tff.make_dataset(s, 16) for s in _users(rng, _POPULATION)]
  rows, sizes = [], set()
  with runtime.in_process():
    process = _build_process(plan, _users(rng, 10))
    state = process.initialize()
    for round_num in tqdm.trange(plan.rounds, leave=False, disable=None):
      cohort = plan.cohort(round_num, 0)
      sizes.add(len(cohort))
      state = process.next(state, [users[i] for i in cohort]).state
      if (round_num + 1) % (plan.rounds // 10) == 0:
        rows.append((round_num + 1, _resident_megabytes()))
  print(
    tables.format_table(
      ['round', 'resident MB'],
      [(r, f'{megabytes:.0f}') for r, megabytes in rows],
    )
  )
  growth = rows[-1][-1] / rows[0][-1] - 1
  print(f'\nGrowth from round {rows[0][0]} to the last: {growth:+.1%}.')
  print(f'Cohorts had {len(sizes)} sizes, from {min(sizes)} to {max(sizes)}.')


if __name__ == '__main__':
  cli.run(main)
