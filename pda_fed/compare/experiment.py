"""A comparison from specs to finished runs: search, then several seeds.

experiment = Experiment(
  specs={'warm': warm, 'pda': pda}, output_dir=pathlib.Path('out/mine'),
  grids={'pda': {'method.alpha_i': [2, 5, 8]}})
finished = experiment.run()
comparison.compare([comparison.load_run(f) for f in finished.folders])
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any, Optional

from pda_fed import errors
from pda_fed import methods as methods_lib
from pda_fed.common import typed
from pda_fed.compare import choices as choices_lib
from pda_fed.compare import grids as grids_lib
from pda_fed.compare import jobs as jobs_lib
from pda_fed.compare import running
from pda_fed.compare import search as search_lib
from pda_fed.compare import tuning
from pda_fed.runs import outputs
from pda_fed.runs import resolving
from pda_fed.runs import resuming
from pda_fed.runs import spec as spec_lib

# What an experiment sets in each run.
RESERVED = ('audit', 'final_test', 'method', 'seed')


@dataclasses.dataclass(frozen=True)
class Finished:
  """What an experiment leaves.

  Attributes:
    folders: Folders of the finished runs that are compared.
    failures: Runs that failed.
    tuned: The settings of each method.
  """

  folders: Sequence[pathlib.Path]
  failures: Sequence[jobs_lib.Failure]
  tuned: tuning.Tuned


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
  """Runs of several methods, with equal treatment.

  Attributes:
    specs: The spec of each method, by name or module.
    output_dir: Folder of the runs and results.
    seeds: Number of seeds of each method: 0, 1, ...
    grids: The grid of each method whose settings are searched.
    extend: Settings whose axes grow around the best value.
    only_searched: Settings that only the search's runs have.
    chosen: Settings of an earlier search, and its file, instead of `grids`.
    select_by: The validation metric that chooses settings.
    warm_start_dir: Folder of pre-trained models; by default beside the runs.
    runner: Makes the runs.
    trust_code: Whether modules that specs name may be imported.
    command: The command line, for chosen.json.
  """

  specs: Mapping[str, spec_lib.RunSpec]
  output_dir: pathlib.Path
  seeds: int = 3
  grids: Mapping[str, grids_lib.Grid] = dataclasses.field(default_factory=dict)
  extend: Sequence[str] = ()
  only_searched: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  chosen: Optional[tuple[str, choices_lib.Choices]] = None
  select_by: str = 'loss'
  warm_start_dir: Optional[pathlib.Path] = None
  runner: running.Runner = running.Runner()
  trust_code: bool = False
  command: str = 'pda_fed.compare'

  def __post_init__(self):
    for method, grid in self.grids.items():
      grids_lib.check(grid)
      for name in grid:
        if grids_lib.canonical(name) in RESERVED:
          raise ValueError(
            f'tune must not have {name}, which is set for {method}.'
          )
    search_lib.check_extend(self.extend, list(self.grids.values()))
    if self.chosen is not None and self.grids:
      raise ValueError(
        'chosen must not be given with tune, which searches for settings.'
      )
    if not self.seeds and not self.grids:
      raise ValueError('seeds must be at least 1 without tune. Found 0.')

  def _first_folder(self, method: str) -> pathlib.Path:
    return self.output_dir / 'runs' / f'{methods_lib.get(method).name}_0'

  def _check(
    self,
    pairs: Sequence[tuple[str, spec_lib.RunSpec, pathlib.Path]],
    show: Optional[Callable[[resolving.Run], None]],
  ) -> None:
    """Raises unless specs fit their data and folders; shows the first."""
    for i, (method, spec, folder) in enumerate(pairs):
      try:
        run = resolving.resolve(spec, trust_code=self.trust_code)
        resuming.check(outputs.RunFolder(folder), run)
      except ValueError as e:
        raise ValueError(f'{method}: {e}') from e
      if not i and show is not None and not self.runner.only_prints:
        show(run)

  def tune(
    self, show: Optional[Callable[[resolving.Run], None]] = None
  ) -> tuning.Tuned:
    """Returns the settings of each method, after a search if asked for.

    Args:
      show: Called with the first run, before it starts.

    Raises:
      OutputError: If a folder holds something else.
      ValueError: If a spec does not fit its data.
    """
    folder = self.output_dir / 'tuning'
    searches = {
      method: search_lib.GridSearch(
        self.specs[method].with_values(self.only_searched),
        folder / method,
        grid,
        self.select_by,
        self.runner,
        extend=self.extend,
        warm_start_dir=self.warm_start_dir or folder / 'warm_start',
        label=f'{method},',
      )
      for method, grid in self.grids.items()
    }
    tuned = tuning.Tuned(self.specs)
    if self.chosen is not None:
      tuned = tuning.with_chosen(self.specs, *self.chosen)
    waiting = {m: s.first() for m, s in searches.items() if s.unfinished()}
    firsts = [(m, job.spec, job.folder) for m, job in waiting.items()]
    firsts += [
      (m, spec.with_values({'seed': 0}), self._first_folder(m))
      for m, spec in tuned.specs.items()
      if m not in searches
    ]
    self._check(firsts, show)
    if not searches:
      return tuned
    return tuning.tune(
      searches,
      self.specs,
      self.output_dir,
      self.runner,
      command=self.command,
      only_searched=self.only_searched,
    )

  def jobs(self, tuned: tuning.Tuned) -> list[jobs_lib.Job]:
    """Returns the runs that are compared, finished or not.

    Args:
      tuned: The result of `tune`.

    Raises:
      OutputError: If a finished run has other settings.
    """
    folder, options = self.output_dir / 'runs', ()
    if self.warm_start_dir is not None:
      options = (f'--warm_start_dir={self.warm_start_dir}',)
    found = []
    for seed in range(self.seeds):
      # The last method pre-trains and takes longest, so it starts first.
      for method, spec in reversed(list(tuned.specs.items())):
        name = f'{methods_lib.get(method).name}_{seed}'
        own = spec.with_values({'seed': seed, 'final_test': True})
        found.append(self.runner.job(name, own, folder / name, *options))
    for job in found:
      _refuse_other_settings(job)
    return found

  def run(
    self,
    *,
    show: Optional[Callable[[resolving.Run], None]] = None,
    on_change: Optional[jobs_lib.ChangeFn] = None,
  ) -> Finished:
    """Searches if asked for, then makes the runs that are compared.

    Args:
      show: Called with the first run, before it starts.
      on_change: See `jobs.run_jobs`.
    """
    tuned = self.tune(show)
    all_jobs = self.jobs(tuned)
    new_jobs = [job for job in all_jobs if not job.is_finished()]
    if self.grids and new_jobs:
      running.say(f'Comparison: {len(new_jobs)} runs.')
    failures = self.runner.run(new_jobs, self.output_dir / 'logs', on_change)
    failed = {failure.job.folder for failure in failures}
    folders = [job.folder for job in all_jobs if job.folder not in failed]
    return Finished(folders, failures, tuned)


def _refuse_other_settings(job: jobs_lib.Job) -> None:
  """Raises if a finished run was made with other settings."""
  folder = outputs.RunFolder(job.folder)
  if folder.read_result() is None:
    return
  before = folder.read_config().spec.as_json(only_results=True)
  lines = typed.differences(before, job.spec.as_json(only_results=True))
  if lines:
    raise errors.OutputError(
      f'{job.folder} holds a run with other settings: {"; ".join(lines)}. Use'
      ' the same settings again, or another --output_dir.'
    )
