"""A training binary with the JAX engine and a tiny model, for several hosts."""

from scripts.lib import cli

# isort: split
import contextlib
import os
import signal

from absl import flags
from pda_fed import runs as runs_lib
from pda_fed.models import convolutional
from pda_fed.runs import hosts
from scripts.lib import run_flags

from tests.runs import tiny_users

_DATA_DIR = flags.DEFINE_string('data_dir', None, 'A store of users.')
_ROUNDS = flags.DEFINE_integer('rounds', 6, 'Rounds.')
_CLIP_NORM = flags.DEFINE_float('clip_norm', 0.3, 'Of updates.')
_NO_SEED = flags.DEFINE_bool('no_seed', False, 'Draw secret seeds.')
_TIMEOUT_S = flags.DEFINE_float('timeout_s', 10.0, 'Of hosts that are silent.')
_DIE_IN_ROUND = flags.DEFINE_integer('die_in_round', None, 'Killed in it.')
_HANG_IN_ROUND = flags.DEFINE_integer('hang_in_round', None, 'Stopped in it.')


class _Mortal:
  """An engine whose process ends, or stops, in a round."""

  def __init__(self, engine):
    self._engine = engine

  def __getattr__(self, name):
    return getattr(self._engine, name)

  def run_rounds(self, state, first_round, num_rounds):
    for fate, signum in (
      (_DIE_IN_ROUND.value, signal.SIGKILL),
      (_HANG_IN_ROUND.value, signal.SIGSTOP),
    ):
      if fate is not None and first_round <= fate < first_round + num_rounds:
        os.kill(os.getpid(), signum)
    return self._engine.run_rounds(state, first_round, num_rounds)


@contextlib.contextmanager
def _open_engine(config, seeds):
  if _DIE_IN_ROUND.value == -1:  # Before devices are known.
    os.kill(os.getpid(), signal.SIGKILL)
  with runs_lib.open_engine(config, seeds) as engine:
    yield _Mortal(engine)


def main():
  hosts.TIMEOUT_S = _TIMEOUT_S.value
  hosts._BEAT_S = 0.2
  config = tiny_users.make_config(
    _DATA_DIR.value,
    plan={
      'expected_cohort': 6,
      'rounds': _ROUNDS.value,
      'clip_norm': _CLIP_NORM.value,
    },
    engine='jax',
    seed=None if _NO_SEED.value else 0,
    spec=convolutional.linear((3,), 3),
    rounds_per_dispatch=1,
    rounds_per_checkpoint=2,
  )
  run_flags.run(config, _open_engine, {'data': {'users': {'private': 30}}})


if __name__ == '__main__':
  cli.run(main)
