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
from data_prep import sample_level
import jax
import numpy as np
from pda_fed import audit
from pda_fed import methods
from pda_fed import privacy
from pda_fed.common import tables
from pda_fed.jax import aggregation
from pda_fed.jax import clipping
from pda_fed.models import convolutional
from pda_fed.runs import sample_level_config
from pda_fed.runs.engines import jax_sample_level

_SPLIT = sample_level.SplitConfig(public_examples=144)
_SPEC = convolutional.ConvolutionalSpec(
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
    noised = list(add(tree, *others))
    noised[2] = tree[2]  # The kernel of the last layer.
    return tuple(noised)

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


def make_config(
  method: Optional[methods.Method] = None, **plan
) -> sample_level_config.SampleLevelConfig:
  """Returns the settings of a short run on handwritten digits.

  Args:
    method: The method. Default: cold start.
    **plan: Fields of the plan to change.
  """
  data = jax_sample_level.load_data('digits', None)
  split = jax_sample_level.load_split(data, _SPLIT)
  settings = dict(
    population=len(split.private),
    expected_cohort=len(split.private) // 5,
    rounds=40,
    delta=1e-4,
    noise_multiplier=3.0,
    clip_norm=1.0,
    unit='example',
  )
  return sample_level_config.SampleLevelConfig(
    method=method or methods.ColdStart(),
    dataset='digits',
    data_hash=sample_level.data_hash(data, split),
    engine='jax',
    plan=privacy.PrivacyPlan(**(settings | plan)),
    split=_SPLIT,
    spec=_SPEC,
    learning_rate=0.5,
    public_batch_size=32,
    rounds_per_dispatch=10,
    seed=0,
    audit=audit.AuditConfig(canaries=_CANARIES),
  )


def audited(
  bug: str, config: Optional[sample_level_config.SampleLevelConfig] = None
) -> audit.AuditReport:
  """Returns the audit of a run with a bug.

  Args:
    bug: A key of `BUGS`.
    config: Settings of the run. Default: those of `make_config`.
  """
  config = config or make_config()
  with _planted(bug):
    engine = jax_sample_level.SampleLevelEngine(
      config, privacy.SeedStreams(config.seed)
    )
    auditor = audit.Auditor(engine.canaries)
    state = engine.initialize()
    auditor.start(engine.get_weights(state))
    state, metrics = engine.run_rounds(state, 0, config.plan.rounds)
  for row in metrics:
    auditor.add_round(row['canary_scores'])
  weights = engine.get_weights(state)
  assert all(np.isfinite(w).all() for w in weights)
  return auditor.report(weights, config.plan.epsilon())


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
