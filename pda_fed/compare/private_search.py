"""Private search for settings: its epsilon covers the whole search.

For each method, the number of runs K is drawn from the system's entropy. Each
run has settings drawn uniformly from the method's grid, and its own secret
seeds. Validation chooses the best run; only it is released, the others are
deleted. `privacy.search_epsilon` covers the search.

Draws and runs are kept in OUTPUT_DIR/private_search, which only its owner can
read. The best runs are then moved to OUTPUT_DIR/runs, and the folder is
removed. An interrupted search resumes with the same draws and seeds: new ones
would be a second look at the data. OUTPUT_DIR/private_search.json records what
was released, but not K, the number of runs, or the other runs' results.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import os
import pathlib
import secrets
import shutil
import sys
import time
from typing import Any, NoReturn, Optional, TYPE_CHECKING
import warnings

import numpy as np
from pda_fed import errors
from pda_fed import methods
from pda_fed import privacy
from pda_fed.common import files
from pda_fed.common import seal
from pda_fed.common import typed
from pda_fed.compare import grids as grids_lib
from pda_fed.compare import jobs
from pda_fed.compare import names
from pda_fed.compare import search as search_lib
from pda_fed.runs import outputs
from pda_fed.runs import spec as spec_lib

if TYPE_CHECKING:
  from pda_fed.privacy import search as private_lib

# Exit code of a program that refuses its settings.
_REFUSED = 2
# Settings that affect epsilon, which must be the same for all runs.
_ACCOUNTED = frozenset(
  'data_dir dataset delta epochs expected_cohort mechanism noise_multiplier'
  ' public_dataset public_examples rounds sampling split_seed target_epsilon'
  ' validation_examples'.split()
)
# Settings that the search makes itself.
_SET_HERE = ('final_test', 'method', 'seed')
# An audit shows what epsilon does not cover.
_AUDIT = ('audit', 'audit_canaries')


def _check(
  specs: Mapping[str, spec_lib.RunSpec], grids: Mapping[str, grids_lib.Grid]
) -> None:
  """Raises ValueError if settings do not fit a private search."""
  without = [method for method in specs if method not in grids]
  if without:
    raise ValueError(
      '--private_search must be given with --tune for every method. Found none'
      f' for {", ".join(without)}.'
    )
  for spec in specs.values():
    if spec.seed is not None:
      raise ValueError(
        '--seed must not be given with --private_search: runs that share a'
        ' seed share their noise.'
      )
    if spec.audit.audit is not None:
      raise ValueError(
        '--audit must not be given with --private_search: epsilon does not'
        ' cover what an audit shows.'
      )
  for name in sorted({name for grid in grids.values() for name in grid}):
    if name in _ACCOUNTED:
      raise ValueError(
        f'--{name} must not be given in --tune with --private_search: it'
        ' changes epsilon, which must be the same for all runs.'
      )
    if name in _AUDIT:
      raise ValueError(
        f'--{name} must not be given in --tune with --private_search: epsilon'
        ' does not cover what an audit shows.'
      )
    if name in _SET_HERE:
      raise ValueError(
        f'--{name} must not be given in --tune: the search sets it.'
      )


def describe(search: 'private_lib.PrivateSearch') -> str:
  """Returns a description of the search, without its secrets."""
  kind, shape = 'Poisson', ''
  if search.distribution == 'negative_binomial':
    kind, shape = 'truncated negative binomial', f', eta {search.eta:g}'
  return f'{kind}, {search.expected_runs:g} runs expected{shape}'


class SecretRuns:
  """The searches of all methods in one folder."""

  def __init__(
    self,
    search: 'private_lib.PrivateSearch',
    specs: Mapping[str, spec_lib.RunSpec],
    grids: Mapping[str, grids_lib.Grid],
    metric: str,
    folder: pathlib.Path,
    runner: jobs.Runner,
  ):
    """Initializes the searches.

    Args:
      search: Distribution of the number of runs.
      specs: The spec of each method's runs.
      grids: The grid of each method.
      metric: The validation metric that chooses the best run.
      folder: Folder of the comparison.
      runner: Makes the runs.

    Raises:
      ValueError: If settings do not fit a private search.
    """
    _check(specs, grids)
    self._search, self._specs, self._grids = search, specs, grids
    self._metric, self._runner, self._output = metric, runner, folder
    # What determines the runs, as JSON values.
    self._settings = {
      'specs': {m: spec.as_json() for m, spec in specs.items()},
      'grids': dict(grids),
      'metric': metric,
      'search': dataclasses.asdict(search),
    }
    self._record = folder / 'private_search.json'
    self._secret = folder / 'private_search'
    self._state = self._secret / 'draws.json'
    # The runs of each method: name of the folder, and its settings.
    self._draws: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    # Result of `_choose`, once it was called.
    self._chosen: Optional[dict[str, Any]] = None
    self._plan: Optional[privacy.PrivacyPlan] = None
    self._checked: set[pathlib.Path] = set()
    self._spoke = time.monotonic()

  def release(self) -> tuple[list[pathlib.Path], list[str]]:
    """Searches for each method, or resumes, and releases the best runs.

    Returns:
      The folders of the released runs, and notes about them. Unchanged if the
      search has already ended.

    Raises:
      BusyError: If another process searches in the folder.
      OutputError: If the folder holds other runs or another search.
      ValueError: If the runs' plan has no epsilon, or their plans differ.
    """
    if not self._is_released():
      self._refuse_runs_made_before()
      self._secret.mkdir(mode=0o700, parents=True, exist_ok=True)
      try:
        with files.locked(self._secret / '.lock'):
          if not self._is_released():  # By a process that has just ended.
            self._draw()
            self._run()
            self.publish()
      except BlockingIOError as e:
        raise errors.BusyError(
          f'{self._output} is in use. Only one process at a time can make a'
          ' private search: its number of runs is secret.'
        ) from e
    found = files.read_json(self._record)
    released = [name for name in found['released'].values() if name is not None]
    return [self._output / 'runs' / name for name in released], found['notes']

  def _is_released(self) -> bool:
    """Returns whether the search has ended.

    Raises:
      OutputError: If the search had other settings.
    """
    if not self._record.exists():
      return False
    self._refuse_others(files.read_json(self._record)['settings'])
    if self._secret.exists():  # Killed while removing it.
      shutil.rmtree(self._secret)
    return True

  def _refuse_runs_made_before(self) -> None:
    if self._state.exists():
      return
    places = ('runs', 'tuning', self._secret.name)
    found = (self._output.glob(f'{p}/**/{outputs.CONFIG}') for p in places)
    if any(map(any, found)):
      raise errors.OutputError(
        f'{self._output} has earlier runs. A search over known runs has no'
        ' guarantee. Give another --output_dir.'
      )

  def _refuse_others(self, before: dict[str, Any]) -> None:
    lines = typed.differences(before, self._settings)
    if lines:
      raise errors.OutputError(
        f'{self._output} holds a private search with other settings:'
        f' {"; ".join(lines)}. Give the same settings, or another --output_dir.'
      )

  def _draw(self) -> None:
    """Draws the runs of each method, or reads them to resume."""
    if self._state.exists():
      try:
        found = seal.unseal(files.read_json(self._state))
      except ValueError as e:
        raise errors.OutputError(f'{self._state} is damaged: {e}.') from e
      self._refuse_others(found['settings'])
      self._draws, self._chosen = found['draws'], found['chosen']
      return
    rng = np.random.default_rng(secrets.randbits(256))
    for method, grid in self._grids.items():
      cells = grids_lib.cells(grid)
      places = rng.integers(len(cells), size=self._search.draw(rng))
      # Random names: numbers of released runs would reveal K.
      self._draws[method] = [(secrets.token_hex(8), cells[i]) for i in places]
    self._save()

  def _save(self) -> None:
    content = {
      'settings': self._settings,
      'draws': self._draws,
      'chosen': self._chosen,
    }
    files.write_json(self._state, seal.seal(content), mode=0o600)

  def _folder(self, name: str) -> pathlib.Path:
    return self._secret / 'runs' / name

  def _run(self) -> None:
    """Makes the unfinished runs; exits if one fails.

    Raises:
      ValueError: If the runs' plan has no epsilon, their plans differ, or they
        lack the metric. The search is then reset, as if it had not begun.
    """
    if self._chosen is not None:
      return
    jobs.say('The private search is running. Its number of runs stays secret.')
    all_jobs = [
      jobs.Job(
        name,
        self._specs[method].with_values(cell),
        self._folder(name),
        self._runner.options,
      )
      for method, draws in self._draws.items()
      for name, cell in draws
    ]
    try:
      # Not the runner, which would tell how many there are.
      failures = jobs.run_jobs(
        [job for job in all_jobs if job.run.read_result() is None],
        self._secret / 'logs',
        num_processes=self._runner.num_processes,
        on_change=self._look,
      )
      self._check_runs(all_jobs)
    except ValueError:
      # The error depends on settings, not on private data.
      shutil.rmtree(self._secret)
      raise
    # A run that diverged ranks last in its search.
    diverged = errors.DivergenceError.exit_code
    failed = [f for f in failures if f.exit_code != diverged]
    if failed:
      self._end(failed[0], all_jobs)

  def _end(
    self, failure: jobs.Failure, all_jobs: Sequence[jobs.Job]
  ) -> NoReturn:
    """Reports a run that failed, and exits."""
    advice = 'Give the same command again to resume the search.'
    if failure.exit_code == _REFUSED:
      advice = 'Correct the settings and give another --output_dir.'
      if all(job.run.is_new() for job in all_jobs):
        shutil.rmtree(self._secret)
        advice = 'Nothing was run.'
    # Other lines may show losses of a run that is not released.
    lines = failure.last_lines.splitlines()
    said = [line for line in lines if line.startswith('error:')]
    first = f'A run failed with exit code {failure.exit_code}.'
    jobs.say('\n'.join([first, *said, advice]))
    sys.exit(1)

  def _look(self, started: Sequence[jobs.Job], ended: Sequence[jobs.Job]):
    """Checks runs early; says that there is progress, but not how much."""
    self._check_runs([*started, *ended])
    if time.monotonic() - self._spoke > jobs.SECONDS_OF_SILENCE:
      self._spoke = time.monotonic()
      jobs.say('The private search is still running.')

  def _check_runs(self, some_jobs: Sequence[jobs.Job]) -> None:
    """Raises ValueError if plans of runs differ, or the metric is missing."""
    for job in some_jobs:
      if job.folder in self._checked:
        continue
      if (job.folder / outputs.CONFIG).exists():
        self._check_plan(job.run)
        if job.run.read_result() is not None:
          search_lib.rank([search_lib.look({}, job.folder)], self._metric)
          self._checked.add(job.folder)

  def _check_plan(self, folder: outputs.RunFolder) -> None:
    with warnings.catch_warnings():  # The runs warn of their delta.
      warnings.simplefilter('ignore')
      # The clip does not affect epsilon.
      plan = dataclasses.replace(
        folder.read_config().plan, clip_norm=1.0, adaptive_clipping=None
      )
    if self._plan is None:
      privacy.search_epsilon(plan, self._search)  # May raise ValueError.
      self._plan = plan
    before, now = map(dataclasses.asdict, (self._plan, plan))
    lines = typed.differences(before, now)
    if lines:
      raise ValueError(
        'All runs of --private_search must have the same population, cohort,'
        f' rounds, delta, sampling and noise. Found {"; ".join(lines)}.'
      )

  def _best(self, method: str) -> Optional[str]:
    """Returns the name of a method's best run; None if none is finite."""
    found = [
      search_lib.look({'name': name}, self._folder(name))
      for name, _ in self._draws[method]
    ]
    for best in search_lib.rank(found, self._metric)[:1]:
      if math.isfinite(best.metrics[self._metric]):
        return best.cell['name']
    return None

  def _choose(self) -> dict[str, Any]:
    """Returns the best runs by method, and notes about them."""
    best = {method: self._best(method) for method in self._draws}
    statement = None if self._plan is None else self._statement()
    notes = [] if statement is None else [statement]
    notes += [
      f'{methods.title(methods.get(method).name)}: the search released no run.'
      for method, name in best.items()
      if name is None
    ]
    if self._plan is not None and len(best) > 1:
      total = privacy.search_epsilon(self._plan, self._search, len(best))
      notes.append(
        f'The private searches of all {len(best)} methods together have'
        f' (epsilon, delta) = ({privacy.round_up(total)},'
        f' {self._plan.delta:g}). Further searches on the same data add to it.'
      )
    return {'best': best, 'statement': statement, 'notes': notes}

  def _statement(self) -> str:
    epsilon = privacy.search_epsilon(self._plan, self._search)
    return (
      'Private search: the search of one method has (epsilon, delta) ='
      f' ({privacy.round_up(epsilon)}, {self._plan.delta:g}). Each run shown is'
      f' the best of a secret number of runs ({describe(self._search)}) by'
      f' validation {names.metric_name(self._metric)}. An epsilon shown beside'
      ' a run is that of this run alone. Validation data chose the runs and are'
      ' not covered.'
    )

  def publish(self) -> None:
    """Moves the best runs to OUTPUT_DIR/runs, and removes the others."""
    if self._chosen is None:
      self._chosen = self._choose()
      # Save the choice before anything is moved or removed.
      self._save()
    released = {}
    for method, name in self._chosen['best'].items():
      target = self._output / 'runs' / f'{methods.get(method).name}_0'
      released[method] = None if name is None else target.name
      if name is not None and self._folder(name).exists():
        self._add_statement(self._folder(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self._folder(name), target)
    record = {'settings': self._settings, 'released': released}
    files.write_json(self._record, {**record, 'notes': self._chosen['notes']})
    shutil.rmtree(self._secret)

  def _add_statement(self, folder: pathlib.Path) -> None:
    """Adds the search's statement to config.json of a run."""
    content = files.read_json(folder / outputs.CONFIG)
    content['private_search'] = self._chosen['statement']
    files.write_json(folder / outputs.CONFIG, content)
