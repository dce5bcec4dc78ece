"""Runs of the fake engine, for tests of the loop."""

import signal

from pda_fed import runs as runs_lib
from pda_fed.runs import records

from tests import fake_engine


def train(folder, run=None, kind=fake_engine.FakeEngine, **options):
  """Trains with an engine of this kind; returns the folder and the engine."""
  opener = fake_engine.Opener(kind)
  run = run or fake_engine.make_run()
  folder = runs_lib.train(run, folder, open_engine=opener, **options)
  return folder, opener.engine


def ending(end, round_num=0, *, is_after=False, only_copy=False):
  """Returns a kind of engine that ends in a round.

  Args:
    end: An error to raise, or the number of a signal.
    round_num: The round.
    is_after: Whether it ends after the round was computed.
    only_copy: Whether only the copy of an audit ends, which has no seed.
  """

  class Ending(fake_engine.FakeEngine):
    def run_rounds(self, state, first_round, num_rounds):
      ends = first_round >= round_num
      ends = ends and not (only_copy and self.run.spec.seed is not None)
      if ends and not is_after:
        self._end()
      found = super().run_rounds(state, first_round, num_rounds)
      if ends and is_after:
        self._end()
      return found

    def _end(self):
      if isinstance(end, signal.Signals):
        signal.raise_signal(end)
      else:
        raise end

  return Ending


def rows(folder):
  """The rows without time, which no seed repeats."""
  found = records.parse_csv((folder / 'metrics.csv').read_text())
  for row in found:
    del row['seconds']
  return found
