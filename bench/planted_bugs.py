"""Plants bugs into DP training, and shows which of them an audit finds.

    python -m bench.planted_bugs

The runs are short, on handwritten digits.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
from typing import Optional
from unittest import mock

from absl import app
import jax
import numpy as np
from pda_fed import audit
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.common import tables
from pda_fed.jax import aggregation
from pda_fed.jax import clipping
from pda_fed.models import convolutional
from pda_fed.runs.engines import jax_sample_level

# Digits without public and test examples.
_NUM_PRIVATE = 1293
_MODEL = convolutional.ConvolutionalSpec(
  image_shape=(8, 8, 1),
  convolutions=(),
  dense_sizes=(256,),
  num_classes=10,
)
_CANARIES = 2000


def _noise_halved():
  draw = aggregation.draw_normal
  return mock.patch.object(aggregation, 'draw_normal', lambda *a: draw(*a) / 2)


def _clip_doubled():
  factors = clipping.clip_factors
  return mock.patch.object(
    clipping, 'clip_factors', lambda n, clip, *u: factors(n, 2 * clip, *u)
  )


def _no_noise_in_one_layer():
  add = aggregation._add_noise

  def add_but_once(tree, *others):
    kept = {'kernel': tree['logits']['kernel']}
    noised = add(tree, *others)
    return {**noised, 'logits': {**noised['logits'], **kept}}

  return mock.patch.object(aggregation, '_add_noise', add_but_once)


def _larger_cohort():
  draw = privacy.PrivacyPlan.cohort

  def draw_more(plan, round_num, seed):
    larger = dataclasses.replace(plan, expected_cohort=3 * plan.expected_cohort)
    return draw(larger, round_num, seed)

  return mock.patch.object(privacy.PrivacyPlan, 'cohort', draw_more)


def _same_noise():
  return mock.patch.object(jax.random, 'fold_in', lambda key, _: key)


BUGS = {
  'none': contextlib.nullcontext,
  'noise halved': _noise_halved,
  'clip doubled': _clip_doubled,
  'noise left out of one layer': _no_noise_in_one_layer,
  'a cohort three times as large': _larger_cohort,
  'the same noise in every round': _same_noise,
}


@contextlib.contextmanager
def _planted(bug: str) -> Iterator[None]:
  def forget_programs():
    jax.clear_caches()
    jax_sample_level._trainer.cache_clear()

  forget_programs()
  try:
    with BUGS[bug]():
      yield
  finally:
    forget_programs()


def make_run(method: str = 'cold', **values) -> runs_lib.Run:
  """Returns a short run on handwritten digits.

  Args:
    method: The method.
    **values: Other settings, by name.
  """
  spec = runs_lib.RunSpec.for_data(
    'digits',
    **{
      'method': method,
      'validation_examples': 0,
      'rounds': 40,
      'noise_multiplier': 3.0,
      'server.mean_clip_norm': None,
      'rounds_per_dispatch': 10,
      'seed': 0,
      'audit': 'run',
      'audit_canaries': _CANARIES,
      **values,
    },
  )
  spec = spec.with_values({'expected_cohort': _NUM_PRIVATE // 5})
  return dataclasses.replace(runs_lib.resolve(spec), model=_MODEL)


def audited(bug: str, run: Optional[runs_lib.Run] = None) -> audit.AuditReport:
  """Returns the audit of a run with a bug.

  Args:
    bug: A key of `BUGS`.
    run: The run. Default: that of `make_run`.
  """
  run = run or make_run()
  with _planted(bug):
    engine = jax_sample_level.SampleLevelEngine(run, privacy.SeedStreams(0))
    auditor = audit.Auditor(engine.canaries)
    state = engine.initialize()
    auditor.start(list(engine.get_weights(state).values()))
    state, metrics = engine.run_rounds(state, 0, run.plan.rounds)
  for row in metrics:
    auditor.add_round(row['canary_scores'])
  weights = list(engine.get_weights(state).values())
  assert all(np.isfinite(w).all() for w in weights)
  return auditor.report(weights, run.plan.epsilon())


def main(argv) -> None:
  """Audits a run with each bug, and prints a table."""
  del argv
  rows = []
  for bug in BUGS:
    report = audited(bug)
    estimate = max(view.estimate for view in report.views.values())
    values = report.proven, report.lower_bound, estimate
    found = 'yes' if report.is_violated else 'no'
    rows.append([bug, *(f'{value:.2f}' for value in values), found])
  header = ['bug', 'proven epsilon', 'audited bound', 'estimate', 'found']
  print(tables.format_table(header, rows))


if __name__ == '__main__':
  app.run(main)
