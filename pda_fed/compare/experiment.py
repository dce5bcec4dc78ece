"""A comparison from specs to its report: search, then several seeds.

experiment = Experiment(
  specs={'warm': warm, 'pda': pda}, output_dir=pathlib.Path('out/mine'),
  grids={'pda': {'method.alpha_i': [2, 5, 8]}})
report, failures = experiment.run()
report.write(experiment.output_dir)
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
from pda_fed.compare import names
from pda_fed.compare import report as report_lib
from pda_fed.compare import search as search_lib
from pda_fed.runs import resolving
from pda_fed.runs import resuming
from pda_fed.runs import spec as spec_lib

# What an experiment sets in each run.
RESERVED = ('audit', 'final_test', 'method', 'seed')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
  """Runs of several methods, with equal treatment.

  Attributes:
    specs: The spec of each method, by name or module.
    output_dir: Folder of the runs and results.
    seeds: Number of seeds of each method: 0, 1, ... With 0, the search is all.
    grids: The grid of each method whose settings are searched.
    only_searched: Settings that only the search's runs have.
    choices: How the settings in `specs` were chosen earlier, if they were.
    metrics: The test metrics to show; see `names.to_show`.
    select_by: The metric that chooses settings and decides the winner.
    warm_start_dir: Folder of pre-trained models; by default beside the runs.
    runner: Makes the runs.
    trust_code: Whether modules that specs name may be imported.
    command: The command line, for chosen.json and the page.
  """

  specs: Mapping[str, spec_lib.RunSpec]
  output_dir: pathlib.Path
  seeds: int = 3
  grids: Mapping[str, grids_lib.Grid] = dataclasses.field(default_factory=dict)
  only_searched: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  choices: Optional[choices_lib.Choices] = None
  metrics: Sequence[str] = ()
  select_by: str = 'loss'
  warm_start_dir: Optional[pathlib.Path] = None
  runner: jobs_lib.Runner = jobs_lib.Runner()
  trust_code: bool = False
  command: str = 'pda_fed.compare'

  def __post_init__(self):
    for method, grid in self.grids.items():
      grids_lib.check(grid)
      for name in grid:
        if name in RESERVED:
          raise ValueError(
            f'tune must not have {name}, which is set for {method}.'
          )
    if self.choices is not None and self.grids:
      raise ValueError(
        'chosen must not be given with tune, which searches for settings.'
      )
    if not self.seeds and not self.grids:
      raise ValueError('seeds must be at least 1 without tune. Found 0.')

  def run(
    self, show: Callable[[resolving.Run], None] = lambda run: None
  ) -> tuple[Optional[report_lib.Report], list[jobs_lib.Failure]]:
    """Searches if asked for, makes the runs, and compares them.

    Args:
      show: Called with the first run, before it starts.

    Returns:
      What to show, None without a finished run, and the runs that failed.

    Raises:
      OutputError: If a folder holds something else.
      ValueError: If a spec does not fit its data.
    """
    searches = self._searches()
    self._check(searches, show)
    choices, remarks = self.choices, []
    if searches:
      choices = self._search(searches)
      for search in searches:
        remarks += search.warnings(choices.methods[search.method].settings)
      for line in remarks:
        jobs_lib.say(line)
    jobs = self._jobs(choices)
    if searches and not all(job.is_finished() for job in jobs):
      jobs_lib.say('The runs that are compared:')
    logs = self.output_dir / 'logs'
    failures = self.runner.run(jobs, logs, self._check_metrics)
    failed = {failure.job.folder for failure in failures}
    folders = [job.folder for job in jobs if job.folder not in failed]
    if not folders:
      return None, failures
    report = report_lib.of_runs(
      folders,
      self.metrics,
      self.select_by,
      command=self.command,
      notes=self._not_covered(choices),
      choices=choices,
      remarks=remarks,
      missing=_missing(failures),
    )
    return report, failures

  def _searches(self) -> list[search_lib.GridSearch]:
    folder = self.output_dir / 'tuning'
    warm_start = self.warm_start_dir or folder / 'warm_start'
    return [
      search_lib.GridSearch(
        method,
        self.specs[method].with_values(self.only_searched),
        grid,
        folder / method,
        self.select_by,
        (f'--warm_start_dir={warm_start}',),
      )
      for method, grid in self.grids.items()
    ]

  def _check(
    self,
    searches: Sequence[search_lib.GridSearch],
    show: Callable[[resolving.Run], None],
  ) -> None:
    """Raises unless specs fit their data and folders; shows the first."""
    firsts = [(s.method, s.jobs()) for s in searches]
    found = [
      (method, jobs[0])
      for method, jobs in firsts
      if not all(job.is_finished() for job in jobs)
    ]
    found += [
      (method, self._job(method, spec, 0))
      for method, spec in self.specs.items()
      if method not in self.grids
    ]
    for i, (method, job) in enumerate(found):
      try:
        run = resolving.resolve(job.spec, trust_code=self.trust_code)
        resuming.check(job.run, run)
      except ValueError as e:
        raise ValueError(f'{method}: {e}') from e
      if not i and not self.runner.only_prints:
        show(run)

  def _search(
    self, searches: Sequence[search_lib.GridSearch]
  ) -> choices_lib.Choices:
    """Searches for the best settings of each method; writes chosen.json."""
    owners = {job.folder: s for s in searches for job in s.jobs()}
    jobs = [job for search in searches for job in search.jobs()]
    if not all(job.is_finished() for job in jobs):
      self.runner.run(
        jobs,
        self.output_dir / 'tuning/logs',
        # Fails after the first run, not the last.
        lambda job: owners[job.folder].check_metric(job),
      )
    chosen = {method: choices_lib.Choice({}) for method in self.specs}
    chosen |= {search.method: search.choose() for search in searches}
    found = choices_lib.Choices(self.command, self.select_by, chosen)
    found.write(self.output_dir / 'chosen.json')
    return found

  def _not_covered(self, choices: Optional[choices_lib.Choices]) -> list[str]:
    """Returns what epsilon does not cover, because of a search."""
    if choices is None:
      return []
    text = search_lib.NOT_COVERED
    if self.only_searched:
      shown = ' '.join(grids_lib.as_flags(self.only_searched))
      text += (
        ' Runs that are compared may train on the examples that only the search'
        f' held out for validation ({shown}).'
      )
    return [text]

  def _job(
    self, method: str, spec: spec_lib.RunSpec, seed: int
  ) -> jobs_lib.Job:
    name = f'{methods_lib.get(method).name}_{seed}'
    own = spec.with_values({'seed': seed, 'final_test': True})
    options = ()
    if self.warm_start_dir is not None:
      options = (f'--warm_start_dir={self.warm_start_dir}',)
    return jobs_lib.Job(name, own, self.output_dir / 'runs' / name, options)

  def _jobs(self, choices: Optional[choices_lib.Choices]) -> list[jobs_lib.Job]:
    """Returns the runs that are compared, finished or not."""
    specs = dict(self.specs)
    if self.grids:
      specs = {
        method: spec.with_values(choices.methods[method].settings)
        for method, spec in specs.items()
      }
    found = [
      self._job(method, spec, seed)
      for seed in range(self.seeds)
      # The last method pre-trains and takes longest, so it starts first.
      for method, spec in reversed(specs.items())
    ]
    for job in found:
      _refuse_other_settings(job)
    return found

  def _check_metrics(self, job: jobs_lib.Job) -> None:
    """Raises as soon as a finished run lacks a metric."""
    result = job.run.read_result()
    if result is not None and result['test'] is not None:
      names.to_show(list(result['test']), self.metrics, self.select_by)


def _refuse_other_settings(job: jobs_lib.Job) -> None:
  """Raises if a finished run was made with other settings."""
  if job.run.read_result() is None:
    return
  before = job.run.read_config().spec.as_json(only_results=True)
  lines = typed.differences(before, job.spec.as_json(only_results=True))
  if lines:
    raise errors.OutputError(
      f'{job.folder} holds a run with other settings: {"; ".join(lines)}. Use'
      ' the same settings again, or another --output_dir.'
    )


def _missing(failures: Sequence[jobs_lib.Failure]) -> list[str]:
  """Returns which runs failed: without them, a method may look too good."""
  if not failures:
    return []
  diverged = errors.DivergenceError.exit_code
  shown = [
    f.job.name + (' (diverged)' if f.exit_code == diverged else '')
    for f in failures
  ]
  return [f'Left out because they failed: {", ".join(shown)}.']
