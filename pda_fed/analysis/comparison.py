"""Methods against each other: means over seeds, tables."""

from collections.abc import Sequence
import dataclasses
import json
import math
import os
import pathlib
import statistics
from typing import Any, Optional

from pda_fed import methods as methods_lib
from pda_fed import privacy
from pda_fed.analysis import audits
from pda_fed.common import tables
from pda_fed.experiments import outputs

# Metrics that a table shows if runs have them, in this order.
_USUAL_METRICS = ('accuracy', 'perplexity', 'loss')
_MOST_METRICS = 2
# A name that begins so is better when larger, and shown in percent.
_ACCURACY = 'accuracy'
_BASELINE = 'warm'
# Among methods, the warm start itself.
_PUBLIC = 'public data alone'


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


def is_better(metric: str, a: float, b: float) -> bool:
  """Returns whether a value of a metric is better than another."""
  if math.isnan(a) or math.isnan(b):  # A run that diverged.
    return not math.isnan(a)
  return a > b if metric.startswith(_ACCURACY) else a < b


def format_value(metric: str, value: float) -> str:
  """Formats a metric's value for people: accuracies in percent."""
  if metric.startswith(_ACCURACY):
    return f'{100 * value:.2f}'
  return f'{value:.2f}' if value >= 10 else f'{value:.4f}'


def title_of(metric: str) -> str:
  """Returns what a metric is called at a column or an axis."""
  unit = ' (%)' if metric.startswith(_ACCURACY) else ''
  return metric.replace('_', ' ') + unit


def check_metrics(
  known: Sequence[str], metrics: Optional[Sequence[str]] = None
) -> tuple[str, ...]:
  """Returns the metrics to show.

  Args:
    known: Those that all runs have.
    metrics: Those that are wanted; by default the usual ones.

  Raises:
    ValueError: If one is not known; the message lists those that are. Or if
      there is none of the usual ones.
  """
  if not metrics:
    usual = [name for name in _USUAL_METRICS if name in known]
    if not usual:
      raise ValueError(
        f'runs must have one of {", ".join(_USUAL_METRICS)}, or metrics must be'
        f' given. Found {", ".join(sorted(known)) or "none"}.'
      )
    return tuple(usual[:_MOST_METRICS])
  for name in metrics:
    if name not in known:
      raise ValueError(
        f'metrics must be among {", ".join(sorted(known))}. Found {name!r}.'
      )
  return tuple(metrics)


@dataclasses.dataclass(frozen=True)
class Score:
  """A metric over the seeds of a method.

  Attributes:
    mean: Of the seeds.
    std: The sample's standard deviation; None for one seed.
    change: Of the mean, relative to the baseline's; None for the baseline.
    best: Whether no method has a better mean.
  """

  mean: float
  std: Optional[float]
  change: Optional[float]
  best: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
  """Methods against each other.

  Attributes:
    runs: By method, in the order of tables.
    metrics: Of the final test.
    scores: By method and metric.
    baseline: The method that changes are relative to.
    public: Scores by metric of warm starts, which have seen public data alone;
      None where runs do not say.
  """

  runs: dict[str, list[Run]]
  metrics: tuple[str, ...]
  scores: dict[str, dict[str, Score]]
  baseline: str
  public: Optional[dict[str, Score]] = None

  @property
  def epsilon(self) -> Optional[float]:
    """The largest epsilon of a run; None if one is not known."""
    found = [run.epsilon for runs in self.runs.values() for run in runs]
    return None if None in found else max(found)

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


def _tests_of_warm_starts(
  by_method: dict[str, list[Run]],
) -> list[dict[str, float]]:
  """Of each warm start once; none where runs do not say."""
  found = [
    (run.result.get('warm_start') or {}).get('test')
    for runs in by_method.values()
    for run in runs
    if getattr(methods_lib.find(run.method), 'warm_start', True)
  ]
  if None in found:
    return []
  return list(
    {json.dumps(test, sort_keys=True): test for test in found}.values()
  )


def _stdev(values: Sequence[float]) -> float:
  if not all(map(math.isfinite, values)):
    return math.nan
  return statistics.stdev(values)


