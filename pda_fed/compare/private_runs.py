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

from collections.abc import Iterator, Mapping, Sequence
import contextlib
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
from pda_fed.compare import metrics as metrics_lib
from pda_fed.compare import private_settings
from pda_fed.compare import ranking
from pda_fed.compare import running
from pda_fed.runs import outputs
from pda_fed.runs import spec as spec_lib

if TYPE_CHECKING:
  from pda_fed.privacy import search as search_lib

_SECONDS_OF_SILENCE = 60
# Exit code of a program that refuses its settings.
_REFUSED = 2


class SecretRuns:
  """The searches of all methods in one folder."""

  def __init__(
    self,
    search: 'search_lib.PrivateSearch',
    specs: Mapping[str, spec_lib.RunSpec],
    grids: Mapping[str, grids_lib.Grid],
    metric: str,
    folder: pathlib.Path,
    runner: running.Runner,
  ):
    """Initializes the searches.

    Args:
      search: Distribution of the number of runs.
      specs: The spec of each method's runs.
      grids: The grid of each method.
      metric: The validation metric that chooses the best run.
      folder: Folder of the comparison.
      runner: Makes the runs.
    """
    self._search = search
    self._specs = specs
    self._runner = runner
    self._settings = private_settings.Settings(
      specs={m: spec.as_json() for m, spec in specs.items()},
      grids={m: {n: list(v) for n, v in g.items()} for m, g in grids.items()},
      metric=metric,
      search=dataclasses.asdict(search),
    )
    self._output = folder
    self._record = folder / 'private_search.json'
    self._secret = folder / 'private_search'
    self._state = self._secret / 'draws.json'
    # The runs of each method: name of the folder, and values of the cell.
    self._draws: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    # Result of `_choose`, once it was called.
    self._chosen: Optional[dict[str, Any]] = None
    self._plan: Optional[privacy.PrivacyPlan] = None
    self._checked: set[pathlib.Path] = set()
    self._spoke = time.monotonic()

  @contextlib.contextmanager
  def locked(self) -> Iterator[None]:
    """Locks the folder against other processes.

    Raises:
      BusyError: If another process searches in the folder.
      OutputError: If the folder holds earlier runs.
    """
    self._refuse_runs_made_before()
    self._secret.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
      with files.locked(self._secret / '.lock'):
        yield
    except BlockingIOError as e:
      raise errors.BusyError(
        f'{self._output} is in use. Only one process at a time can make a'
        ' private search: its number of runs is secret.'
      ) from e

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
    now = dataclasses.asdict(self._settings)
    lines = typed.differences(before, now)
    if lines:
      raise errors.OutputError(
        f'{self._output} holds a private search with other settings:'
        f' {"; ".join(lines)}. Give the same settings, or another --output_dir.'
      )

  def draw(self) -> None:
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
    for method, grid in self._settings.grids.items():
      cells = grids_lib.cells(grid)
      places = rng.integers(len(cells), size=self._search.draw(rng))
      # Random names: numbers of released runs would reveal K.
      self._draws[method] = [
        (secrets.token_hex(8), dict(cells[i].values)) for i in places
      ]
    self._save()

  def _save(self) -> None:
    content = {
      'settings': dataclasses.asdict(self._settings),
      'draws': self._draws,
      'chosen': self._chosen,
    }
    files.write_json(self._state, seal.seal(content), mode=0o600)

  def _folder(self, name: str) -> pathlib.Path:
    return self._secret / 'runs' / name

  def _jobs(self) -> list[jobs.Job]:
    return [
      self._runner.job(
        name, self._specs[method].with_values(cell), self._folder(name)
      )
      for method, draws in self._draws.items()
      for name, cell in draws
    ]

  def run(self) -> None:
    """Makes the unfinished runs; exits if one fails.

    Raises:
      ValueError: If the runs' plan has no epsilon, their plans differ, or they
        lack the metric. The search is then reset, as if it had not begun.
    """
    if self._chosen is not None:
      return
    running.say(
      'The private search is running. Its number of runs stays secret.'
    )
    all_jobs = self._jobs()
    waiting = [
      job
      for job in all_jobs
      if outputs.RunFolder(job.folder).read_result() is None
    ]
    try:
      failures = jobs.run_jobs(
        waiting,
        self._secret / 'logs',
        num_processes=self._runner.num_processes,
        gpus=running.gpus_for(waiting),
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
      self._end(failed[0])

  def _end(self, failure: jobs.Failure) -> NoReturn:
    """Reports a run that failed, and exits."""
    advice = 'Give the same command again to resume the search.'
    if failure.exit_code == _REFUSED:
      advice = 'Correct the settings and give another --output_dir.'
      folders = [outputs.RunFolder(job.folder) for job in self._jobs()]
      if all(folder.is_new() for folder in folders):
        shutil.rmtree(self._secret)
        advice = 'Nothing was run.'
    # Other lines may show losses of a run that is not released.
    said = [
      line
      for line in failure.last_lines.splitlines()
      if line.startswith('error:')
    ]
    running.say(
      '\n'.join(
        [f'A run failed with exit code {failure.exit_code}.', *said, advice]
      )
    )
    sys.exit(1)

  def _look(self, started: Sequence[jobs.Job], ended: Sequence[jobs.Job]):
    """Checks runs early; says that there is progress, but not how much."""
    self._check_runs([*started, *ended])
    if time.monotonic() - self._spoke > _SECONDS_OF_SILENCE:
      self._spoke = time.monotonic()
      running.say('The private search is still running.')

  def _check_runs(self, some_jobs: Sequence[jobs.Job]) -> None:
    """Raises ValueError if plans of runs differ, or the metric is missing."""
    for job in some_jobs:
      folder = outputs.RunFolder(job.folder)
      if (
        job.folder in self._checked
        or not (job.folder / outputs.CONFIG).exists()
      ):
        continue
      self._check_plan(folder)
      if folder.read_result() is not None:
        found = ranking.look(grids_lib.Cell(()), job.folder)
        ranking.rank([found], self._settings.metric)
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
    lines = typed.differences(
      dataclasses.asdict(self._plan), dataclasses.asdict(plan)
    )
    if lines:
      raise ValueError(
        'All runs of --private_search must have the same population, cohort,'
        f' rounds, delta, sampling and noise. Found {"; ".join(lines)}.'
      )

  def _best(self, method: str) -> Optional[str]:
    """Returns the name of a method's best run; None if none is finite."""
    found = [
      ranking.look(grids_lib.Cell((('', name),)), self._folder(name))
      for name, _ in self._draws[method]
    ]
    ranked = ranking.rank(found, self._settings.metric)
    hashes = {f.data_hash for f in ranked}
    if len(hashes) > 1:
      raise errors.OutputError(
        f'Runs of {self._secret} must use the same data. Found different'
        ' values of data_hash in their config.json. Give another --output_dir.'
      )
    if not ranked or not math.isfinite(
      ranked[0].metrics[self._settings.metric]
    ):
      return None
    return ranked[0].cell.values[0][1]

  def _choose(self) -> dict[str, Any]:
    """Returns the best runs by method, and notes about them."""
    best = {method: self._best(method) for method in self._draws}
    notes = []
    statement = None
    if self._plan is not None:
      statement = self._statement()
      notes.append(statement)
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
    metric = metrics_lib.name_of(self._settings.metric)
    return (
      'Private search: the search of one method has (epsilon, delta) ='
      f' ({privacy.round_up(epsilon)}, {self._plan.delta:g}). Each run shown is'
      ' the best of a secret number of runs'
      f' ({private_settings.describe(self._search)}) by validation {metric}. An'
      ' epsilon shown beside a run is that of this run alone. Validation data'
      ' chose the runs and are not covered.'
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
    files.write_json(
      self._record,
      {
        'settings': dataclasses.asdict(self._settings),
        'released': released,
        'notes': self._chosen['notes'],
      },
    )
    shutil.rmtree(self._secret)

  def _add_statement(self, folder: pathlib.Path) -> None:
    """Adds the search's statement to config.json of a run."""
    content = files.read_json(folder / outputs.CONFIG)
    content['private_search'] = self._chosen['statement']
    files.write_json(folder / outputs.CONFIG, content)

  def is_released(self) -> bool:
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

  def released(self) -> tuple[list[pathlib.Path], list[str]]:
    """Returns the folders of the released runs, and notes about them."""
    found = files.read_json(self._record)
    names = [name for name in found['released'].values() if name is not None]
    return [self._output / 'runs' / name for name in names], found['notes']

  def release(self) -> tuple[list[pathlib.Path], list[str]]:
    """Searches for each method, or resumes, and releases the best runs.

    Returns:
      See `released`. Unchanged if the search has already ended.

    Raises:
      BusyError: If another process searches in the folder.
      OutputError: If the folder holds other runs or another search.
      ValueError: If the runs' plan has no epsilon, or their plans differ.
    """
    if not self.is_released():
      with self.locked():
        if not self.is_released():  # By a process that has just ended.
          self.draw()
          self.run()
          self.publish()
    return self.released()
