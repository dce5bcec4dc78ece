"""What audits of runs found, for tables and pages."""

from collections.abc import Mapping, Sequence
import statistics
from typing import Any, Optional

from pda_fed import audit
from pda_fed import methods as methods_lib

# Reports of a method's runs, as in result.json, each with the run's seed.
_Reports = Mapping[str, Sequence[tuple[Optional[int], Mapping[str, Any]]]]


def found(runs: Mapping[str, Sequence[Any]]) -> _Reports:
  """Returns the audits of runs, by method; methods without one are left out.

  Args:
    runs: By method, each a `comparison.Run`.
  """
  reports = {
    method: [
      (run.result['seed'], run.result['audit'])
      for run in of_method
      if run.result.get('audit')
    ]
    for method, of_method in runs.items()
  }
  return {method: of for method, of in reports.items() if of}


def cell(reports: _Reports, method: str) -> Optional[str]:
  """Returns the cell of a table: mean estimate, and largest lower bound.

  Args:
    reports: As `found` gives them.
    method: The method.

  Returns:
    None if no method was audited, and the table has no such column.
  """
  if not reports:
    return None
  if method not in reports:
    return ''
  estimates = [
    max(view['estimate'] for view in report['views'].values())
    for _, report in reports[method]
  ]
  bound = max(report['lower_bound'] for _, report in reports[method])
  return f'about {statistics.fmean(estimates):.2g}, at least {bound:.2g}'


def sentences(reports: _Reports) -> list[str]:
  """Returns what the audits found, in words: of each method the worst run.

  Args:
    reports: As `found` gives them.
  """
  lines = []
  for method, of_method in reports.items():
    seed, worst = max(of_method, key=lambda pair: pair[1]['lower_bound'])
    text = ' '.join(audit.describe(worst))
    lines.append(f'{methods_lib.title(method)}, seed {seed}: {text}')
  return lines
