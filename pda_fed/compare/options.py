"""Settings of comparisons, benchmarks and searches: the flags of programs."""

import dataclasses
import functools
import pathlib
from typing import Optional

from pda_fed import methods as methods_lib
from pda_fed import privacy
from pda_fed.common import settings
from pda_fed.common import validate
from pda_fed.compare import jobs

_setting = settings.setting
_from_0 = functools.partial(
  _setting, check=functools.partial(validate.integers, 0)
)
# Separated by commas, and given once for each.
Words = tuple[str, ...]
Repeated = list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateSearchOptions(settings.Group):
  """The number of runs of a private search."""

  private_search: Optional[str] = _setting(
    None,
    'Distribution of the number of runs of a private search. The number is'
    ' secret, and only the best run is released. Epsilon then covers the'
    " search. With 'poisson' the number may be 0, and nothing is released.",
    choices=(None, 'negative_binomial', 'poisson'),
  )
  search_runs: Optional[float] = _setting(
    None, 'With --private_search: expected number of runs.'
  )

  def search(self) -> Optional['privacy.PrivateSearch']:
    """Returns the private search; None without one.

    Raises:
      ValueError: If only one of the settings is given, or dp_accounting is not
        installed.
    """
    if self.private_search is None:
      if self.search_runs is not None:
        raise ValueError('--search_runs must be given with --private_search.')
      return None
    if self.search_runs is None:
      raise ValueError(
        '--private_search must be given with --search_runs, the expected number'
        ' of runs.'
      )
    try:
      return privacy.PrivateSearch(
        distribution=self.private_search,  # type: ignore[arg-type]
        expected_runs=self.search_runs,
      )
    except ModuleNotFoundError as e:
      raise ValueError(
        f'--private_search needs {e.name}, which is not installed.'
      ) from e


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepOptions(settings.Group):
  """What runs of several methods have in common."""

  output_dir: Optional[str] = _setting(
    None, 'Folder of the runs and results. Runs in it are resumed.'
  )
  seeds: int = _from_0(
    3,
    'Number of seeds of each method: 0, 1, ... One seed gives no verdict; 0'
    ' ends after the search for settings.',
  )
  num_processes: int = _from_0(
    0,
    'Number of runs at a time. 0 means one per GPU if the runs use JAX on GPUs,'
    ' and one per core otherwise. Larger numbers make runs share GPUs or'
    ' cores.',
  )
  print_runs: bool = _setting(
    False,
    'Print the flags of the unfinished runs for scripts.train, one run per'
    ' line, and exit. Train them on a cluster, one line per job, or in one'
    ' process with --runs_file. Then repeat this command without --print_runs:'
    ' it reads the finished runs.',
  )

  @property
  def folder(self) -> pathlib.Path:
    """The output folder.

    Raises:
      ValueError: If it is not given.
    """
    if not self.output_dir:
      raise ValueError('--output_dir must be given.')
    return pathlib.Path(self.output_dir)

  def runner(self, *, trust_code: bool) -> jobs.Runner:
    """Returns what makes the runs.

    Args:
      trust_code: Whether runs may import the modules that their specs name.
    """
    more = ('--trust_code',) if trust_code else ()
    return jobs.Runner(self.num_processes, self.print_runs, more)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareOptions(PrivateSearchOptions, SweepOptions):
  """What `scripts.compare` does."""

  methods: Words = _setting(
    ('cold', 'warm', 'pda'),
    f'Methods to compare: {", ".join(methods_lib.names())}, or modules that'
    ' define methods.',
  )
  set: Repeated = _setting(
    (),
    'METHOD:SETTING=VALUE, a setting of the runs of one method, such as'
    ' --set=pda:method.alpha_i=2.',
  )
  metrics: Words = _setting(
    (),
    'Metrics of the final test to show, in addition to --select_by. Default:'
    ' perplexity or loss, and accuracies.',
  )
  select_by: str = _setting(
    'loss',
    'Metric that decides which settings are best (on validation data) and'
    ' which method is best (on test data): loss, perplexity, accuracy (for'
    ' text, over known words) or accuracy_with_oov (over all tokens).',
  )
  tune: Repeated = _setting(
    (),
    'SETTING=VALUE,VALUE,..., or METHOD:SETTING=VALUE,... for one method: an'
    ' axis of the search grid. Validation with seed 0 chooses the settings,'
    ' separately for each method. With more values later, finished runs are'
    ' kept.',
  )
  tune_set: Repeated = _setting(
    (),
    'SETTING=VALUE, a setting that only the runs of --tune have, such as'
    ' --tune_set=validation_examples=5000.',
  )
  chosen: Optional[str] = _setting(
    None,
    'A chosen.json that --tune wrote. Each method gets the settings in it.',
  )
  warm_start_dir: Optional[str] = _setting(
    None, 'Folder of pre-trained models. Default: in --output_dir.'
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(SweepOptions):
  """What `scripts.benchmark` does."""

  seeds: int = _setting(
    3,
    'Number of final runs of each method: seeds 0, 1, ...',
    check=functools.partial(validate.integers, 1),
  )
  data_dir: str = _setting('data', 'Folder of the data of all tasks.')
  tasks: Words = _setting(
    (),
    'Tasks: names of files in scripts/benchmark_tasks, or paths of such files.'
    ' Default: all files in that folder.',
  )
  methods: Words = _setting(
    (),
    'Names or modules of methods to compare; one may be new, with --tune.'
    ' Default: those that a task has grids for.',
  )
  tune: Repeated = _setting(
    (),
    'SETTING=VALUE,..., or TASK:SETTING=VALUE,... for one task: an axis of the'
    ' grid of a method that tasks have no grid for. It is added to the'
    " task's own axes of learning rates.",
  )
