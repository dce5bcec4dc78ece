"""The findings of an audit, in words."""

from collections.abc import Mapping
from typing import Any

from pda_fed import privacy


def describe(report: Mapping[str, Any]) -> list[str]:
  """Returns sentences about an audit.

  Example:

  ```
  for line in describe(folder.read_result()['audit']):
    print(line)
  ```

  Args:
    report: The result of `AuditReport.as_dict`, as in result.json.
  """
  proven = report['proven']
  shown = 'was not computed' if proven is None else privacy.round_up(proven)
  lines = [
    f'Audit with {report["canaries"]:,} canaries. The proven epsilon, an upper'
    f' bound on any leak: {shown} at delta {report["delta"]:g}.'
  ]
  for name, view in report['views'].items():
    low, high = view['interval']
    lines.append(
      f'An adversary who sees {name}: epsilon is about'
      f' {view["estimate"]:.3g} (estimate; 95 % interval {low:.3g} to'
      f' {high:.3g}), at least {view["rates_bound"]:.3g} by error rates if'
      f' canaries are independent, and at least {view["one_run_bound"]:.3g}'
      ' without assumptions (95 % confidence).'
    )
  if proven is None or report['most'] < proven:
    lines.append(
      f'{report["canaries"]:,} canaries can show at most {report["most"]:.3g}:'
      ' they cannot detect a larger leak.'
    )
  if proven is not None and proven < report['resolution']:
    lines.append(
      f'{report["canaries"]:,} canaries cannot distinguish estimates below'
      f' {report["resolution"]:.2g} from 0: use more canaries.'
    )
  lines.append(
    f'Canaries increase the noise of this run by {report["added_noise"]:.2%}.'
    if not report.get('copy')
    else 'Canaries took part only in a copy of the run, not in this model.'
  )
  return lines


def is_violated(report: Mapping[str, Any]) -> bool:
  """Returns whether a lower bound is above the proven epsilon.

  Example: see `describe`.

  Args:
    report: See `describe`.
  """
  proven = report['proven']
  return proven is not None and report['lower_bound'] > proven


def violation(report: Mapping[str, Any]) -> str:
  """Returns the warning about a lower bound above the proven epsilon.

  Example: see `describe`.

  Args:
    report: See `describe`.
  """
  return (
    f'The audit shows an epsilon of at least {report["lower_bound"]:.3g} (95 %'
    f' confidence), above the proven {privacy.round_up(report["proven"])}: the'
    ' run leaks more than its accounting states. Do not release the model; look'
    ' for a bug in sampling, clipping or noise.'
  )
