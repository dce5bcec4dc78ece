"""Follows the canaries of an audited run."""

from typing import Any

from pda_fed import audit
from pda_fed.runs import loop as loop_lib
from pda_fed.runs.engines import base as engine_lib

# Prefix of the auditor's arrays in a checkpoint.
_PREFIX = 'audit/'


class Audit(loop_lib.Callback):
  """Collects the scores of canaries, and reports what the run leaks."""

  def __init__(self, canaries: audit.Canaries):
    self._auditor = audit.Auditor(canaries)

  def restore(self, loop, arrays) -> None:
    names = [name for name in arrays if name.startswith(_PREFIX)]
    found = {name.removeprefix(_PREFIX): arrays.pop(name) for name in names}
    self._auditor.from_arrays(found)

  def start(self, loop) -> None:
    if not loop.is_resumed:
      self._auditor.start(list(loop.weights.values()))

  def rounds(self, loop, metrics) -> None:
    for row in metrics:
      self._auditor.add_round(row.pop(engine_lib.CANARY_SCORES))

  def arrays(self, loop) -> dict[str, Any]:
    found = self._auditor.to_arrays()
    return {f'{_PREFIX}{name}': array for name, array in found.items()}

  def result(self, loop) -> dict[str, Any]:
    weights = list(loop.weights.values())
    report = self._auditor.report(weights, loop.epsilon)
    return {'audit': report.as_dict()}
