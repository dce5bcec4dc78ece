"""Methods against each other: means over seeds, a verdict by each metric."""

from collections.abc import Hashable, Sequence
import dataclasses
import json
import math
import os
import pathlib
import statistics
from typing import Any, Optional

from pda_fed import methods as methods_lib
from pda_fed import privacy
from pda_fed.analysis import fairness
from pda_fed.analysis import metrics as metrics_lib
from pda_fed.analysis import verdicts as verdicts_lib
from pda_fed.experiments import outputs

# Among methods, the warm start itself: it has seen no private data.
PUBLIC = 'public data alone'


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """A finished run.

  Attributes:
    path: Its folder.
    config: Its config.json.
    rows: Its metrics.csv.
    result: Its result.json.
    plan: Of its config.json.
  """

  path: pathlib.Path
  config: dict[str, Any]
  rows: list[dict[str, Optional[float]]]
  result: dict[str, Any]
  plan: privacy.PrivacyPlan

  @property
  def method(self) -> str:
    return self.result['method']

  @property
  def epsilon(self) -> Optional[float]:
    """Epsilon at the end; None where it was not computed."""
    if self.plan.noise_multiplier == 0:
      return math.inf
    return self.result['epsilon']

  @property
  def key(self) -> Hashable:
    """What pairs runs of different methods: the seed, if there is one."""
    seed = self.result['seed']
    return str(self.path) if seed is None else seed


def load_run(path: os.PathLike) -> Run:
  """Reads a finished run.

  Args:
    path: Its folder.

  Raises:
    OutputError: If it is not finished, not there, or damaged.
  """
  folder = outputs.RunFolder(pathlib.Path(path))
  return Run(folder.path, *folder.read_finished(), folder.read_plan())


def shared_rounds(runs: Sequence[Run], column: str) -> list[int]:
  """Returns the rounds in which all runs have a value.

  Args:
    runs: At least one.
    column: Of metrics.csv.
  """
  return sorted(
    set.intersection(
      *(
        {row['round'] for row in run.rows if row.get(column) is not None}
        for run in runs
      )
    )
  )


def title_of(method: str) -> str:
  """Returns what tables and sentences call a method, or `PUBLIC`."""
  return PUBLIC if method == PUBLIC else methods_lib.title(method)


@dataclasses.dataclass(frozen=True)
class Score:
  """A metric over the seeds of a method.

  Attributes:
    mean: Of the seeds.
    std: The sample's standard deviation; None for one seed.
    wins: Whether the method is clearly better than every other one.
  """

  mean: float
  std: Optional[float]
  wins: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
  """Methods against each other.

  Attributes:
    runs: By method, in the order of tables.
    known: The metrics that the final tests of all runs have.
    metrics: Those that are shown.
    select_by: The metric by which a winner is named, as it was given.
    selected: The same as it is shown: perplexity may stand for the loss.
    scores: By method and metric. `PUBLIC` comes first, where runs tell.
    verdicts: By metric; none for metrics that fewer than two methods have.
  """

  runs: dict[str, list[Run]]
  known: tuple[str, ...]
  metrics: tuple[str, ...]
  select_by: str
  selected: str
  scores: dict[str, dict[str, Score]]
  verdicts: dict[str, verdicts_lib.Verdict]

  def epsilon_of(self, method: str) -> Optional[float]:
    """Returns the largest epsilon of a method; None if one is not known."""
    if method == PUBLIC:
      return 0.0
    return fairness.largest([run.epsilon for run in self.runs[method]])

  @property
  def epsilon(self) -> Optional[float]:
    """The largest epsilon of a run; None if one is not known."""
    return fairness.largest([self.epsilon_of(m) for m in self.runs])

  @property
  def writer(self) -> verdicts_lib.Writer:
    """What puts verdicts into words."""
    means = {
      method: {metric: score.mean for metric, score in of.items()}
      for method, of in self.scores.items()
    }
    return verdicts_lib.Writer(self.known, title_of, means)

  def curve_part(self, metric: str) -> str:
    """Returns 'test' or 'validation': of which a figure shows the curves.

    The paper's figures are of the test, which runs have on demand.

    Args:
      metric: Its name.
    """
    tested = all(
      len(shared_rounds(runs, f'test_{metric}')) > 1
      for runs in self.runs.values()
    )
    return 'test' if tested else 'validation'


def _number(value: Optional[float]) -> float:
  """A metric of result.json; JSON has null for what is no number."""
  return math.nan if value is None else value


# Values by metric and seed.
_Values = dict[str, dict[Hashable, float]]


def _values(tests: dict[Hashable, dict], metrics: Sequence[str]) -> _Values:
  return {
    metric: {seed: _number(test[metric]) for seed, test in tests.items()}
    for metric in metrics
  }


