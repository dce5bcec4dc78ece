"""`scripts.train` in a process that may be killed or stopped in a round.

FATE=SIGKILL ROUND=3 python -m tests.scripts.mortal_train --data_dir=...
"""

import contextlib
import os
import runpy
import signal

from pda_fed import runs as runs_lib
from pda_fed.runs import hosts


@contextlib.contextmanager
def _open_mortal(run, seeds):
  with _OPEN(run, seeds) as engine:
    run_rounds = engine.run_rounds

    def run_or_die(state, first_round, num_rounds):
      if first_round == int(os.environ.get('ROUND', -1)):
        os.kill(os.getpid(), signal.Signals[os.environ['FATE']])
      return run_rounds(state, first_round, num_rounds)

    engine.run_rounds = run_or_die
    yield engine


_OPEN = runs_lib.open_engine

if __name__ == '__main__':
  hosts.HEARTBEAT_S, hosts._SHUTDOWN_S = 20, 10
  runs_lib.open_engine = _open_mortal
  runpy.run_module('scripts.train', run_name='__main__')
