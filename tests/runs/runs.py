"""Runs of the fake engine, for tests of the loop."""

from pda_fed import runs as runs_lib
from pda_fed.runs import records

from tests import fake_engine


def train(folder, config=None, **options):
  opener = fake_engine.Opener()
  config = config or fake_engine.make_config()
  return runs_lib.train(config, opener, folder, **options), opener.engine


def rows(folder):
  """The rows without time, which no seed repeats."""
  found = records.parse_csv((folder / 'metrics.csv').read_text())
  for row in found:
    del row['seconds']
  return found