def compare(
  runs: Sequence[Run], metrics: Optional[Sequence[str]] = None
) -> Comparison:
  """Compares the final tests of runs.

  Args:
    runs: At least one, each with a test.
    metrics: Names; by default accuracy and perplexity, or what there is.

  Returns:
    The comparison, against warm start if it is among the methods.

  Raises:
    ValueError: If a metric is not known, or there are no runs with a test.
  """
  tested = [run for run in runs if run.result['test'] is not None]
  if not tested:
    raise ValueError('runs must have a test. Found none that has.')
  by_method: dict[str, list[Run]] = {}
  for name in methods_lib.in_order({run.method for run in tested}):
    by_method[name] = [run for run in tested if run.method == name]
  known = set.intersection(*(set(run.result['test']) for run in tested))
  metrics = check_metrics(sorted(known), metrics)
  baseline = _BASELINE if _BASELINE in by_method else next(iter(by_method))
  values = {
    method: {
      m: [_number(run.result['test'][m]) for run in runs_] for m in metrics
    }
    for method, runs_ in by_method.items()
  }
  public = _tests_of_warm_starts(by_method)
  if public and all(m in test for m in metrics for test in public):
    values[_PUBLIC] = {m: [_number(t[m]) for t in public] for m in metrics}
  means = {
    method: {m: statistics.fmean(v) for m, v in of.items()}
    for method, of in values.items()
  }

  def score(method: str, metric: str) -> Score:
    mean, base = means[method][metric], means[baseline][metric]
    seeds = values[method][metric]
    rivals = [means[other][metric] for other in means]
    has_change = method != baseline and base and math.isfinite(mean / base)
    return Score(
      mean=mean,
      std=_stdev(seeds) if len(seeds) > 1 else None,
      change=mean / base - 1 if has_change else None,
      best=not any(is_better(metric, rival, mean) for rival in rivals),
    )

  scores = {m: {x: score(m, x) for x in metrics} for m in values}
  of_public = scores.pop(_PUBLIC, None)
  return Comparison(by_method, metrics, scores, baseline, of_public)


def format_score(metric: str, score: Score, plus_minus: str) -> str:
  """Formats a mean, and the standard deviation of several seeds.

  Args:
    metric: Its name.
    score: Its values.
    plus_minus: What stands between the two.
  """
  text = format_value(metric, score.mean)
  if score.std is not None:
    decimals = len(text.partition('.')[2])
    std = 100 * score.std if metric.startswith(_ACCURACY) else score.std
    text += f' {plus_minus} {std:.{decimals}f}'
  return text


def _change(score: Score) -> str:
  return '' if score.change is None else f'{score.change:+.1%}'


def format_epsilon(epsilon: Optional[float]) -> str:
  """Formats epsilon, rounded up; '?' where it was not computed."""
  return '?' if epsilon is None else privacy.round_up(epsilon)


def header(comparison: Comparison) -> list[str]:
  """Returns the names of the columns of a comparison's table."""
  against = methods_lib.title(comparison.baseline)
  columns = []
  for metric in comparison.metrics:
    columns += [title_of(metric), f'against {against}']
  audited = ['audited'] if audits.found(comparison.runs) else []
  return ['method', *columns, 'epsilon', *audited, 'runs']


@dataclasses.dataclass(frozen=True)
class Line:
  """A line of a comparison's table.

  Attributes:
    title: Of a method, or of public data alone.
    scores: By metric.
    epsilon: As a table shows it.
    num_runs: As a table shows it.
    audited: What an audit found, as a table shows it; None without audits.
  """

  title: str
  scores: dict[str, Score]
  epsilon: str
  num_runs: str
  audited: Optional[str] = None


def lines(comparison: Comparison) -> list[Line]:
  """Returns the lines of a comparison's table."""
  audited = audits.found(comparison.runs)
  found = [
    Line(
      methods_lib.title(method),
      scores,
      format_epsilon(comparison.runs[method][0].epsilon),
      str(len(comparison.runs[method])),
      audits.cell(audited, method),
    )
    for method, scores in comparison.scores.items()
  ]
  if comparison.public is None:
    return found
  return [
    Line(_PUBLIC, comparison.public, '0', '', '' if audited else None),
    *found,
  ]


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


def rows(comparison: Comparison, plus_minus: str = '±') -> list[list[str]]:
  """Returns the cells of a comparison's table."""
  table = []
  for line in lines(comparison):
    cells = [line.title]
    for metric, score in line.scores.items():
      cells += [format_score(metric, score, plus_minus), _change(score)]
    of_audit = [] if line.audited is None else [line.audited]
    table.append([*cells, line.epsilon, *of_audit, line.num_runs])
  return table


def as_text(comparison: Comparison) -> str:
  """Returns the table for a terminal."""
  return tables.format_table(header(comparison), rows(comparison))


def as_markdown(comparison: Comparison) -> str:
  """Returns the table in Markdown, the best means in bold."""
  names, table = header(comparison), rows(comparison)
  for line, cells in zip(lines(comparison), table, strict=True):
    for i, score in enumerate(line.scores.values()):
      if score.best:
        cells[1 + 2 * i] = f'**{cells[1 + 2 * i]}**'
  return tables.format_markdown(names, table, 'l' + 'r' * (len(names) - 1))


def as_latex(comparison: Comparison) -> str:
  """Returns the table for LaTeX with the package booktabs."""
  titles = [tables.escape_latex(title_of(m)) for m in comparison.metrics]
  table = []
  for line in lines(comparison):
    cells = [tables.escape_latex(line.title)]
    for metric, score in line.scores.items():
      value = format_score(metric, score, r'$\pm$')
      cells.append(rf'\textbf{{{value}}}' if score.best else value)
    table.append(cells)
  names = ['Algorithm', *titles]
  return tables.format_latex(names, table, 'l' * len(names))
