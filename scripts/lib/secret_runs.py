"""The runs of private searches, of which nobody may see more than the best.

Draws and runs lie in OUTPUT_DIR/private_search, which only its owner can read,
until the best runs are moved to OUTPUT_DIR/runs. Then the folder is removed. A
search that was interrupted goes on with the same draws and seeds: new ones
would be a second look at the data. OUTPUT_DIR/private_search.json says what was
released; it does not tell K, the number of runs, nor other runs' results.
"""

from collections.abc import Iterator, Sequence
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

from absl import flags
import numpy as np
from pda_fed import errors
from pda_fed import methods
from pda_fed import privacy
from pda_fed.analysis import jobs
from pda_fed.analysis import metrics as metrics_lib
from pda_fed.analysis import sweeping
from pda_fed.common import files
from pda_fed.common import seal
from pda_fed.experiments import config as config_lib
from pda_fed.experiments import outputs
from scripts.lib import job_flags
from scripts.lib import search_flags
from scripts.lib import sharing

if TYPE_CHECKING:
  from pda_fed.privacy import search as search_lib

_SECONDS_OF_SILENCE = 60
# What a program ends with whose flags are refused; see `cli.run`.
_BAD_FLAGS = 2


@dataclasses.dataclass(frozen=True)
class Settings:
  """What decides the runs of searches, as JSON values.

  Attributes:
    binary: The training binary, as `python -m` takes it.
    flags: For each method, the flags of its runs, flag files expanded.
    grids: For each method, the values of each flag.
    metric: The validation metric that chooses the best run.
    search: The fields of the `PrivateSearch`.
  """

  binary: str
  flags: dict[str, list[str]]
  grids: dict[str, dict[str, list[str]]]
  metric: str
  search: dict[str, Any]


