"""What an audit found, in words."""

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
    report: What `AuditReport.as_dict` gives, as in result.json.
  """
  proven = report['proven']
  shown = 'was not computed' if proven is None else privacy.round_up(proven)
  lines = [
    f'Audit with {report["canaries"]:,} canaries. The proven epsilon, which no'
    f' run may exceed: {shown} at delta {report["delta"]:g}.'
  ]
  for name, view in report['views'].items():
    low, high = view['interval']
    lines.append(
      f'Whoever sees {name}: epsilon is about {view["estimate"]:.3g}'
      f' (estimate; 95 % interval {low:.3g} to {high:.3g}), at least'
      f' {view["rates_bound"]:.3g} by error rates, if canaries are independent,'
      f' and at least {view["one_run_bound"]:.3g} in any case (95 %'
      ' confidence).'
    )
  if proven is None or report['most'] < proven:
    lines.append(
      f'{report["canaries"]:,} canaries can show at most {report["most"]:.3g}:'
      ' a larger leak would go unseen.'
    )
  if proven is not None and proven < report['resolution']:
    lines.append(
      f'{report["canaries"]:,} canaries cannot tell estimates below'
      f' {report["resolution"]:.2g} from 0: more canaries can.'
    )
  lines.append(
    f'Canaries make the noise {report["added_noise"]:.2%} larger in this run.'
    if not report.get('copy')
    else 'Canaries took part in a copy of the run; the model has none.'
  )
  return lines


def is_violated(report: Mapping[str, Any]) -> bool:
  """Returns whether a lower bound is above the proven epsilon.

  Example: see `describe`.

  Args:
    report: As for `describe`.
  """
  proven = report['proven']
  return proven is not None and report['lower_bound'] > proven


def violation(report: Mapping[str, Any]) -> str:
  """Returns what to say of a lower bound above the proven epsilon.

  Example: see `describe`.

  Args:
    report: As for `describe`.
  """
  return (
    f'The audit shows an epsilon of at least {report["lower_bound"]:.3g} (95 %'
    f' confidence), above the proven {privacy.round_up(report["proven"])}: the'
    ' run leaks more than its accounting says. Do not release the model; look'
    ' for a bug in sampling, clipping or noise.'
  )
