"""A private search that has released one run, which nobody has trained."""

import dataclasses
import pathlib
import shutil

from pda_fed import privacy
from pda_fed import runs as runs_lib
from scripts.lib import secret_runs

from tests.runs import saved_runs

DRAWS = privacy.PrivateSearch(expected_runs=3)


def make(path: pathlib.Path) -> pathlib.Path:
  """Writes a run without a seed, and releases it; returns the folder."""
  saved = saved_runs.make_run('linear', path / 'saved', seed=None)
  folder = runs_lib.RunFolder(saved)
  settings = folder.read_config()['settings']
  plan = settings['plan']
  result = {name: settings[name] for name in ('method', 'dataset', 'engine')}
  result |= {n: plan[n] for n in ('rounds', 'delta', 'noise_multiplier')}
  folder.write_metrics([{'round': plan['rounds'], 'epsilon': 1.25, 'loss': 2}])
  folder.write_result(result | {'epsilon': 1.25, 'seed': None, 'test': {}})
  settings = secret_runs.Settings(
    binary='mine',
    flags={'warm': []},
    grids={'warm': {'rate': ['1']}},
    metric='loss',
    search=dataclasses.asdict(DRAWS),
  )
  out = path / 'out'
  found = secret_runs.SecretRuns(DRAWS, settings, out)
  (out / 'private_search/runs').mkdir(0o700, parents=True)
  shutil.move(saved, out / 'private_search/runs/secret')
  found._draws = {'warm': [('secret', [])]}
  found._check_plan(runs_lib.RunFolder(out / 'private_search/runs/secret'))
  found.publish()
  return out
