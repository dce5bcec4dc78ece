"""Runs of the fake engine, for tests of the loop."""

from pda_fed import runs as runs_lib
from pda_fed.runs import records

from tests import fake_engine


def train(folder, run=None, kind=fake_engine.FakeEngine, **options):
  """Trains with an engine of this kind; returns the folder and the engine."""
  opener = fake_engine.Opener(kind)
  run = run or fake_engine.make_run()
  folder = runs_lib.train(run, folder, open_engine=opener, **options)
  return folder, opener.engine


def rows(folder):
  """The rows without time, which no seed repeats."""
  found = records.parse_csv((folder / 'metrics.csv').read_text())
  for row in found:
    del row['seconds']
  return found
