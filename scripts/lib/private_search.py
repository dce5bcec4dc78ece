"""Private search for settings: its epsilon covers the whole search.

For each method, the number of runs K is drawn from the system's entropy. Each
run has settings drawn uniformly from the method's grid, and its own secret
seeds. Validation chooses the best run; the others are deleted.
`privacy.search_epsilon` covers the search.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import TYPE_CHECKING

from absl import flags
from pda_fed.compare import sweeping
from scripts.lib import audit_flags
from scripts.lib import cli
from scripts.lib import grid_search
from scripts.lib import job_flags
from scripts.lib import method_flags
from scripts.lib import secret_runs
from scripts.lib import select_flags
from scripts.lib import trust_flags
from scripts.lib import tuning

if TYPE_CHECKING:
  from pda_fed.privacy import search as search_lib

# Flags that do not fit a private search, and why.
_REFUSED = {
  'chosen': 'the search chooses the settings',
  'audit': 'epsilon does not cover what an audit shows',
  'extend': 'the grid must not depend on results of runs',
  'print_runs': 'the runs are secret',
  'tune_flags': 'the runs of the search are the ones that are compared',
}
# Flags that a private search sets in each run, and what sets them.
_SET_HERE = {
  name: setter
  for name, setter in grid_search.RESERVED.items()
  if name not in ('seed', 'warm_start_dir')
}
# Flags that affect epsilon, which must be the same for all runs.
_ACCOUNTED = (
  'clients_per_round',
  'data_dir',
  'delta',
  'flagfile',
  'noise_multiplier',
  'rounds',
  'sampling',
  'target_epsilon',
)
# More such flags, by training binary.
_ACCOUNTED_BY = {
  'scripts.train_sample_level': (
    'batch_size',
    'dataset',
    'epochs',
    'public_dataset',
    'public_examples',
    'split_seed',
    'validation_examples',
  )
}


def check(
  arguments: Sequence[str],
  of_methods: tuning.Flags,
  grids: dict[str, sweeping.Grid],
  num_seeds: int,
) -> None:
  """Raises ValueError if flags do not fit a private search.

  Args:
    arguments: The flags of every run.
    of_methods: Flags for the runs of one method only, by method.
    grids: The grid of each method.
    num_seeds: The value of --seeds.
  """
  for name, why in _REFUSED.items():
    if flags.FLAGS[name].present:
      raise ValueError(
        f'--{name} must not be given with --private_search: {why}.'
      )
  if num_seeds > 1:
    raise ValueError(
      '--seeds must be 1 with --private_search, which releases one run of each'
      f' method. Found {num_seeds}.'
    )
  without = [method for method in of_methods if method not in grids]
  if without:
    raise ValueError(
      '--private_search must be given with --tune for every method. Found none'
      f' for {", ".join(without)}.'
    )
  select_flags.metric()  # Raises if unknown.
  for method, grid in grids.items():
    _check_method(cli.expanded([*arguments, *of_methods[method]]), grid)


def _check_method(given: Sequence[str], grid: sweeping.Grid) -> None:
  """Raises if a method's flags or grid do not fit, or are not trusted."""
  in_grid = [f'--{flag}' for flag in grid]
  job_flags.refuse_distributed(given)
  trust_flags.check_words(given)
  job_flags.refuse(given, _SET_HERE, 'with --private_search')
  never = dict.fromkeys(audit_flags.NAMES, 'no private search')
  job_flags.refuse(given, never, 'with --private_search')
  job_flags.refuse(given, dict.fromkeys(grid, '--tune'), 'beside it')
  job_flags.refuse(in_grid, grid_search.RESERVED, 'in --tune')
  if any(job_flags.name_of(argument) == 'seed' for argument in given):
    raise ValueError(
      '--seed must not be given with --private_search: runs that share a seed'
      ' share their noise.'
    )
  accounted = (*_ACCOUNTED, *_ACCOUNTED_BY.get(job_flags.module(), ()))
  for flag in grid:
    if flag in accounted:
      raise ValueError(
        f'--{flag} must not be given in --tune with --private_search: it'
        ' changes epsilon, which must be the same for all runs.'
      )


def release(
  search: 'search_lib.PrivateSearch',
  arguments: Sequence[str],
  of_methods: tuning.Flags,
  grids: dict[str, sweeping.Grid],
) -> tuple[list[pathlib.Path], list[str]]:
  """Searches for each method, or resumes, and releases the best runs.

  Args:
    search: Distribution of the number of runs.
    arguments: The flags of every run.
    of_methods: Flags for the runs of one method only, by method.
    grids: The grid of each method.

  Returns:
    The folders of the released runs, and notes for the page and the terminal.
    Unchanged if the search has already ended.

  Raises:
    BusyError: If another process searches in the folder.
    OutputError: If the folder holds other runs or another search.
    ValueError: If the runs' plan has no epsilon, or their plans differ.
  """
  given = {
    method: [*method_flags.arguments_for(method, arguments), *own]
    for method, own in of_methods.items()
  }
  settings = secret_runs.Settings(
    binary=job_flags.module(),
    flags={method: cli.expanded(own) for method, own in given.items()},
    grids={m: {f: list(v) for f, v in g.items()} for m, g in grids.items()},
    metric=select_flags.metric(),
    search=dataclasses.asdict(search),
  )
  runs = secret_runs.SecretRuns(search, settings, job_flags.output_dir())
  if not runs.is_released():
    with runs.locked():
      if not runs.is_released():  # By a process that has just ended.
        runs.draw()
        runs.run()
        runs.publish()
  return runs.released()
