"""A training binary with an engine of a few numpy lines."""

from scripts.lib import cli

# isort: split
import math
import os
import sys

from absl import flags
from pda_fed import errors
from pda_fed import schedules
from scripts.lib import method_flags
from scripts.lib import run_flags

from tests import fake_engine

_ROUNDS = flags.DEFINE_integer('rounds', 4, 'Rounds.')
_RATE = flags.DEFINE_float('rate', 1.0, 'Scales the weights.')
_BEST_RATE = flags.DEFINE_float('best_rate', None, 'Where the loss is least.')
_CRASH_BELOW = flags.DEFINE_float('crash_below', 0.0, 'Of rates.')
_DIVERGE_ABOVE = flags.DEFINE_float('diverge_above', 1e9, 'Of rates.')
_CRASH_IF = flags.DEFINE_string('crash_if', '', 'Crash if there is this file.')
_FAIL = flags.DEFINE_bool('fail', False, 'Fails.')


class _Engine(fake_engine.FakeEngine):
  def evaluate(self, weights, group, max_users=None):
    found = super().evaluate(weights, group, max_users)
    start = 1.0 if self.config.warm_start else 2.0
    better = 0.5 if self.config.method.uses_public else 1.0
    loss = start * better * _RATE.value + found['loss'] * 1e-3
    if _BEST_RATE.value is not None:
      loss = 1 + abs(math.log(_RATE.value / _BEST_RATE.value))
    return {'loss': loss, 'accuracy': 1 / (1 + loss), 'perplexity': 1 + loss}


def main():
  if _FAIL.value:
    raise ValueError('fail must be false.')
  if _RATE.value < _CRASH_BELOW.value or os.path.exists(_CRASH_IF.value):
    sys.exit(3)
  if _RATE.value > _DIVERGE_ABOVE.value:
    raise errors.DivergenceError('The model is no longer finite.')
  config = fake_engine.make_config(
    plan=run_flags.plan_with_noise(
      1.0,
      default_delta=1e-4,
      population=1000,
      expected_cohort=10,
      rounds=_ROUNDS.value,
      clip_norm=1.0,
    ),
    method=method_flags.build(schedules.cosine(8), _ROUNDS.value),
    **{'seed': None, **run_flags.loop_settings()},
  )
  about = {
    'data': {'users': {'private': 1000}},
    'data_hash': '0',
    'rate': _RATE.value,
    'caveats': ['A caveat.'],
  }
  run_flags.run(config, fake_engine.Opener(_Engine), about)


if __name__ == '__main__':
  cli.run(main)
