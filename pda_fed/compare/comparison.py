"""Compares methods: means over seeds, and a verdict by each metric."""

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
from pda_fed.compare import fairness
from pda_fed.compare import metrics as metrics_lib
from pda_fed.compare import styles
from pda_fed.compare import verdicts as verdicts_lib
from pda_fed.runs import outputs
from pda_fed.runs import records

# Listed like a method: the warm start itself, which has seen no private data.
PUBLIC = 'public data alone'


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """A finished run.

  Attributes:
    path: The run's folder.
    config: The content of config.json.
    rows: The rows of metrics.csv.
    result: The content of result.json.
  """

  path: pathlib.Path
  config: records.Recorded
  rows: list[dict[str, Any]]
  result: dict[str, Any]

  @property
  def plan(self) -> privacy.PrivacyPlan:
    """The privacy plan."""
    return self.config.plan

  @property
  def method(self) -> str:
    return self.result['method']

  @property
  def epsilon(self) -> Optional[float]:
    """Epsilon of the whole run; None if it was not computed."""
    if self.plan.noise_multiplier == 0:
      return math.inf
    return self.result['epsilon']

  @property
  def key(self) -> Hashable:
    """The key that pairs runs of different methods: the seed, if any."""
    seed = self.result['seed']
    return str(self.path) if seed is None else seed


def load_run(path: os.PathLike | str) -> Run:
  """Reads a finished run.

  Args:
    path: The run's folder.

  Raises:
    OutputError: If the run is missing, unfinished or damaged.
  """
  folder = outputs.RunFolder(pathlib.Path(path))
  return Run(folder.path, *folder.read_finished())


def shared_rounds(runs: Sequence[Run], column: str) -> list[int]:
  """Returns the rounds in which all runs have a value.

  Args:
    runs: The runs, at least one.
    column: A column of metrics.csv.
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
  """Returns the title of a method, or of `PUBLIC`."""
  return PUBLIC if method == PUBLIC else methods_lib.title(method)


@dataclasses.dataclass(frozen=True)
class Score:
  """A metric over the seeds of a method.

  Attributes:
    mean: The mean over seeds.
    std: The sample standard deviation over seeds; None for one seed.
    wins: Whether the method is clearly better than every other one.
  """

  mean: float
  std: Optional[float]
  wins: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
  """A comparison of methods.

  Attributes:
    runs: Runs by method, in the order of tables.
    known: The metrics that the final tests of all runs have.
    metrics: The metrics to show.
    select_by: The metric that decides the winner, as given by the user.
    selected: The same metric as shown: perplexity may replace the loss.
    scores: Scores by method and metric. `PUBLIC` comes first, if warm starts
      were tested.
    verdicts: Verdicts by metric, for metrics that at least two methods have.
  """

  runs: dict[str, list[Run]]
  known: tuple[str, ...]
  metrics: tuple[str, ...]
  select_by: str
  selected: str
  scores: dict[str, dict[str, Score]]
  verdicts: dict[str, verdicts_lib.Verdict]

  def epsilon_of(self, method: str) -> Optional[float]:
    """Returns the largest epsilon of a method; None if one is unknown."""
    if method == PUBLIC:
      return 0.0
    return fairness.largest([run.epsilon for run in self.runs[method]])

  @property
  def epsilon(self) -> Optional[float]:
    """The largest epsilon of all runs; None if one is unknown."""
    return fairness.largest([self.epsilon_of(m) for m in self.runs])

  @property
  def writer(self) -> verdicts_lib.Writer:
    """The writer of sentences about verdicts."""
    means = {
      method: {metric: score.mean for metric, score in of.items()}
      for method, of in self.scores.items()
    }
    return verdicts_lib.Writer(self.known, title_of, means)

  def curve_part(self, metric: str) -> str:
    """Returns 'test' or 'validation': the data of a figure's curves.

    The paper's figures show test curves, which runs record on request.

    Args:
      metric: The metric's name.
    """
    tested = all(
      len(shared_rounds(runs, f'test_{metric}')) > 1
      for runs in self.runs.values()
    )
    return 'test' if tested else 'validation'


def _number(value: Optional[float]) -> float:
  """Returns a metric of result.json, with NaN for null."""
  return math.nan if value is None else value


# Values by metric and seed.
_Values = dict[str, dict[Hashable, float]]


def _values(tests: dict[Hashable, dict], metrics: Sequence[str]) -> _Values:
  return {
    metric: {seed: _number(test[metric]) for seed, test in tests.items()}
    for metric in metrics
  }


def _tests(runs: Sequence[Run]) -> dict[Hashable, dict[str, float]]:
  """Returns final tests by seed; by folder for repeated seeds."""
  found = {}
  for run in runs:
    key = str(run.path) if run.key in found else run.key
    found[key] = run.result['test']
  return found


def _public_tests(
  runs: Sequence[Run], metrics: Sequence[str]
) -> dict[Hashable, dict[str, float]]:
  """Returns tests of warm starts by seed; {} if a run has no such test.

  If methods of the same seed have different warm starts, their mean counts.
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
  """Returns values by method; `PUBLIC` first, if warm starts were tested."""
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
    comparison: The comparison.
    metric: One of its metrics.
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
    runs: Runs on the same data. Runs without a test are ignored.
    metrics: The metrics to show; see `metrics.to_show`.
    select_by: The metric that decides the winner.

  Raises:
    ValueError: If a metric is unknown, runs use different data, or no run has a
      test.
  """
  tested = [run for run in runs if run.result['test'] is not None]
  if not tested:
    raise ValueError('runs must have at least one with a test. Found none.')
  fairness.check_data(tested)
  by_method = {
    name: [run for run in tested if run.method == name]
    for name in styles.in_order({run.method for run in tested})
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
      found = found[:1]  # All seeds share one warm start.
    return _score(found, winners.get(metric) == method)

  scores = {m: {x: score(m, x) for x in shown} for m in values}
  return Comparison(
    by_method, tuple(known), shown, select_by, selected, scores, verdicts
  )


def guarantees(comparison: Comparison) -> dict[str, list[str]]:
  """Returns the distinct privacy guarantees of runs, with their methods.

  Args:
    comparison: The comparison. Runs without an epsilon are ignored.
  """
  found: dict[str, dict[str, None]] = {}
  for method, runs in comparison.runs.items():
    for run in runs:
      if run.epsilon is not None:
        found.setdefault(run.plan.statement(run.epsilon), {})[method] = None
  return {statement: list(methods) for statement, methods in found.items()}


def caveats(comparison: Comparison) -> list[str]:
  """Returns the distinct caveats of runs: what epsilon does not cover.

  Args:
    comparison: The comparison.
  """
  configs = [run.config for of in comparison.runs.values() for run in of]
  searches = [c.private_search for c in configs if c.private_search]
  own = [caveat for c in configs for caveat in c.caveats]
  return list(dict.fromkeys([*searches, *own]))