class SecretRuns:
  """The searches of all methods in one folder."""

  def __init__(
    self,
    search: 'search_lib.PrivateSearch',
    settings: Settings,
    folder: pathlib.Path,
  ):
    """Initializes the searches.

    Args:
      search: How many runs a search makes.
      settings: What its runs are.
      folder: The folder of the comparison.
    """
    self._search = search
    self._settings = settings
    self._output = folder
    self._record = folder / 'private_search.json'
    self._secret = folder / 'private_search'
    self._state = self._secret / 'draws.json'
    # Runs of each method: the name of the folder, and the cell's flags.
    self._draws: dict[str, list[tuple[str, list[str]]]] = {}
    # What `_choose` returned, once it has.
    self._chosen: Optional[dict[str, Any]] = None
    self._plan: Optional[privacy.PrivacyPlan] = None
    self._checked: set[pathlib.Path] = set()
    self._spoke = time.monotonic()

  @contextlib.contextmanager
  def locked(self) -> Iterator[None]:
    """Keeps other processes out.

    Raises:
      BusyError: If another process searches in the folder.
      OutputError: If the folder holds runs that were made before.
    """
    self._refuse_runs_made_before()
    self._secret.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
      with files.locked(self._secret / '.lock'):
        yield
    except BlockingIOError as e:
      raise errors.BusyError(f'{self._secret} is in use.') from e

  def _refuse_runs_made_before(self) -> None:
    if self._state.exists():
      return
    places = ('runs', 'tuning', self._secret.name)
    found = (self._output.glob(f'{p}/**/{outputs.CONFIG}') for p in places)
    if any(map(any, found)):
      raise errors.OutputError(
        f'{self._output} has runs that were made before. A search over runs'
        ' that are known has no guarantee: give another --output_dir.'
      )

  def _refuse_others(self, before: dict[str, Any]) -> None:
    lines = config_lib.differences(before, dataclasses.asdict(self._settings))
    if lines:
      raise errors.OutputError(
        f'{self._output} holds a private search for other flags:'
        f' {"; ".join(lines)}. Give these again, or another --output_dir.'
      )

  def draw(self) -> None:
    """Draws the runs of each method; a search that goes on reads them."""
    if self._state.exists():
      try:
        found = seal.unseal(files.read_json(self._state), required=True)
      except ValueError as e:
        raise errors.OutputError(f'{self._state} is damaged: {e}.') from e
      self._refuse_others(found['settings'])
      self._draws, self._chosen = found['draws'], found['chosen']
      return
    rng = np.random.default_rng(secrets.randbits(256))
    for method, grid in self._settings.grids.items():
      cells = sweeping.cells(grid)
      places = rng.integers(len(cells), size=self._search.draw(rng))
      # Not numbers: the name of a run that is released would tell of K.
      self._draws[method] = [
        (secrets.token_hex(8), cells[i].arguments) for i in places
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
      jobs.Job(
        name=name,
        module=self._settings.binary,
        arguments=(
          *self._settings.flags[method],
          f'--method={method}',
          *cell,
          f'--output_dir={self._folder(name)}',
        ),
        folder=self._folder(name),
      )
      for method, draws in self._draws.items()
      for name, cell in draws
    ]

  def run(self) -> None:
    """Makes the runs that are not finished; ends the program if one fails.

    Raises:
      ValueError: If the runs' plan has no epsilon, or they differ in it, or
        have no such metric. All is as if the search had not begun.
    """
    if self._chosen is not None:
      return
    job_flags.say(
      'The private search runs. How many runs it makes stays secret.'
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
        num_processes=flags.FLAGS.num_processes,
        gpus=sharing.gpus_for(waiting),
        on_change=self._look,
      )
      self._check_runs(all_jobs)
    except ValueError:
      # For what the flags say, not for what private data do.
      shutil.rmtree(self._secret)
      raise
    # A run that diverged is the worst of its search.
    diverged = errors.DivergenceError.exit_code
    failed = [f for f in failures if f.exit_code != diverged]
    if failed:
      self._end(failed[0])

  def _end(self, failure: jobs.Failure) -> NoReturn:
    """Tells of a run that failed, and ends the program."""
    advice = 'The same command goes on with the search.'
    if failure.exit_code == _BAD_FLAGS:
      advice = 'Correct the flags, and give another --output_dir.'
      folders = [outputs.RunFolder(job.folder) for job in self._jobs()]
      if all(folder.is_new() for folder in folders):
        shutil.rmtree(self._secret)
        advice = 'Nothing was run.'
    # Other lines may have the losses of a run that is not released.
    said = [
      line
      for line in failure.last_lines.splitlines()
      if line.startswith('error:')
    ]
    job_flags.say(
      '\n'.join(
        [f'A run failed with exit code {failure.exit_code}.', *said, advice]
      )
    )
    sys.exit(1)

  def _look(self, running: Sequence[jobs.Job], ended: Sequence[jobs.Job]):
    """Refuses runs early; tells that there is progress, but not how much."""
    self._check_runs([*running, *ended])
    if time.monotonic() - self._spoke > _SECONDS_OF_SILENCE:
      self._spoke = time.monotonic()
      job_flags.say('The private search goes on.')

  def _check_runs(self, some_jobs: Sequence[jobs.Job]) -> None:
    """Raises ValueError if runs do not have one plan and the metric."""
    for job in some_jobs:
      folder = outputs.RunFolder(job.folder)
      if (
        job.folder in self._checked
        or not (job.folder / outputs.CONFIG).exists()
      ):
        continue
      self._check_plan(folder)
      if folder.read_result() is not None:
        found = sweeping.look(sweeping.Cell(()), job.folder)
        sweeping.rank([found], self._settings.metric)
        self._checked.add(job.folder)

  def _check_plan(self, folder: outputs.RunFolder) -> None:
    with warnings.catch_warnings():  # Runs warn of their delta themselves.
      warnings.simplefilter('ignore')
      # The clip does not change epsilon.
      plan = dataclasses.replace(
        folder.read_plan(), clip_norm=1.0, adaptive_clipping=None
      )
    if self._plan is None:
      privacy.search_epsilon(plan, self._search)  # It may refuse.
      self._plan = plan
    lines = config_lib.differences(
      dataclasses.asdict(self._plan), dataclasses.asdict(plan)
    )
    if lines:
      raise ValueError(
        'All runs of --private_search must have the same population, cohort,'
        f' rounds, delta, sampling and noise. Found {"; ".join(lines)}.'
      )

  def _best(self, method: str) -> Optional[str]:
    """The name of a method's best run; None if no run has a finite metric."""
    found = [
      sweeping.look(sweeping.Cell((('', name),)), self._folder(name))
      for name, _ in self._draws[method]
    ]
    ranked = sweeping.rank(found, self._settings.metric)
    hashes = {f.data_hash for f in ranked}
    if len(hashes) > 1:
      raise errors.OutputError(
        f'Runs of {self._secret} must be of the same data. Found several'
        ' data_hash in their config.json: give another --output_dir.'
      )
    if not ranked or not math.isfinite(
      ranked[0].metrics[self._settings.metric]
    ):
      return None
    return ranked[0].cell.values[0][1]

  def _choose(self) -> dict[str, Any]:
    """What is released: the best runs by method, and lines about them."""
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
        f'The private searches of all {len(best)} methods together: (epsilon,'
        f' delta) = ({privacy.round_up(total)}, {self._plan.delta:g}). Another'
        ' search on the same data adds to it.'
      )
    return {'best': best, 'statement': statement, 'notes': notes}

  def _statement(self) -> str:
    epsilon = privacy.search_epsilon(self._plan, self._search)
    metric = metrics_lib.name_of(self._settings.metric)
    return (
      'Private search: each run that is shown is the best of a secret number of'
      f' runs ({search_flags.describe(self._search)}) by validation {metric}.'
      ' For the search of one method, (epsilon, delta) ='
      f' ({privacy.round_up(epsilon)}, {self._plan.delta:g}); where an epsilon'
      ' is shown beside a run, it is that of one run alone. Validation data'
      ' chose the runs, and are not covered.'
    )

  def publish(self) -> None:
    """Moves the best runs to where they are seen, and removes the others."""
    if self._chosen is None:
      self._chosen = self._choose()
      # From here on the choice is made, whatever is moved or removed.
      self._save()
    released = {}
    for method, name in self._chosen['best'].items():
      target = self._output / 'runs' / f'{methods.get(method).name}_0'
      released[method] = None if name is None else target.name
      if name is not None and self._folder(name).exists():
        self._add_caveat(self._folder(name))
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

  def _add_caveat(self, folder: pathlib.Path) -> None:
    """Lets a run's folder say what its choice has cost."""
    content = files.read_json(folder / outputs.CONFIG)
    caveats = [*content.get('caveats', []), self._chosen['statement']]
    content['caveats'] = list(dict.fromkeys(caveats))
    files.write_json(folder / outputs.CONFIG, content)

  def is_released(self) -> bool:
    """Whether the search has ended.

    Raises:
      OutputError: If it was a search for other flags.
    """
    if not self._record.exists():
      return False
    self._refuse_others(files.read_json(self._record)['settings'])
    if self._secret.exists():  # Killed while it was removed.
      shutil.rmtree(self._secret)
    return True

  def released(self) -> tuple[list[pathlib.Path], list[str]]:
    """Returns the folders of the released runs, and lines about them."""
    found = files.read_json(self._record)
    names = [name for name in found['released'].values() if name is not None]
    return [self._output / 'runs' / name for name in names], found['notes']
