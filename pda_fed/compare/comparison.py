"""Compares finished runs: means over seeds, and a verdict by each metric."""

from collections.abc import Hashable, Mapping, Sequence
import dataclasses
import math
import os
import pathlib
import statistics
from typing import Any, Optional

from pda_fed import methods as methods_lib
from pda_fed import privacy
from pda_fed.compare import names
from pda_fed.compare import verdicts as verdicts_lib
from pda_fed.runs import outputs
from pda_fed.runs import records

# Relative difference up to which epsilons count as equal: accountants round.
_EPSILON_TOLERANCE = 0.01

# Values by method, metric and seed.
Values = Mapping[str, Mapping[str, verdicts_lib.BySeed]]


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
  def seed(self) -> Optional[int]:
    return self.result['seed']

  @property
  def epsilon(self) -> Optional[float]:
    """Epsilon of the whole run; None if it was not computed."""
    if self.plan.noise_multiplier == 0:
      return math.inf
    return self.result['epsilon']

  @property
  def key(self) -> Hashable:
    """The key that pairs runs of different methods: the seed, if any."""
    return str(self.path) if self.seed is None else self.seed


def load_run(path: os.PathLike | str) -> Run:
  """Reads the finished run of a folder.

  Raises:
    OutputError: If the run is missing, unfinished or damaged.
  """
  folder = outputs.RunFolder(pathlib.Path(path))
  return Run(folder.path, *folder.read_finished())


def is_same_epsilon(a: Optional[float], b: Optional[float]) -> bool:
  """Returns whether two epsilons are equal up to rounding."""
  if a is None or b is None:
    return a is b
  return math.isclose(a, b, rel_tol=_EPSILON_TOLERANCE)


def _largest(epsilons: Sequence[Optional[float]]) -> Optional[float]:
  return None if None in epsilons else max(epsilons)


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
    metrics: The metrics to show.
    select_by: The metric that decides the winner, as given by the user.
    selected: The same metric as shown: perplexity may replace the loss.
    values: Test values by method, metric and seed; of all metrics that the
      tests have. `names.PUBLIC` comes first, if warm starts were tested.
    scores: Scores by method and shown metric.
    verdicts: Verdicts by metric, for metrics that at least two methods have.
  """

  runs: dict[str, list[Run]]
  metrics: tuple[str, ...]
  select_by: str
  selected: str
  values: Values
  scores: dict[str, dict[str, Score]]
  verdicts: dict[str, verdicts_lib.Verdict]

  @property
  def all_runs(self) -> list[Run]:
    return [run for of_method in self.runs.values() for run in of_method]

  @property
  def known(self) -> tuple[str, ...]:
    """The metrics that the final tests of all runs have."""
    return tuple(self.values[next(iter(self.runs))])

  @property
  def means(self) -> dict[str, dict[str, float]]:
    """Means by method and metric."""
    return {
      m: {x: s.mean for x, s in of.items()} for m, of in self.scores.items()
    }

  def epsilon_of(self, method: str) -> Optional[float]:
    """Returns the largest epsilon of a method; None if one is unknown."""
    if method == names.PUBLIC:
      return 0.0
    return _largest([run.epsilon for run in self.runs[method]])

  @property
  def epsilon(self) -> Optional[float]:
    """The largest epsilon of all runs; None if one is unknown."""
    return _largest([run.epsilon for run in self.all_runs])

  def rounds(self, method: str, column: str) -> list[int]:
    """Returns the rounds in which all runs of a method have a value."""
    found = [
      {row['round'] for row in run.rows if row.get(column) is not None}
      for run in self.runs[method]
    ]
    return sorted(set.intersection(*found))

  def curve_part(self, metric: str) -> str:
    """Returns 'test' or 'validation': the data of a figure's curves.

    The paper's figures show test curves, which runs record on request.
    """
    column = f'test_{metric}'
    tested = all(len(self.rounds(m, column)) > 1 for m in self.runs)
    return 'test' if tested else 'validation'


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
      metric: statistics.fmean(_number(test[metric]) for test in tests)
      for metric in set.intersection(*map(set, tests))
    }
    for seed, tests in by_seed.items()
  }


def _number(value: Optional[float]) -> float:
  """Returns a metric of result.json, with NaN for null."""
  return math.nan if value is None else value


def _score(values: Sequence[float], wins: bool) -> Score:
  std = None
  if len(values) > 1:
    is_finite = all(map(math.isfinite, values))
    std = statistics.stdev(values) if is_finite else math.nan
  return Score(statistics.fmean(values), std, wins)


def _check_data(runs: Sequence[Run]) -> None:
  """Raises ValueError if runs use different data."""
  first, *others = runs
  for run in others:
    if run.config.data_hash != first.config.data_hash:
      raise ValueError(
        'runs must use the same data. Found data_hash'
        f' {first.config.data_hash!r} in {first.path} and'
        f' {run.config.data_hash!r} in {run.path}.'
      )


def compare(
  runs: Sequence[Run], metrics: Sequence[str] = (), select_by: str = 'loss'
) -> Comparison:
  """Compares runs. Runs without a final test are left out.

  Args:
    runs: The runs, on the same data.
    metrics: The metrics to show; see `names.to_show`.
    select_by: The metric that decides the winner.

  Raises:
    ValueError: If a metric is unknown, runs use different data, or no run has a
      test.
  """
  tested = [run for run in runs if run.result['test'] is not None]
  if not tested:
    raise ValueError('runs must have at least one with a test. Found none.')
  _check_data(tested)
  by_method = {
    name: [run for run in tested if run.method == name]
    for name in names.in_order({run.method for run in tested})
  }
  known = sorted(set.intersection(*(set(r.result['test']) for r in tested)))
  shown, selected = names.to_show(known, metrics, select_by)
  public = _public_tests(tested, shown)
  tests = {names.PUBLIC: public} if public else {}
  for method, of in by_method.items():
    tests[method] = {run.key: run.result['test'] for run in of}
  values = {
    method: {
      metric: {seed: _number(test[metric]) for seed, test in of.items()}
      for metric in known
      if all(metric in test for test in of.values())
    }
    for method, of in tests.items()
  }
  decided = {
    x: verdicts_lib.decide(x, {m: of[x] for m, of in values.items()})
    for x in shown
  }
  verdicts = {x: verdict for x, verdict in decided.items() if verdict}
  winners = {x: v.best for x, v in verdicts.items() if v.is_clear}

  def score(method: str, metric: str) -> Score:
    found = list(values[method][metric].values())
    if method == names.PUBLIC and len(set(found)) == 1:
      found = found[:1]  # All seeds share one warm start.
    return _score(found, winners.get(metric) == method)

  scores = {m: {x: score(m, x) for x in shown} for m in values}
  return Comparison(
    by_method, shown, select_by, selected, values, scores, verdicts
  )
