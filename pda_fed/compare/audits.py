"""Results of audits, for tables and reports."""

from collections.abc import Mapping, Sequence
import statistics
from typing import Any, Optional

from pda_fed import audit
from pda_fed import methods as methods_lib

# Seeds and audit reports (as in result.json) of runs, by method.
_Reports = Mapping[str, Sequence[tuple[Optional[int], Mapping[str, Any]]]]


def found(runs: Mapping[str, Sequence[Any]]) -> _Reports:
  """Returns the audits of runs by method; omits methods without an audit.

  Args:
    runs: Runs by method, each a `comparison.Run`.
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
  """Returns a table cell: the mean estimate and the largest lower bound.

  Args:
    reports: Reports, as returned by `found`.
    method: The method.

  Returns:
    The cell, or None if no method was audited: the table then has no such
    column.
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
  """Returns a sentence about each method's worst run.

  Args:
    reports: Reports, as returned by `found`.
  """
  lines = []
  for method, of_method in reports.items():
    seed, worst = max(of_method, key=lambda pair: pair[1]['lower_bound'])
    text = ' '.join(audit.describe(worst))
    lines.append(f'{methods_lib.title(method)}, seed {seed}: {text}')
  return lines
