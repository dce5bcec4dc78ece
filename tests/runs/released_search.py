"""A private search that has released one run, which nobody has trained."""

import pathlib
import shutil

from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.compare import jobs
from pda_fed.compare import private_search

from tests.runs import saved_runs

DRAWS = privacy.PrivateSearch(expected_runs=3)


def make(path: pathlib.Path) -> pathlib.Path:
  """Writes a run without a seed, and releases it; returns the folder."""
  saved = saved_runs.make_run('linear', path / 'saved', seed=None)
  folder = runs_lib.RunFolder(saved)
  config = folder.read_config()
  plan = config.plan
  result = {name: getattr(config, name) for name in ('dataset', 'engine')}
  names = ('rounds', 'delta', 'noise_multiplier')
  result |= {name: getattr(plan, name) for name in names}
  folder.write_metrics([{'round': plan.rounds, 'epsilon': 1.25, 'loss': 2}])
  folder.write_result(
    {**result, 'method': 'warm', 'epsilon': 1.25, 'seed': None, 'test': {}}
  )
  out = path / 'out'
  found = private_search.SecretRuns(
    DRAWS,
    {'warm': config.spec},
    {'warm': {'server.learning_rate': [1]}},
    'loss',
    out,
    jobs.Runner(),
  )
  (out / 'private_search/runs').mkdir(0o700, parents=True)
  shutil.move(saved, out / 'private_search/runs/secret')
  found._draws = {'warm': [('secret', {})]}
  found._check_plan(runs_lib.RunFolder(out / 'private_search/runs/secret'))
  found.publish()
  return out
