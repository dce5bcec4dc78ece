"""`scripts.train` in a process that may be killed or stopped in a round.

DIE_IN_ROUND=3 python -m tests.scripts.mortal_train --data_dir=...
"""

import contextlib
import os
import runpy
import signal

from pda_fed import runs as runs_lib
from pda_fed.runs import hosts

_FATES = {'DIE_IN_ROUND': signal.SIGKILL, 'HANG_IN_ROUND': signal.SIGSTOP}


class _Mortal:
  """An engine whose process ends, or stops, in a round."""

  def __init__(self, engine):
    self._engine = engine

  def __getattr__(self, name):
    return getattr(self._engine, name)

  def run_rounds(self, state, first_round, num_rounds):
    for name, signum in _FATES.items():
      fate = int(os.environ.get(name, -2))
      if first_round <= fate < first_round + num_rounds:
        os.kill(os.getpid(), signum)
    return self._engine.run_rounds(state, first_round, num_rounds)


def main():
  hosts.HEARTBEAT_S = 10
  hosts._SHUTDOWN_S = 5
  open_engine = runs_lib.open_engine

  @contextlib.contextmanager
  def open_mortal(run, seeds):
    if os.environ.get('DIE_IN_ROUND') == '-1':  # Before devices are known.
      os.kill(os.getpid(), signal.SIGKILL)
    with open_engine(run, seeds) as engine:
      yield _Mortal(engine)

  runs_lib.open_engine = open_mortal
  runpy.run_module('scripts.train', run_name='__main__')


if __name__ == '__main__':
  main()