def _tests(runs: Sequence[Run]) -> dict[Hashable, dict[str, float]]:
  """The final tests by seed; of a seed that comes again, by folder."""
  found = {}
  for run in runs:
    key = str(run.path) if run.key in found else run.key
    found[key] = run.result['test']
  return found


def _public_tests(
  runs: Sequence[Run], metrics: Sequence[str]
) -> dict[Hashable, dict[str, float]]:
  """Tests of warm starts by seed; none where a run does not tell.

  Methods of one seed share a warm start, or their mean counts.
  """
  by_seed: dict[Hashable, list[dict[str, float]]] = {}
  for run in runs:
    if getattr(methods_lib.find(run.method), 'warm_start', True):
      test = (run.result.get('warm_start') or {}).get('test')
      if test is None or not set(metrics) <= set(test):
        return {}
      by_seed.setdefault(run.key, []).append(test)
  return {
    seed: {
      metric: statistics.fmean(_number(test[metric]) for test in _distinct(of))
      for metric in metrics
    }
    for seed, of in by_seed.items()
  }


def _all_values(
  by_method: dict[str, list[Run]], metrics: Sequence[str]
) -> dict[str, _Values]:
  """By method; `PUBLIC` comes first, where runs tell."""
  runs = [run for group in by_method.values() for run in group]
  public = _public_tests(runs, metrics)
  values = {PUBLIC: _values(public, metrics)} if public else {}
  for method, of in by_method.items():
    values[method] = _values(_tests(of), metrics)
  return values


def by_seed(
  comparison: Comparison, metric: str
) -> dict[str, dict[Hashable, float]]:
  """Returns the test values of a metric by method and seed.

  Args:
    comparison: The comparison of runs.
    metric: One that is shown.
  """
  values = _all_values(comparison.runs, [metric])
  return {method: of[metric] for method, of in values.items()}


def _distinct(tests: Sequence[dict[str, float]]) -> list[dict[str, float]]:
  return list(
    {json.dumps(test, sort_keys=True): test for test in tests}.values()
  )


def _score(values: Sequence[float], wins: bool) -> Score:
  std = None
  if len(values) > 1:
    is_finite = all(map(math.isfinite, values))
    std = statistics.stdev(values) if is_finite else math.nan
  return Score(statistics.fmean(values), std, wins)


def compare(
  runs: Sequence[Run],
  metrics: Optional[Sequence[str]] = None,
  select_by: str = 'loss',
) -> Comparison:
  """Compares the final tests of runs.

  Args:
    runs: At least one, each with a test, all on the same data.
    metrics: Those to show; see `metrics.to_show`.
    select_by: The metric by which a winner is named.

  Raises:
    ValueError: If a metric is not known, runs are on different data, or there
      are none with a test.
  """
  tested = [run for run in runs if run.result['test'] is not None]
  if not tested:
    raise ValueError('runs must have a test. Found none that has.')
  fairness.check_data(tested)
  by_method = {
    name: [run for run in tested if run.method == name]
    for name in methods_lib.in_order({run.method for run in tested})
  }
  known = sorted(set.intersection(*(set(r.result['test']) for r in tested)))
  shown, selected = metrics_lib.to_show(known, metrics, select_by)
  values = _all_values(by_method, shown)
  decided = {
    x: verdicts_lib.decide(x, {m: of[x] for m, of in values.items()})
    for x in shown
  }
  verdicts = {x: verdict for x, verdict in decided.items() if verdict}
  winners = {x: v.best for x, v in verdicts.items() if v.is_clear}

  def score(method: str, metric: str) -> Score:
    found = list(values[method][metric].values())
    if method == PUBLIC and len(set(found)) == 1:
      found = found[:1]  # One warm start for all seeds.
    return _score(found, winners.get(metric) == method)

  scores = {m: {x: score(m, x) for x in shown} for m in values}
  return Comparison(
    by_method, tuple(known), shown, select_by, selected, scores, verdicts
  )


def guarantees(comparison: Comparison) -> dict[str, list[str]]:
  """Returns what runs promise, each promise once, and by which methods.

  Args:
    comparison: Of runs; those without an epsilon promise nothing.
  """
  found: dict[str, dict[str, None]] = {}
  for method, runs in comparison.runs.items():
    for run in runs:
      if run.epsilon is not None:
        found.setdefault(run.plan.describe(run.epsilon), {})[method] = None
  return {statement: list(methods) for statement, methods in found.items()}


def caveats(comparison: Comparison) -> list[str]:
  """Returns what epsilon leaves out, each sentence once.

  Args:
    comparison: Of runs.
  """
  runs = [run for group in comparison.runs.values() for run in group]
  return list(
    dict.fromkeys(c for run in runs for c in run.config.get('caveats', []))
  )
