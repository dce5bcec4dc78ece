"""Measures what an audit finds and costs.

    python -m bench.audit

The first table has rounds with and without 1,000 canaries, measured
alternately. The second table has bugs planted into short runs on handwritten
digits.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
import contextlib
import pathlib
import statistics
import time

from absl import flags
import data_prep
from pda_fed import audit
from pda_fed import methods
from pda_fed import models
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.common import tables
from pda_fed.runs.engines import stores

from bench import planted_bugs
from bench import synthetic_store

_PARTS = flags.DEFINE_list(
  'parts', ['bugs', 'cost'], 'Tables to make: bugs, cost or both.'
)
_ENGINES = flags.DEFINE_list(
  'engines', ['jax', 'tff'], 'Engines whose cost to measure.'
)
_ROUNDS = flags.DEFINE_integer(
  'rounds', 8, 'Number of measured rounds of each.'
)
_WORK_DIR = flags.DEFINE_string('work_dir', 'data/bench', 'Folder of the data.')

# The small work of bench.federated_round.
_CLIENTS, _SENTENCES, _USERS = 50, 32, 2000
_SPEC = models.RecurrentSpec(num_words=1000, lstm_size=64)


def _show_bugs() -> None:
  rows = []
  for bug in planted_bugs.BUGS:
    report = planted_bugs.audited(bug)
    estimate = max(view.estimate for view in report.views.values())
    rows.append(
      [
        bug,
        f'{report.proven:.2f}',
        f'{report.lower_bound:.2f}',
        f'{estimate:.2f}',
        'yes' if report.is_violated else 'no',
      ]
    )
  names = ['bug', 'proven epsilon', 'audited bound', 'estimate', 'found']
  print(tables.format_table(names, rows))


def _config(store, engine: str, canaries) -> runs_lib.FederatedConfig:
  return runs_lib.FederatedConfig(
    method=methods.ColdStart(),
    dataset='audit',
    data_dir=str(store.path),
    data_hash=stores.data_hash(store),
    engine=engine,
    spec=_SPEC,
    seed=0,
    plan=privacy.PrivacyPlan(
      population=_USERS,
      expected_cohort=_CLIENTS,
      rounds=1000,
      delta=1e-4,
      noise_multiplier=1.0,
      clip_norm=0.3,
    ),
    audit=audit.AuditConfig(canaries=canaries) if canaries else None,
  )


def _measure(engine: str) -> list[str]:
  """Measures a round without and with canaries alternately."""
  store = data_prep.open_store(
    synthetic_store.write_store(
      pathlib.Path(_WORK_DIR.value),
      num_users=_USERS,
      sentences_per_user=_SENTENCES,
      num_words=_SPEC.num_words,
    )
  )
  seconds = {0: [], 1000: []}
  with contextlib.ExitStack() as stack:
    engines = {}
    for canaries in seconds:
      config = _config(store, engine, canaries)
      seeds = privacy.SeedStreams(0)
      opened = runs_lib.open_engine(config, seeds)
      engines[canaries] = stack.enter_context(opened)
    states = {c: e.initialize() for c, e in engines.items()}
    for round_num in range(_ROUNDS.value + 2):
      for canaries, one in engines.items():
        started = time.perf_counter()
        states[canaries], _ = one.run_rounds(states[canaries], round_num, 1)
        seconds[canaries].append(time.perf_counter() - started)
  # The first rounds compile.
  plain, audited = (statistics.median(s[2:]) for s in seconds.values())
  return [
    engine,
    f'{plain:.3f}',
    f'{audited:.3f}',
    f'{audited / plain - 1:.1%}',
  ]


def main() -> None:
  """Runs with the flags' settings."""
  # First, since it spreads JAX over the cores before JAX is used.
  if 'cost' in _PARTS.value:
    names = ['engine', 's/round', 's/round with canaries', 'cost']
    print(tables.format_table(names, [_measure(e) for e in _ENGINES.value]))
  if 'bugs' in _PARTS.value:
    _show_bugs()


if __name__ == '__main__':
  cli.run(main)
